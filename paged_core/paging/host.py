"""HostPool: the host tier, where swapped-out sequences keep their blocks."""

from __future__ import annotations


class HostPool:
    """Host blocks with reference counts, and the tables of the sequences that live there.

    tables     table row -> host blocks in order
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.refs = [0] * num_blocks
        self.free = list(range(num_blocks - 1, -1, -1))
        self.tables: dict[int, list[int]] = {}

    def allocate(self) -> int:
        """A host block without references yet. There must be a free one."""
        return self.free.pop()

    def put(self, row: int, blocks: list[int]) -> None:
        """`row` now lives here; every entry is one reference."""
        for block in blocks:
            self.refs[block] += 1
        self.tables[row] = blocks

    def drop(self, row: int) -> None:
        """`row` leaves; blocks nobody else references are free."""
        for block in reversed(self.tables.pop(row)):
            self.refs[block] -= 1
            if self.refs[block] == 0:
                self.free.append(block)
