"""Who may come in: the number of requests in the house, the time each may take."""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING

from paged_core.server.errors import ApiError, invalid

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

TIMEOUT_HEADER = "x-request-timeout"
_MAX_TIMEOUT_S = 7 * 24 * 3600.0


class Admission:
    """Counts prompts that are queued or run. Used by the event loop alone."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.inside = 0

    @contextmanager
    def enter(self, num: int) -> Iterator[None]:
        """Room for `num` prompts while the block runs. ApiError 429 when there is none."""
        if self.inside + num > self.limit and self.inside > 0:
            message = (
                f"{self.inside} requests are being worked on and no more than {self.limit} may be: try again later"
            )
            raise ApiError(429, message, code="queue_full", headers={"Retry-After": str(self.retry_after_s)})
        self.inside += num
        try:
            yield
        finally:
            self.inside -= num

    @property
    def retry_after_s(self) -> int:
        """Seconds after which asking again has a chance."""
        return 1


def time_limit(headers: Mapping[str, str], asked: float | None, most: float) -> float | None:
    """Seconds the request may take: the least of what body, header and operator (`most`, 0 = nothing) say."""
    limits = [most] if most > 0 else []
    if asked is not None:
        limits.append(_seconds(asked, "timeout"))
    if TIMEOUT_HEADER in headers:
        try:
            limits.append(_seconds(float(headers[TIMEOUT_HEADER]), TIMEOUT_HEADER))
        except ValueError:
            raise invalid("the header X-Request-Timeout must be a number of seconds", TIMEOUT_HEADER) from None
    return min(limits, default=None)


def _seconds(value: float, name: str) -> float:
    if not math.isfinite(value) or not 0 < value <= _MAX_TIMEOUT_S:
        raise invalid(f"{name} must be a number of seconds above 0 and at most {_MAX_TIMEOUT_S:.0f}", name)
    return value
