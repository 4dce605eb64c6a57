"""FreeList: the free blocks in the order of their reuse."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class FreeList:
    """A doubly linked list threaded through two arrays, so that any block leaves in O(1) without allocation.

    Block b's neighbours are `_next[b]` and `_prev[b]`; the extra entry `num_blocks` is the sentinel that closes the
    ring, front after it and back before it. Blocks 0, 1, 2, ... are free in this order at first.
    """

    __slots__ = ("_end", "_next", "_prev", "num_free")

    def __init__(self, num_blocks: int) -> None:
        self._end = num_blocks
        self._next: list[int] = [*range(1, num_blocks + 1), 0]
        self._prev: list[int] = [num_blocks, *range(num_blocks)]
        self.num_free = num_blocks

    def __iter__(self) -> Iterator[int]:
        block = self._next[self._end]
        while block != self._end:
            yield block
            block = self._next[block]

    def pop_front(self) -> int:
        """Remove and return the next block to reuse. The caller made sure that there is one."""
        block = self._next[self._end]
        assert block != self._end, "the free list is empty"
        self.remove(block)
        return block

    def remove(self, block: int) -> None:
        """Take a free block out of the middle."""
        before, after = self._prev[block], self._next[block]
        self._next[before] = after
        self._prev[after] = before
        self.num_free -= 1

    def push_front(self, block: int) -> None:
        """Reuse `block` next."""
        self._insert(block, self._end)

    def push_back(self, block: int) -> None:
        """Reuse `block` last."""
        self._insert(block, self._prev[self._end])

    def linked_both_ways(self) -> bool:
        """Whether every forward link has its backward twin; for audits."""
        return all(self._prev[self._next[block]] == block for block in (self._end, *self))

    def _insert(self, block: int, before: int) -> None:
        after = self._next[before]
        self._next[before] = self._prev[after] = block
        self._prev[block], self._next[block] = before, after
        self.num_free += 1
