"""Residence: how a group's keys and values leave the device and come back.

The preemption plugin chooses the mode and prices it; the allocator moves block ids; what bytes follow is in `Moves`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np

from paged_core.api.preemption import num_recomputed_tokens
from paged_core.api.request import Residency
from paged_core.errors import PluginContractError

if TYPE_CHECKING:
    from paged_core.api.allocator import Allocator, BlockCopy, SwapPair
    from paged_core.api.batch import RowStart
    from paged_core.api.preemption import Preemption
    from paged_core.api.request import Group, Sequence
    from paged_core.engine.branches import Branches
    from paged_core.engine.queues import Queues

log = logging.getLogger("paged_core.engine")


class Moves:
    """What one decision moves before it computes."""

    def __init__(self) -> None:
        self.swap_out: list[SwapPair] = []
        self.swap_in: list[SwapPair] = []
        self.copies: list[BlockCopy] = []
        self.started: list[RowStart] = []
        self.returned: list[Sequence] = []  # whose tables came back from the host


class Residence:
    """Evicts, opens and returns groups. By mode: `num_preemptions` counts evictions, `preempted_tokens` the tokens
    whose keys and values left the device, `preemption_s` the seconds that the plugin expected them to cost."""

    def __init__(self, queues: Queues, allocator: Allocator, branches: Branches, preemption: Preemption) -> None:
        self._queues = queues
        self._allocator = allocator
        self._branches = branches
        self._preemption = preemption
        self._warned_no_host_room = False
        self.num_preemptions = {"swap": 0, "recompute": 0}
        self.preempted_tokens = {"swap": 0, "recompute": 0}
        self.preemption_s = {"swap": 0.0, "recompute": 0.0}

    def evict(self, group: Group, moves: Moves) -> None:
        """Swap `group` out if the plugin says so and the host has room, else drop its blocks to be recomputed."""
        chosen = self._preemption.evict(group, self._num_blocks(group), self._allocator.stats().host_free)
        mode, num_tokens = chosen.mode, num_recomputed_tokens(group)
        if mode == "swap":
            pairs = self._allocator.swap_out(group)
            if pairs is None:
                mode = "recompute"
                if not self._warned_no_host_room:
                    self._warned_no_host_room = True
                    log.warning("no host room to swap %s out: it is recomputed instead (said once)", group.id)
            else:
                moves.swap_out += pairs
        if mode == "recompute":
            for seq in group.live:
                self._allocator.free(seq)
                self._queues.rows.num_computed[seq.row] = 0
            self._branches.drop(group)
        self.num_preemptions[mode] += 1
        self.preempted_tokens[mode] += num_tokens
        self.preemption_s[mode] += chosen.cost_s
        self._queues.preempt(group, Residency.HOST if mode == "swap" else Residency.NONE)

    def eviction_cost(self, group: Group) -> float:
        """Seconds the plugin expects leaving and coming back to cost."""
        return self._preemption.evict(group, self._num_blocks(group), self._allocator.stats().host_free).cost_s

    def open(self, group: Group) -> int:
        """Give every root of the group's fork tree a table; returns how many tokens the last one hit."""
        hits = 0
        for seq in group.live:
            if seq not in self._branches.away:
                hits = self._allocator.open(seq)
                self._queues.rows.num_computed[seq.row] = hits
        self._branches.restore(group)
        self._queues.settle(group)
        return hits

    def swap_in(self, group: Group, moves: Moves) -> None:
        """Bring a swapped group back, for which the scheduler's scratch had room."""
        pairs = self._allocator.swap_in(group)
        if pairs is None:
            raise no_room(group, "swapping in")
        moves.swap_in += pairs
        moves.returned += group.live
        self._queues.settle(group)

    def _num_blocks(self, group: Group) -> int:
        size = self._allocator.block_size
        tables = [self._allocator.tables[seq.row, : -(-seq.num_computed // size)] for seq in group.live]
        return len(np.unique(np.concatenate(tables)))


def no_room(group: Group, what: str) -> PluginContractError:
    """The error of a decision that the scheduler's scratch would not have accepted."""
    return PluginContractError(f"no room for {group.id} ({what}): the scheduler ran what its scratch did not accept")
