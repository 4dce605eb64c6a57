"""AllocatorModel: what a block allocator has to be, as plain dictionaries and sets; every count follows from tables.

The model never chooses a block: it is told which blocks the judged allocator chose and says whether that was lawful.
Its pretend memory holds, for every slot, a mark that depends on all tokens up to that position, on adapter and on
salt. A sequence that reads its own marks through its table reads its own past, however its blocks were shared, copied,
hit or swapped.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from paged_core.api.allocator import BlockCopy, SwapPair
    from paged_core.api.request import Group, Sequence


class Growth(NamedTuple):
    """What writing some positions of a sequence takes."""

    first: int  # index of the first block written
    last: int  # blocks in the table afterwards
    num_fresh: int
    must_copy: bool  # the first block is shared
    may_copy: bool  # or it is published: it is copied, or nobody can hit it any more

    @property
    def least_blocks(self) -> int:
        """Blocks that leave the free list at least."""
        return self.num_fresh + self.must_copy

    @property
    def most_blocks(self) -> int:
        """Blocks that leave the free list at most."""
        return self.num_fresh + self.may_copy


class AllocatorModel:
    """Tables per sequence on either tier, and the memory behind them. Block ids are the judged allocator's.

    moves        tables may move as a whole when they grow: every block that holds a token is then copied
    pins         what a sequence copied and no table holds: it stays until the next scratch, or until the copier leaves
    published    full blocks that a newcomer might hit
    """

    def __init__(self, num_blocks: int, num_host_blocks: int, block_size: int, *, moves: bool = False) -> None:
        self.moves = moves
        self.num_blocks = num_blocks
        self.num_host_blocks = num_host_blocks
        self.block_size = block_size
        self.tables: dict[Sequence, list[int]] = {}
        self.host_tables: dict[Sequence, list[int]] = {}
        self.pins: dict[Sequence, list[int]] = {}
        self.published: set[int] = set()
        self.num_copies = 0
        self.num_hits = 0  # tokens
        self._memory: dict[tuple[int, int], int] = {}  # (block, offset) -> mark
        self._host_memory: dict[tuple[int, int], int] = {}

    # -- counts, recomputed every time ----------------------------------------------------------------------------

    def refs(self) -> Counter[int]:
        """References that tables and pins hold, by device block."""
        return Counter(block for held in (*self.tables.values(), *self.pins.values()) for block in held)

    @property
    def free(self) -> int:
        """Device blocks in no table and not pinned."""
        return self.num_blocks - len(self.refs())

    @property
    def shared(self) -> int:
        """Device blocks in more than one table."""
        return sum(count > 1 for count in self.refs().values())

    @property
    def saved(self) -> int:
        """References beyond the first of each device block."""
        return sum(count - 1 for count in self.refs().values())

    def ref_counts(self, length: int) -> tuple[int, ...]:
        """Blocks held once, twice and so on; the last of `length` places holds the rest."""
        counted = Counter(min(count, length) for count in self.refs().values())
        return tuple(counted[count] for count in range(1, length + 1))

    def host_refs(self) -> Counter[int]:
        """References that tables hold, by host block."""
        return Counter(block for table in self.host_tables.values() for block in table)

    @property
    def host_free(self) -> int:
        """Host blocks in no table."""
        return self.num_host_blocks - len(self.host_refs())

    def blocks_of(self, group: Group) -> set[int]:
        """Distinct device blocks of a group's live branches."""
        return {block for seq in group.live for block in self.tables.get(seq, [])}

    def host_blocks_of(self, group: Group) -> set[int]:
        """Distinct host blocks of a group's live branches."""
        return {block for seq in group.live for block in self.host_tables.get(seq, [])}

    def growth(self, seq: Sequence, num_tokens: int) -> Growth:
        """What `num_tokens` more positions of `seq` take now."""
        table, start = self.tables[seq], seq.num_computed
        first, last = start // self.block_size, self.cover(start + num_tokens)
        shared = first < len(table) and self.refs()[table[first]] > 1
        closed = shared or (first < len(table) and table[first] in self.published)
        return Growth(first, max(last, len(table)), max(0, last - len(table)), shared, closed)

    def cover(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` positions."""
        return -(-num_tokens // self.block_size)

    def freed_by(self, victims: Iterable[Group]) -> int:
        """Device blocks that the set of victims gives back: those nobody else has in a table."""
        refs = self.refs()
        for group in victims:
            refs -= Counter(block for seq in group.live for block in self.tables.get(seq, []))
        return self.num_blocks - len(refs) - self.free

    # -- what the judged allocator did: each yields the laws that it broke ----------------------------------------

    def grown(
        self, seqs: list[Sequence], num_tokens: int, seen: list[list[int]], copies: list[BlockCopy]
    ) -> Iterator[str]:
        """All of `seqs` grew by `num_tokens`; `seen` are their table rows now. Enters it; yields broken laws."""
        sources = {dst: src for src, dst in copies}
        if len(sources) < len(copies) or set(sources) & {src for src, _ in copies}:
            yield f"law 9: a copy's destination is used twice: {copies}"
        (least, most), used = self._copies_due(seqs), set(self.refs())
        copied: list[tuple[Sequence, int]] = []
        for seq, row in zip(seqs, seen, strict=True):
            want, old = self.growth(seq, num_tokens), self.tables[seq]
            for index, block in enumerate(row[: want.last]):
                if index < len(old) and block == old[index]:
                    continue
                if index < len(old) and not self._may_change(seq, index, sources.get(block) == old[index]):
                    yield f"law 1: entry {index} of a table became {block} instead of {old[index]} without a copy"
                if block in used or not 0 <= block < self.num_blocks:
                    yield f"laws 2, 9: block {block} was handed out, but is held, pinned or none of {self.num_blocks}"
                used.add(block)
                self.published.discard(block)
                copied += [(seq, old[index])] if index < len(old) else []
            self.tables[seq] = list(row[: want.last])
        for seq, source in reversed(copied):
            if source not in self.refs():
                self.pins.setdefault(seq, []).append(source)
        refs = self.refs()
        for src, dst in copies:
            if src not in refs or dst not in refs:
                yield f"law 9: copy {src} -> {dst} names a block that nobody holds"
            self._move([(src, dst)], self._memory, self._memory)
        self.num_copies += len(copies)
        for seq in seqs:
            for index in self.written(seq, num_tokens):
                block = self.tables[seq][index]
                if refs[block] != 1:
                    yield f"law 4: block {block} is about to be written, but {refs[block]} tables hold it"
        if not (least <= len(copies) <= most or self.moves):
            yield f"copy-on-write: {len(copies)} copies where {least} to {most} were due (of k sharers k - 1 copy)"

    def moved_out(self, group: Group, pairs: list[SwapPair]) -> Iterator[str]:
        """`group` went to the host."""
        taken = {block for table in self.host_tables.values() for block in table}
        yield from _lawful_move(pairs, self.blocks_of(group), taken, self.num_host_blocks)
        self._move(pairs, self._memory, self._host_memory)
        moved = dict(pairs)
        for seq in group.live:
            self.host_tables[seq] = [moved.get(block, -1) for block in self.tables.pop(seq)]
            self.pins.pop(seq, None)

    def moved_in(self, group: Group, pairs: list[SwapPair]) -> Iterator[str]:
        """`group` came back."""
        yield from _lawful_move(pairs, self.host_blocks_of(group), set(self.refs()), self.num_blocks)
        self._move(pairs, self._host_memory, self._memory)
        moved = dict(pairs)
        self.published.difference_update(moved.values())
        for seq in group.live:
            self.tables[seq] = [moved.get(block, -1) for block in self.host_tables.pop(seq)]

    def written(self, seq: Sequence, num_tokens: int) -> range:
        """Table entries that the next `num_tokens` positions of `seq` touch."""
        start = seq.num_computed
        return range(start // self.block_size, self.cover(start + num_tokens))

    def _may_change(self, seq: Sequence, index: int, copied: bool) -> bool:
        """Whether a block of a growing table may be another one now: the first that is written, as a copy."""
        if self.moves:
            return copied or index >= self.cover(seq.num_computed)
        return copied and index == seq.num_computed // self.block_size

    def _copies_due(self, seqs: list[Sequence]) -> tuple[int, int]:
        """Of k sharers of the block they write next, all but the last holder copy it; of a published one, maybe all."""
        firsts = ((self.tables[seq], seq.num_computed // self.block_size) for seq in seqs)
        writers = Counter(table[first] for table, first in firsts if first < len(table))
        refs = self.refs()
        least = sum(min(count, refs[block] - 1) for block, count in writers.items())
        return least, least + sum(count == refs[block] for block, count in writers.items() if block in self.published)

    # -- memory ---------------------------------------------------------------------------------------------------

    def write(self, seq: Sequence, num_tokens: int) -> None:
        """Write the marks of the next `num_tokens` positions of `seq` through its table."""
        marks, start = marks_of(seq), seq.num_computed
        self.published.difference_update(self.tables[seq][index] for index in self.written(seq, num_tokens))
        for position in range(start, start + num_tokens):
            self._memory[self._slot(seq, position)] = marks[position]

    def first_foreign(self, seq: Sequence, num_tokens: int) -> int | None:
        """The first of the leading `num_tokens` positions at which `seq` does not read its own past; None: all fine."""
        for position, mark in enumerate(marks_of(seq)[:num_tokens]):
            if self._memory.get(self._slot(seq, position)) != mark:
                return position
        return None

    def _slot(self, seq: Sequence, position: int) -> tuple[int, int]:
        return self.tables[seq][position // self.block_size], position % self.block_size

    def _move(
        self,
        pairs: Iterable[tuple[int, int]],
        source: dict[tuple[int, int], int],
        target: dict[tuple[int, int], int],
    ) -> None:
        moved = [(dst, [source.get((src, offset)) for offset in range(self.block_size)]) for src, dst in pairs]
        for dst, marks in moved:
            for offset, mark in enumerate(marks):
                target.pop((dst, offset), None)
                if mark is not None:
                    target[dst, offset] = mark


def _lawful_move(pairs: list[SwapPair], sources: set[int], taken: set[int], num_blocks: int) -> Iterator[str]:
    moved = Counter(src for src, _ in pairs)
    if twice := [block for block, count in moved.items() if count > 1]:
        yield f"swap: a shared block moves once, but blocks {twice} moved more often: {pairs}"
    if set(moved) != sources:
        yield f"swap: blocks {sorted(moved)} moved, the tables hold {sorted(sources)}"
    targets = {dst for _, dst in pairs}
    if len(targets) < len(pairs) or targets & taken or not targets <= set(range(num_blocks)):
        yield f"law 2: the destinations {sorted(targets)} are not distinct free blocks (in use: {sorted(taken)})"


def marks_of(seq: Sequence) -> list[int]:
    """One number per position that depends on every token up to it, the adapter and the salt."""
    mark = hash((seq.request.adapter, "adapter", seq.request.cache_salt, "salt"))
    marks = []
    for token in seq.token_ids.tolist():
        mark = hash((mark, token))
        marks.append(mark)
    return marks
