"""PrefillFirstScheduler: steps of prompts before steps of decodes; who was swapped out before who is new."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from paged_core.api.request import Residency
from paged_core.api.scheduler import Decision, SchedulerNeed, View
from paged_core.scheduling.running_first import RunningFirst, age, first_come

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from paged_core.api.request import Group


class PrefillFirstScheduler(RunningFirst):
    """vLLM's scheduler of 2023. See the README for the rules and where they come from."""

    def __init__(self, need: SchedulerNeed, watermark: float) -> None:
        super().__init__(replace(need, chunked_prefill=False), watermark)

    def decide(self, view: View) -> Decision:
        """Prompts, if any may run and fit; else decodes, and then, if nobody had to leave, who was swapped out."""
        plan, left = Decision(), view.token_budget
        for group in view.prefilling:  # longer than a step could hold, or branches restored one after the other
            left -= self.run(view, plan, group, left)
        self.enter(view, plan, left, self.line(view))
        return plan if plan.run else self._decode(view)

    def line(self, view: View) -> Iterable[Group]:
        """Victims to be computed again by age, then waiting groups as they came; nobody while one is swapped out."""
        return () if any(map(_swapped, view.preempted)) else first_come(view)

    def _decode(self, view: View) -> Decision:
        plan, left = Decision(), view.token_budget - view.num_decode_tokens
        if left >= 0 and view.num_decode_tokens and view.scratch.take_decodes():
            plan.decode_all = True
        elif view.running:
            decoding = {group for group in view.running if group.decoding}
            self.squeeze(view, plan, decoding or set(view.running))
            return plan
        self.enter(view, plan, left, self._returners(view))
        return plan

    def _returners(self, view: View) -> Iterator[Group]:
        """Swapped groups by age, as long as each branch can have a block more: it would soon leave again without."""
        for group in sorted(filter(_swapped, view.preempted), key=age):
            need = view.scratch.need(group, view.scratch.gap(group)) + len(group.live)
            if view.running and need > view.scratch.free:
                return
            yield group


def _swapped(group: Group) -> bool:
    return group.residency is Residency.HOST
