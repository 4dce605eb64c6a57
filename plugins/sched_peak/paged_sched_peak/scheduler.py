"""PeakScheduler: first come, first served, admitted while the predicted peak of memory fits the pool."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paged_core.scheduling.futures import Future, last_length, peak_slots, slots_held
from paged_core.scheduling.running_first import RunningFirst, first_come
from paged_sched_peak.lengths import Lengths

if TYPE_CHECKING:
    from collections.abc import Iterator

    from paged_core.api.request import Group
    from paged_core.api.scheduler import SchedulerNeed, View
    from paged_sched_peak import PeakSettings

_LUCK = "sched_peak.luck"  # note: the quantile at which this group is predicted to end


class PeakScheduler(RunningFirst):
    """Past-future admission. See the README for the formula and what the prediction is."""

    def __init__(self, need: SchedulerNeed, settings: PeakSettings) -> None:
        super().__init__(need, watermark=0.0)
        self._block_size, self._max_len = need.block_size, need.max_len
        self._lengths = Lengths(settings.window)
        self._room = 1.0 - settings.margin

    def line(self, view: View) -> Iterator[Group]:
        """As they came, while the peak of all who run and enter fits."""
        capacity = int(self._room * view.scratch.total) * self._block_size
        futures = [self.future(group) for group in view.running]
        for group in first_come(view):
            futures.append(self.future(group))
            if len(futures) > 1 and peak_slots(futures) > capacity:
                return
            yield group

    def future(self, group: Group) -> Future:
        """Its slots, rounded up to blocks at worst, and the tokens it will still be given by what is remembered."""
        longest, width = group.num_tokens, max(len(group.live), group.num_reserved_rows - len(group.sequences) + 1)
        limit = last_length(group, self._max_len)
        num_prompt = len(group.request.prompt_token_ids)
        length = self._lengths.predict(longest - num_prompt, limit - num_prompt, self._luck(group))
        return Future(slots_held(group) + width * (self._block_size - 1), num_prompt + length - longest, width)

    def forget(self, group: Group) -> None:
        """Remember how long its answers became, unless it was broken off."""
        for seq in group.sequences:
            if seq.rows is not None and seq.finish_reason in ("stop", "length"):
                self._lengths.add(seq.num_output)

    def _luck(self, group: Group) -> float:
        luck = group.notes.get(_LUCK)
        if not isinstance(luck, float):
            luck = group.notes[_LUCK] = self._lengths.next_quantile()
        return luck
