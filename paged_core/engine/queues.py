"""Queues: every unfinished group in exactly one queue, and the table rows their sequences hold.

A row is given at admission and kept until the group ends, preempted or not. `decode_rows` is the column index of all
branches whose group decodes; it is rebuilt only after an event (admission, end of a prefill, preemption, finish).
"""

from __future__ import annotations

from bisect import insort
from typing import TYPE_CHECKING

import numpy as np

from paged_core.api.request import GroupState, Residency

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from paged_core.api.request import Group, Rows, Sequence


class Queues:
    """Waiting, running and preempted groups. Only the ledger moves them."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.waiting: dict[str, Group] = {}
        self.preempted: list[Group] = []
        self.by_id: dict[str, Group] = {}
        self.prefilling: dict[str, Group] = {}
        self.num_reserved = 0  # rows reserved by running groups
        self.leaving: dict[str, Group] = {}  # running groups that end with the step in flight
        self.seq_of_row: list[Sequence | None] = [None] * rows.capacity
        self.group_of_row: list[Group | None] = [None] * rows.capacity
        self._running: dict[str, Group] = {}
        self._free_rows = list(range(rows.capacity - 1, -1, -1))
        self._running_list: list[Group] | None = None
        self._decode_rows: NDArray[np.int32] | None = None
        self._decode_seqs: list[Sequence] = []

    @property
    def running(self) -> list[Group]:
        """Running groups, oldest admission first, but those that are leaving. Do not keep or change the list."""
        if self._running_list is None:
            self._running_list = [group for group in self._running.values() if group.id not in self.leaving]
        return self._running_list

    @property
    def num_free_rows(self) -> int:
        """Rows nobody holds."""
        return len(self._free_rows)

    @property
    def decode_rows(self) -> NDArray[np.int32]:
        """Rows of all live branches of running groups that decode, int32, in running order."""
        if self._decode_rows is None:
            decoding = [group for group in self.running if group.id not in self.prefilling]
            self._decode_seqs = [seq for group in decoding for seq in group.live]
            self._decode_rows = np.fromiter((seq.row for seq in self._decode_seqs), np.int32, len(self._decode_seqs))
        return self._decode_rows

    @property
    def decode_seqs(self) -> list[Sequence]:
        """The sequences of `decode_rows`, same order."""
        _ = self.decode_rows
        return self._decode_seqs

    def is_running(self, group: Group) -> bool:
        """Whether `group` is in the running queue."""
        return group.id in self._running

    def add(self, group: Group) -> None:
        """A new group waits at the end of the queue."""
        self.by_id[group.id] = group
        self.waiting[group.id] = group

    def admit(self, group: Group) -> None:
        """waiting -> running; its sequences get their rows."""
        del self.waiting[group.id]
        for seq in group.sequences:
            self.give_row(group, seq)
        self._start(group)

    def give_row(self, group: Group, seq: Sequence) -> None:
        """A row for a sequence of a group that was admitted; `num_reserved_rows` were set aside for it."""
        row = self._free_rows.pop()
        seq.bind(self.rows, row)
        self.seq_of_row[row], self.group_of_row[row] = seq, group

    def resume(self, group: Group) -> None:
        """preempted -> running."""
        self.preempted.remove(group)
        self._start(group)

    def preempt(self, group: Group, residency: Residency) -> None:
        """running -> preempted, keys and values on the host or gone."""
        self._stop(group)
        group.state, group.residency = GroupState.PREEMPTED, residency
        group.num_preemptions += 1
        insort(self.preempted, group, key=lambda member: member.arrival)

    def leave(self, group: Group) -> None:
        """A running group whose last token is in flight: nothing is planned for it any more."""
        self.leaving[group.id] = group
        self.prefilling.pop(group.id, None)
        self._running_list = self._decode_rows = None

    def remove(self, group: Group) -> list[int]:
        """Out of whichever queue it is in; returns the rows it held, to be given back."""
        if group.state is GroupState.WAITING:
            del self.waiting[group.id]
        elif group.state is GroupState.PREEMPTED:
            self.preempted.remove(group)
        else:
            self._stop(group)
        group.state, group.residency = GroupState.FINISHED, Residency.NONE
        del self.by_id[group.id]
        held = [seq.row for seq in group.sequences if seq.row >= 0]
        for row in held:
            self.seq_of_row[row] = self.group_of_row[row] = None
        return held

    def give_back(self, rows: list[int]) -> None:
        """Rows of a group that was removed are free again."""
        self._free_rows.extend(reversed(rows))

    def settle(self, group: Group) -> None:
        """The group's gaps changed: file it under prefilling or decoding."""
        was = group.id in self.prefilling
        if group.decoding:
            self.prefilling.pop(group.id, None)
        else:
            self.prefilling[group.id] = group
        if was != (group.id in self.prefilling):
            self._decode_rows = None

    def branch_ended(self) -> None:
        """A branch of a group that goes on has ended: the decode columns are stale."""
        self._decode_rows = None

    def _start(self, group: Group) -> None:
        group.state, group.residency = GroupState.RUNNING, Residency.DEVICE
        self._running[group.id] = group
        self.num_reserved += group.num_reserved_rows
        self.prefilling[group.id] = group
        self._running_list = self._decode_rows = None

    def _stop(self, group: Group) -> None:
        del self._running[group.id]
        self.num_reserved -= group.num_reserved_rows
        self.prefilling.pop(group.id, None)
        self.leaving.pop(group.id, None)
        self._running_list = self._decode_rows = None
        self._decode_seqs = []  # an idle engine keeps no sequence alive
