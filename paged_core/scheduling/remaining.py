"""Remaining: what a view would be, had some running groups left already."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paged_core.api.scheduler import View

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paged_core.api.request import Group


class Remaining(View):
    """`view` without `victims`, which were given back to its scratch and are named in the decision by whoever chose
    them. They are in no queue of this view: neither do they run nor do they return in the same step."""

    def __init__(self, view: View, victims: Sequence[Group]) -> None:
        gone = set(victims)
        self._view = view
        self.now, self.step = view.now, view.step
        self.token_budget, self.max_num_seqs = view.token_budget, view.max_num_seqs
        self.scratch, self.waiting, self.preempted = view.scratch, view.waiting, view.preempted
        self.running = [group for group in view.running if group not in gone]
        self.prefilling = [group for group in view.prefilling if group not in gone]
        self.num_decode_tokens = view.num_decode_tokens - sum(len(group.live) for group in gone if group.decoding)
        self.num_free_seqs = view.num_free_seqs + sum(group.num_reserved_rows for group in gone)

    def eviction_cost(self, group: Group) -> float:
        """As before."""
        return self._view.eviction_cost(group)
