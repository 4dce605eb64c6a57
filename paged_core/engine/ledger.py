"""The ledger: policy proposes, the ledger disposes.

It is the only owner of group states and the only caller of allocator and preemption. `apply` turns an audited decision
into a StepPlan, `commit` enters a step's result. Order inside `apply`, on which `Scratch` relies: victims leave, all
newcomers and returners are opened (prefix hits taken), swapped groups return, then tables grow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from paged_core.api.batch import RowStart, StepPlan, StepResult
from paged_core.api.params import branch_seed
from paged_core.api.request import Group, GroupState, Request, Residency, Rows, Sequence, share_out, spread
from paged_core.engine.audit import audit
from paged_core.engine.beams import Beams
from paged_core.engine.branches import Branches
from paged_core.engine.prefixes import SharedPrefixes
from paged_core.engine.queues import Queues
from paged_core.engine.residence import Moves, Residence, no_room
from paged_core.engine.stepplan import StepPlanBuilder
from paged_core.engine.view import LedgerView
from paged_core.errors import PluginContractError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from paged_core.api.allocator import Allocator
    from paged_core.api.preemption import Preemption
    from paged_core.api.scheduler import Decision, Run
    from paged_core.engine.beam_search import BeamSearch


class Ledger:
    """The books of one engine. `seed_of` gives the seed of a request that brought none."""

    def __init__(self, allocator: Allocator, preemption: Preemption, rows: Rows, limits: tuple[int, int]) -> None:
        self.allocator = allocator
        self.rows = rows
        self.queues = Queues(rows)
        self.branches = Branches(self.queues, allocator)
        self.beams = Beams(self.queues, allocator, self.branches)
        self.prefixes = SharedPrefixes(allocator, rows)
        self.token_budget, self.max_num_seqs = limits
        self.step = 0
        self.prompt_due: dict[int, int] = {}  # row -> first prompt position whose logprobs are still wanted
        self.num_cached: dict[str, int] = {}  # group id -> tokens of its first admission found in the prefix cache
        self._residence = Residence(self.queues, allocator, self.branches, preemption)
        self._ended_rows: list[int] = []
        self._ended_groups: list[Group] = []
        self._seeds: dict[str, int] = {}

    @property
    def num_preemptions(self) -> dict[str, int]:
        """Groups evicted so far, by mode."""
        return self._residence.num_preemptions

    # -- what the engine asks -------------------------------------------------------------------------------------

    def add(self, request: Request, seed: int, search: BeamSearch | None = None) -> Group:
        """A new group waits. `seed` starts its random stream; `search` makes it a beam search."""
        group = Group(request, [Sequence(request)])
        if search is not None:
            self.beams.add(group, search)
        self._seeds[group.id] = seed
        self.queues.add(group)
        return group

    def view(self, now: float) -> LedgerView:
        """What the scheduler may see now."""
        scratch = self.allocator.scratch(self.queues.running, self.queues.decode_rows)
        limits = (self.token_budget, self.max_num_seqs)
        return LedgerView(self.queues, scratch, limits, (now, self.step), self._residence.eviction_cost)

    def apply(self, decision: Decision, view: LedgerView) -> StepPlan:
        """Audit `decision` and carry it out. Raises PluginContractError naming the broken law."""
        audit(decision, view)
        moves = Moves()
        changed = self.beams.take_changed()
        moves.started += [self._row_start(seq) for seq in changed]
        for group in decision.preempt:
            self._residence.evict(group, moves)
        decode_rows, decode_seqs = self.queues.decode_rows, self.queues.decode_seqs
        self._bring(decision, moves, view.now)
        builder = StepPlanBuilder(self.rows, self.step)
        boundary = decode_rows[:0]
        if decision.decode_all and len(decode_rows):
            boundary = self._grow_decodes(decode_rows, decode_seqs, moves)
            builder.decode(decode_rows)
        shared = self.prefixes.among(decode_rows) if decision.decode_all else []
        for run in decision.run:
            self._grow_run(run, builder, moves)
        plan = builder.build()
        plan.changed_rows = np.concatenate([boundary, plan.changed_rows, _rows(changed)])
        if self.beams:
            plan.num_candidates = self.beams.wanted[plan.sample_rows]
        plan.swap_out, plan.copies, plan.swap_in = moves.swap_out, moves.copies, moves.swap_in
        plan.started, plan.shared_prefixes = moves.started, shared
        plan.ended, self._ended_rows = self._ended_rows, []
        self.step += 1
        return plan

    def commit(self, plan: StepPlan, result: StepResult) -> None:
        """Enter a collected step: computed lengths, sampled tokens, publishable blocks, finished prefills."""
        rows, columns = plan.rows, self.rows
        size = self.allocator.block_size
        before = columns.num_computed[rows]
        columns.num_computed[rows] = plan.seq_lens
        self.branches.fork_pending()
        if result.tokens.shape[1] != 1:
            self._check_forced(plan.sample_rows, result)
        own = result.num_tokens >= 1
        if self.beams:
            own &= ~self.beams.drew(plan.sample_rows)
        self.append(plan.sample_rows[own], result.tokens[own, 0])
        for i in np.nonzero(plan.seq_lens // size > before // size)[0]:
            seq = self.queues.seq_of_row[rows[i]]
            assert seq is not None
            self.allocator.publish(seq)
        for row, (first, top) in result.prompt_logprobs.items():
            self._prompt_collected(row, first + len(top.chosen))
        if self.beams:
            self.beams.select(plan, result)
        for group in list(self.queues.prefilling.values()):
            self.branches.restore(group)
            self.queues.settle(group)

    def append(self, rows: NDArray[np.int32], tokens: NDArray[np.int32]) -> None:
        """One more token for each of `rows`. `commit` enters what was drawn; the emitter, which knows where a sequence
        ends, what was forced after it."""
        columns = self.rows
        columns.tokens[rows, columns.num_tokens[rows]] = tokens
        columns.num_tokens[rows] += 1

    def settle(self, rows: NDArray[np.int32]) -> None:
        """Gaps of running `rows` changed by `append`."""
        for row in rows:
            group = self.queues.group_of_row[row]
            assert group is not None
            self.queues.settle(group)

    def finish_sequence(self, seq: Sequence, reason: str) -> None:
        """End one branch: its blocks are free at once; the group ends with its last branch."""
        seq.finish_reason = reason
        group = self.queues.by_id[seq.request.id]
        self.branches.end(group, seq)
        if seq.row >= 0:
            self.allocator.free(seq)
        if group.live:
            self.queues.branch_ended()
            self.queues.settle(group)
        else:
            self._remove(group)

    def finish_group(self, group: Group, reason: str) -> None:
        """End all live branches for one reason, in whichever queue the group is."""
        live = group.live
        self.branches.away.difference_update(live)
        for seq in live:
            seq.finish_reason = reason
            if seq.row >= 0:
                self.allocator.free(seq)
        self._remove(group)

    def outgrown(self, view: LedgerView) -> Group | None:
        """The group that can never continue though nothing else holds blocks (design 4b.9), if there is one."""
        resident = self.queues.running
        if len(resident) == 1:
            group = resident[0]
            need = len(group.live) if group.decoding else 1
            return group if view.scratch.need(group, need) > view.scratch.free else None
        if not resident and self.queues.preempted:
            group = self.queues.preempted[0]
            return group if view.scratch.need(group, view.scratch.gap(group)) > view.scratch.free else None
        return None

    def take_ended(self) -> list[Group]:
        """Groups that ended since the last call, for the scheduler to forget."""
        ended, self._ended_groups = self._ended_groups, []
        return ended

    # -- coming and growing ---------------------------------------------------------------------------------------

    def _bring(self, decision: Decision, moves: Moves, now: float) -> None:
        swapped = [group for group in decision.resume if group.residency is Residency.HOST]
        for group in decision.resume:
            dropped = group.residency is Residency.NONE
            self.queues.resume(group)
            if dropped:
                self._residence.open(group)
        for group, _ in decision.run:
            if group.state is GroupState.WAITING:
                self.queues.admit(group)
                self._admitted(group, moves, now)
        for group in swapped:
            self._residence.swap_in(group, moves)

    def _admitted(self, group: Group, moves: Moves, now: float) -> None:
        params = group.request.params
        group.first_scheduled = now
        (seq,) = group.sequences
        self.beams.admitted(group)
        if params.prompt_logprobs is not None:
            self.prompt_due[seq.row] = 1
            seq.cold = len(group.request.prompt_token_ids) > 1 or bool(params.skip_reading_prefix_cache)
        moves.started.append(self._row_start(seq))
        self.num_cached[group.id] = self._residence.open(group)

    def _row_start(self, seq: Sequence) -> RowStart:
        """Branch i draws from the stream of its own seed, so that it equals a request that brings that seed."""
        request = seq.request
        seed = branch_seed(self._seeds[request.id], seq.index)
        prompt, output = np.split(seq.token_ids.copy(), [len(request.prompt_token_ids)])
        return RowStart(seq.row, request.params.for_sampler(), seed, 0, prompt, output)

    def _grow_decodes(self, rows: NDArray[np.int32], seqs: list[Sequence], moves: Moves) -> NDArray[np.int32]:
        copies = self.allocator.grow_decodes(seqs, rows)
        if copies is None:
            raise PluginContractError("decode_all does not fit: the scheduler ran what its scratch did not accept")
        moves.copies += copies
        return rows if copies else rows[self.rows.num_computed[rows] % self.allocator.block_size == 0]

    def _grow_run(self, run: Run, builder: StepPlanBuilder, moves: Moves) -> None:
        """Spread the run over the branches. A gang samples only when all of it is here and caught up."""
        group, num_tokens = run
        parts, away = spread(group.live), self.branches.away
        samples = num_tokens == sum(own for _, own in parts)
        if samples and any(seq in away for seq, _ in parts):
            samples, num_tokens = False, num_tokens - 1
        for seq, num in share_out(parts, num_tokens):
            if num == 0 or seq in away:
                continue
            copies = self.allocator.grow(seq, num)
            if copies is None:
                raise no_room(group, f"{num} more tokens")
            moves.copies += copies
            draws = self._draws(seq, group, moves) if samples else ()
            builder.chunk(seq, num, draws=draws, prompt_from=self.prompt_due.get(seq.row))

    def _draws(self, seq: Sequence, group: Group, moves: Moves) -> list[int]:
        """Rows that sample from `seq` now: its own, and those of the branches that fork from it with this draw."""
        forks = seq.num_output == 0 and seq.index == 0 and self.beams.search(group) is None
        children = self.branches.reserve(group) if forks else []
        moves.started += [self._row_start(child) for child in children]
        return [seq.row, *(child.row for child in children)]

    # -- small books ----------------------------------------------------------------------------------------------

    def _check_forced(self, sample_rows: NDArray[np.int32], result: StepResult) -> None:
        for row in sample_rows[result.num_tokens > 1]:
            group = self.queues.group_of_row[row]
            if group is None or not group.request.params.takes_forced:
                raise PluginContractError(f"the executor returned several tokens for row {row}, which takes one a draw")

    def _prompt_collected(self, row: int, upto: int) -> None:
        seq = self.queues.seq_of_row[row]
        assert seq is not None
        self.prompt_due[row] = upto
        if upto >= len(seq.request.prompt_token_ids):
            del self.prompt_due[row]
            seq.cold = bool(seq.request.params.skip_reading_prefix_cache)

    def _remove(self, group: Group) -> None:
        rows = self.queues.remove(group)
        self.beams.remove(group)
        self._ended_groups.append(group)
        for row in rows:
            self.prompt_due.pop(row, None)
        self._ended_rows += rows
        self.num_cached.pop(group.id, None)
        del self._seeds[group.id]


def _rows(seqs: list[Sequence]) -> NDArray[np.int32]:
    return np.fromiter((seq.row for seq in seqs), np.int32, len(seqs))
