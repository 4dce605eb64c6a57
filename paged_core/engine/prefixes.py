"""Which decoding sequences share leading blocks, so that attention can read those once for all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from paged_core.api.allocator import Allocator


class SharedPrefixes:
    """Finds groups of rows whose tables begin with the same blocks."""

    def __init__(self, allocator: Allocator) -> None:
        self._allocator = allocator

    def among(self, rows: NDArray[np.int32]) -> list[tuple[NDArray[np.int32], int]]:
        """[(rows, num_blocks)] among decoding `rows`: disjoint sets of at least two, their common leading blocks."""
        return []
