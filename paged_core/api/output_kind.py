"""RequestOutputKind: what a request's outputs hold while it runs."""

from __future__ import annotations

from enum import Enum
from typing import Any

from paged_core.api.values import shown
from paged_core.errors import RequestError


class RequestOutputKind(Enum):
    """vLLM's three kinds.

    CUMULATIVE  every output holds all there is so far
    DELTA       an output holds what is new since the one before; branches without news are left out
    FINAL_ONLY  no output before the last, also where the request is streamed
    """

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2

    @classmethod
    def of(cls, value: Any) -> RequestOutputKind:
        """The kind, also by its name in capital letters, as JSON has it. RequestError for anything else."""
        if isinstance(value, cls):
            return value
        if isinstance(value, str) and value in cls.__members__:
            return cls[value]
        raise RequestError(
            f"output_kind must be one of {', '.join(cls.__members__)}, not {shown(value)}", "output_kind"
        )
