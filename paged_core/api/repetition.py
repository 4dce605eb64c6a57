"""RepetitionDetectionParams: when an output counts as a loop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from paged_core.api.values import integer, shown
from paged_core.errors import RequestError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MAX_PATTERN_SIZE = 1024
MAX_COUNT = 1024
_FIELD = "repetition_detection"


@dataclass(frozen=True, slots=True)
class RepetitionDetectionParams:
    """A sequence ends when its last tokens are `min_count` times the same pattern. Names and defaults are vLLM's.

    max_pattern_size  tokens of the longest pattern looked for; 0 = off
    min_pattern_size  of the shortest; 0 = 1
    min_count         repetitions that end the sequence, 2 or more
    """

    max_pattern_size: int = 0
    min_pattern_size: int = 0
    min_count: int = 0

    def __post_init__(self) -> None:
        try:
            integer("max_pattern_size", self.max_pattern_size, 0, MAX_PATTERN_SIZE)
            integer("min_pattern_size", self.min_pattern_size, 0, self.max_pattern_size)
            integer("min_count", self.min_count, 2 if self.max_pattern_size else 0, MAX_COUNT)
        except RequestError as error:
            raise RequestError(f"{_FIELD}: {error}", _FIELD) from None

    @classmethod
    def of(cls, value: Any) -> RepetitionDetectionParams | None:
        """The parameters, also from a JSON object; None where nothing is to be detected."""
        if isinstance(value, Mapping):
            names = [item.name for item in fields(cls)]
            unknown = [name for name in value if name not in names]
            if unknown:
                raise RequestError(f"{_FIELD} has no field {shown(unknown[0])}; it has {', '.join(names)}", _FIELD)
            value = cls(**value)
        if value is not None and not isinstance(value, cls):
            raise RequestError(f"{_FIELD} must be RepetitionDetectionParams or an object, not {shown(value)}", _FIELD)
        return value if value is not None and value.max_pattern_size else None

    def found_in(self, output: NDArray[np.int32]) -> bool:
        """Whether `output` [tokens] ends with a pattern that stands there `min_count` times in a row."""
        longest = min(self.max_pattern_size, len(output) // self.min_count)
        shortest = max(self.min_pattern_size, 1)
        if longest < shortest:
            return False
        # A pattern of size p repeats: every token but those of its first turn equals the one p before it. The last
        # token alone rules nearly all sizes out.
        before = output[len(output) - 1 - longest : len(output) - shortest][::-1]  # of sizes shortest .. longest
        for offset in (before == output[-1]).nonzero()[0]:
            size = shortest + int(offset)
            tail = output[len(output) - size * self.min_count :]
            if (tail[size:] == tail[:-size]).all():
                return True
        return False
