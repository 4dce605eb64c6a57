"""Who may come in: the number of requests in the house, the time each may take."""

from __future__ import annotations

import math
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from paged_core.server.errors import ApiError, invalid

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

TIMEOUT_HEADER = "x-request-timeout"
_MAX_TIMEOUT_S = 7 * 24 * 3600.0
_MAX_RETRY_S = 60
_SMOOTHING = 0.05


class Admission:
    """Counts prompts that are queued or run, a request of any kind as one at least. Used by the event loop alone."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.inside = 0
        self._mean_s = 1.0

    @contextmanager
    def enter(self, num: int, held: int = 0) -> Iterator[None]:
        """Room for `num` more while the block runs, beside the `held` that the request has already. ApiError 429 when
        there is none, 400 when there never could be."""
        if held + num > self.limit:
            raise invalid(
                f"the request has more than {self.limit} prompts, and this server takes no more at a time", "prompt"
            )
        if self.inside + num > self.limit:
            message = (
                f"{self.inside} requests are being worked on and no more than {self.limit} may be: try again later"
            )
            raise ApiError(429, message, code="queue_full", headers={"Retry-After": str(self.retry_after_s)})
        self.inside += num
        began = time.monotonic()
        try:
            yield
        finally:
            self.inside -= num
            self._mean_s += _SMOOTHING * (time.monotonic() - began - self._mean_s)

    @property
    def retry_after_s(self) -> int:
        """Seconds after which about half of those inside have left, by how long the last ones took."""
        return min(_MAX_RETRY_S, max(1, round(self._mean_s / 2)))


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
