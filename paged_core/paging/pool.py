"""BlockPool: what paged tables need of the pool an allocator plugin brings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np
    from numpy.typing import NDArray


class BlockPool(Protocol):
    """What the tables need of a pool. refs int32 [num_blocks], 0 = free; frozen bool [num_blocks]: published."""

    num_blocks: int
    refs: NDArray[np.int32]
    frozen: NDArray[np.bool_]
    num_shared: int
    num_cached_free: int
    num_evictions: int

    @property
    def num_free(self) -> int:
        """Blocks nobody references, cached ones included."""
        ...

    def allocate(self) -> int:
        """A block with one reference that is not published; evicts a cached one if need be. There is a free one."""
        ...

    def acquire(self, block: int) -> None:
        """One more reference."""
        ...

    def release(self, block: int) -> None:
        """One reference less."""
        ...

    def release_all(self, blocks: Iterable[int]) -> None:
        """Release in the given order: tails first."""
        ...

    def unpublish(self, block: int) -> None:
        """The block's content is about to change."""
        ...
