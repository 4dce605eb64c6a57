"""PagedScratch: a block budget of integers and reference deltas; nothing is allocated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from paged_core.api.allocator import Scratch
from paged_core.api.request import GroupState, Residency, share_out, spread
from paged_core.errors import PluginContractError
from paged_core.paging.hits import find_hits
from paged_core.paging.rules import check_victim

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from paged_core.api.request import Group, Sequence
    from paged_core.paging.allocator import PagedAllocator
    from paged_core.paging.hits import Hits


@dataclass(slots=True)
class _Taken:
    num_tokens: int
    growth: int  # blocks for writing them, without what coming back cost


class PagedScratch(Scratch):
    """What a decision has taken and given back so far, as deltas over the pool.

    `_delta[block]` is the change of the block's references: -1 per victim's table that holds it, +1 per newcomer's
    hit. Partly filled blocks need none: they are shared within one group only, or else published, and writing a
    published block always copies. A block that a newcomer hits in part is charged twice when it was free: itself, for
    it stays until it was copied, and its copy.
    """

    __slots__ = (
        "_allocator",
        "_decode_need",
        "_decode_rows",
        "_decodes_taken",
        "_delta",
        "_free",
        "_hits",
        "_size",
        "_taken",
        "_victims",
    )

    def __init__(self, allocator: PagedAllocator, decode_rows: NDArray[np.int32]) -> None:
        self._allocator = allocator
        self._size = allocator.block_size
        self._free = allocator.pool.num_free
        self._decode_rows = decode_rows
        self._decode_need: int | None = None
        self._decodes_taken = False
        self._delta: dict[int, int] = {}
        self._taken: dict[Group, _Taken] = {}
        self._victims: set[Group] = set()
        self._hits: dict[Sequence, Hits] = {}

    @property
    def free(self) -> int:
        """Blocks free after everything taken and given back."""
        return self._free

    @property
    def total(self) -> int:
        """Blocks of the pool."""
        return self._allocator.num_blocks

    def gap(self, group: Group) -> int:
        """`group.gap` less the prefix hits of a group that is nowhere. Taking does not change it."""
        if group.residency is not Residency.NONE:
            return group.gap
        return sum(own for _, own in self._spread(group))

    # -- taking ---------------------------------------------------------------------------------------------------

    def need(self, group: Group, num_tokens: int) -> int:
        """Blocks that `num_tokens` more tokens of `group` consume."""
        if (taken := self._taken.get(group)) is not None:
            return self._growth(group, taken.num_tokens + num_tokens) - taken.growth
        if self._took_decode(group):
            raise _beyond_gap(group, num_tokens)
        return self._growth(group, num_tokens) + self._return(group)

    def take(self, group: Group, num_tokens: int) -> bool:
        """Consume them, if they fit."""
        if group in self._victims:
            raise PluginContractError(f"law 11: {group.id} was given back in this plan and cannot take blocks")
        need = self.need(group, num_tokens)
        if need > self._free:
            return False
        self._free -= need
        if (taken := self._taken.get(group)) is not None:
            taken.num_tokens += num_tokens
            taken.growth += need
            return True
        self._taken[group] = _Taken(num_tokens, need - self._return(group))
        for block in self._hit_blocks(group):
            self._delta[block] = self._delta.get(block, 0) + 1
        self._decode_need = None
        return True

    def need_decodes(self) -> int:
        """Blocks that `take_decodes` would consume; computed on columns and kept until something changes."""
        if self._decodes_taken:
            return 0
        if self._decode_need is None:
            self._decode_need = self._count_decodes()
        return self._decode_need

    def take_decodes(self) -> bool:
        """One token for every branch that decodes and neither took nor left."""
        need = self.need_decodes()
        if need > self._free:
            return False
        self._free -= need
        self._decodes_taken = True
        return True

    def give_back(self, group: Group) -> int:
        """Evict `group`; blocks that only victims held are free."""
        check_victim(group, self._victims, took=group in self._taken or self._took_decode(group))
        self._victims.add(group)
        self._decode_need = None
        allocator, delta, freed = self._allocator, self._delta, 0
        for seq in group.live:
            if not allocator.on_device(seq):
                continue
            blocks = allocator.tables[seq.row, : allocator.lengths[seq.row]]
            for block, refs in zip(blocks.tolist(), allocator.pool.refs[blocks].tolist(), strict=True):
                delta[block] = change = delta.get(block, 0) - 1
                freed += refs + change == 0
        self._free += freed
        return freed

    # -- counting -------------------------------------------------------------------------------------------------

    def _took_decode(self, group: Group) -> bool:
        return (
            self._decodes_taken and group.state is GroupState.RUNNING and group not in self._victims and group.decoding
        )

    def _count_decodes(self) -> int:
        rows = self._decode_rows
        if self._victims or self._taken:
            gone = [seq.row for group in (*self._victims, *self._taken) for seq in group.live]
            rows = rows[np.isin(rows, gone, invert=True)]
        if not len(rows):
            return 0
        columns = self._allocator.decode_columns(rows)
        return int(np.count_nonzero(columns.crosses)) + self._allocator.num_copies(columns)

    def _spread(self, group: Group) -> list[tuple[Sequence, int]]:
        """Each branch's own part of the gap, after prefix hits."""
        live = group.live
        if len(live) == 1:
            own = live[0].gap
            return [(live[0], own - self._hits_of(live[0]).num_tokens if self._is_nowhere(group) else own)]
        shares = spread(live)
        if not self._is_nowhere(group):
            return shares
        roots = set(self._roots(group))
        return [(seq, own - (self._hits_of(seq).num_tokens if seq in roots else 0)) for seq, own in shares]

    def _growth(self, group: Group, num_tokens: int) -> int:
        """Fresh blocks and copies for `num_tokens` of the group, spread over its branches by the fixed rule."""
        parts = self._spread(group)
        if not 1 <= num_tokens <= sum(own for _, own in parts):
            raise _beyond_gap(group, num_tokens)
        writers: dict[int, int] = {}
        return sum(self._growth_of(seq, num, writers) for seq, num in share_out(parts, num_tokens) if num)

    def _growth_of(self, seq: Sequence, num_tokens: int, writers: dict[int, int]) -> int:
        allocator, size = self._allocator, self._size
        if allocator.on_device(seq):
            length = int(allocator.lengths[seq.row])
        elif allocator.on_host(seq):
            length = len(allocator.host.tables[seq.row])
        else:  # a root comes with its hits; a branch will be forked where it diverged from its parent
            start = self._hits[seq].num_tokens if seq in self._hits else seq.divergence
            return -(-(start + num_tokens) // size) - start // size
        start = seq.num_computed
        index = start // size
        num_fresh = max(0, -(-(start + num_tokens) // size) - length)
        return num_fresh + (index < length and self._copies(seq, index, writers))

    def _copies(self, seq: Sequence, index: int, writers: dict[int, int]) -> bool:
        """Whether this write copies block `index`: all sharers but the last one to write do."""
        allocator = self._allocator
        if seq.row in allocator.host.tables:
            block = allocator.host.tables[seq.row][index]
            refs, frozen = allocator.host.refs[block], False
        else:
            block = int(allocator.tables[seq.row, index])
            refs, frozen = int(allocator.pool.refs[block]), bool(allocator.pool.frozen[block])
        before = writers.get(block, 0)
        writers[block] = before + 1
        return frozen or refs - before > 1

    def _return(self, group: Group) -> int:
        """Blocks that coming to the device costs before anything is written: the host's, or hits that are free now."""
        allocator = self._allocator
        if group.residency is Residency.HOST:
            tables = (allocator.host.tables[seq.row] for seq in group.live if allocator.on_host(seq))
            return len({block for table in tables for block in table})
        refs, delta = allocator.pool.refs, self._delta
        return sum(refs[block] + delta.get(block, 0) == 0 for block in set(self._hit_blocks(group)))

    def _is_nowhere(self, group: Group) -> bool:
        return group.residency is Residency.NONE

    def _roots(self, group: Group) -> list[Sequence]:
        """Branches that are opened rather than forked: those whose parent is not live."""
        live = group.live
        alive = set(live)
        return [seq for seq in live if seq.parent is None or seq.parent not in alive]

    def _hit_blocks(self, group: Group) -> list[int]:
        if not self._is_nowhere(group):
            return []
        return [block for seq in self._roots(group) for block in self._hits_of(seq).blocks]

    def _hits_of(self, seq: Sequence) -> Hits:
        hits = self._hits.get(seq)
        if hits is None:
            hits = self._hits[seq] = find_hits(self._allocator, seq)
        return hits


def _beyond_gap(group: Group, num_tokens: int) -> PluginContractError:
    return PluginContractError(f"the gap rule: {num_tokens} more tokens of {group.id} are not in 1 .. its gap")
