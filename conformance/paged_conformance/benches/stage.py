"""Stage: hand-made moments of an engine, gangs included, for schedulers to decide on. Nothing is ever computed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from paged_conformance.benches.recorder import Recorder
from paged_core.api.allocator import AllocatorNeed
from paged_core.api.params import SamplingParams
from paged_core.api.request import Group, GroupState, Request, Residency, Rows, Sequence
from paged_core.api.scheduler import Decision, SchedulerNeed, View

if TYPE_CHECKING:
    from paged_conformance.candidate import Candidate
    from paged_core.api.allocator import Allocator
    from paged_core.plugins import Plugins

BLOCK = 4
MAX_LEN = 128


class Stage:
    """A pool and groups in any queue. The allocator is the registry's best that forks and swaps.

    Groups that run have all of their prompt computed but its last token (`computed=None`), or as many as said; a gang
    of n has forked behind its prompt.
    """

    def __init__(self, plugins: Plugins, num_blocks: int, num_host_blocks: int = 64, max_rows: int = 64) -> None:
        need = AllocatorNeed(num_blocks, num_host_blocks, BLOCK, max_rows, MAX_LEN, required=frozenset({"fork"}))
        self.allocator: Allocator = plugins.create("alloc", "auto", need)
        self.rows = Rows(max_rows, MAX_LEN)
        self.waiting: list[Group] = []
        self.running: list[Group] = []
        self.preempted: list[Group] = []
        self._num_rows = 0
        self._num_groups = 0

    def waits(self, prompt: int, n: int = 1, *, priority: int = 0) -> Group:
        """A newcomer that asks for `n` branches. Its prompt is its own: no prefix hits."""
        number = self._num_groups
        self._num_groups += 1
        tokens = tuple(1 + (number + i) % 250 for i in range(prompt))
        params = SamplingParams(n=n, max_tokens=40)
        request = Request(f"g{number}", tokens, params, arrival=float(number), priority=priority)
        group = Group(request, [Sequence(request)])
        self.waiting.append(group)
        return group

    def runs(self, prompt: int, n: int = 1, *, computed: int | None = None, priority: int = 0) -> Group | None:
        """A group that decodes with `n` branches of one output token, or has `computed` tokens of its prompt.

        None when the pool has no room for it.
        """
        group = self.waits(prompt, n, priority=priority)
        self.waiting.remove(group)
        first = group.sequences[0]
        self._bind(first)
        self.allocator.open(first)
        done = prompt if computed is None else computed
        if self.allocator.grow(first, done) is None:
            self.allocator.free(first)
            return None
        self.rows.num_computed[first.row] = done
        if computed is None:
            self._fork(group, n)
            for seq in group.sequences:
                self.rows.tokens[seq.row, prompt] = 3 + seq.index
                self.rows.num_tokens[seq.row] += 1
        group.state, group.residency = GroupState.RUNNING, Residency.DEVICE
        self.running.append(group)
        return group

    def leaves(self, group: Group, *, swap: bool) -> None:
        """`group` is preempted: swapped out where there is host room and `swap`, else dropped."""
        self.running.remove(group)
        group.state, group.residency = GroupState.PREEMPTED, Residency.HOST
        if not swap or self.allocator.swap_out(group) is None:
            group.residency = Residency.NONE
            for seq in group.live:
                self.allocator.free(seq)
                self.rows.num_computed[seq.row] = 0
        group.num_preemptions += 1
        self.preempted.append(group)

    def num_blocks_of(self, group: Group) -> int:
        """Distinct device blocks that `group` holds."""
        tables = [self.allocator.tables[seq.row, : -(-seq.num_computed // BLOCK)] for seq in group.live]
        return len(np.unique(np.concatenate(tables)))

    def view(self, token_budget: int, max_num_seqs: int) -> View:
        """This moment as a scheduler sees it."""
        return _StageView(self, token_budget, max_num_seqs)

    def _bind(self, seq: Sequence) -> None:
        seq.bind(self.rows, self._num_rows)
        self._num_rows += 1

    def _fork(self, group: Group, n: int) -> None:
        first = group.sequences[0]
        for index in range(1, n):
            child = Sequence(group.request, index)
            self._bind(child)
            child.parent, child.divergence = first, first.num_computed
            self.rows.num_computed[child.row] = first.num_computed
            self.allocator.fork(first, child)
            group.sequences.append(child)


class _StageView(View):
    def __init__(self, stage: Stage, token_budget: int, max_num_seqs: int) -> None:
        decoding = [group for group in stage.running if group.decoding]
        rows = [seq.row for group in decoding for seq in group.live]
        self.now, self.step = float(len(stage.running) + len(stage.waiting)), 0
        self.token_budget, self.max_num_seqs = token_budget, max_num_seqs
        self.waiting, self.running = list(stage.waiting), list(stage.running)
        self.preempted = list(stage.preempted)
        self.prefilling = [group for group in stage.running if not group.decoding]
        self.num_decode_tokens = len(rows)
        self.num_free_seqs = max_num_seqs - sum(group.num_reserved_rows for group in stage.running)
        self.scratch = stage.allocator.scratch(self.running, np.array(rows, dtype=np.int32))

    def eviction_cost(self, group: Group) -> float:
        """A milli-second a token."""
        return 0.001 * sum(seq.num_computed for seq in group.live)


def decide(candidate: Candidate, stage: Stage, token_budget: int, max_num_seqs: int) -> tuple[Decision, Recorder]:
    """The decision of a fresh scheduler of `candidate` on `stage`, and the recorder that judged it."""
    chunked = candidate.has("chunked_prefill")
    need = SchedulerNeed(token_budget, max_num_seqs, MAX_LEN, BLOCK, stage.allocator.num_blocks, chunked)
    recorder = Recorder(candidate.create(need), chunked=chunked)
    return recorder.decide(stage.view(token_budget, max_num_seqs)), recorder
