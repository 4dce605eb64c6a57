"""The ledger: policy proposes, the ledger disposes.

It is the only owner of group states and the only caller of allocator and preemption. `apply` turns an audited decision
into a StepPlan. `advance` enters what is certain of a step as soon as it was submitted: lengths, forks, and one token
still to be known for every draw, so that the next step can be planned. `commit` enters the tokens once it was
collected. Order inside `apply`, on which `Scratch` relies: victims leave, all newcomers and returners are opened
(prefix hits taken), swapped groups return, then tables grow.

A block freed while a step is in flight is not reused before it ends: see `flight`.
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
from paged_core.engine.flight import Flight
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
        self.flight = Flight(self.queues, allocator)
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

    @property
    def residence(self) -> Residence:
        """Who counts what preemptions cost."""
        return self._residence

    # -- what the engine asks -------------------------------------------------------------------------------------

    def add(self, request: Request, seed: int, search: BeamSearch | None = None) -> Group:
        """A new group waits. `seed` starts its random stream; `search` makes it a beam search."""
        group = Group(request, [Sequence(request)])
        if search is not None:
            self.beams.add(group, search)
        self._seeds[group.id] = seed
        self.queues.add(group)
        return group

    @property
    def may_lead(self) -> bool:
        """Whether a step may be planned before those in flight were collected."""
        return self.flight.may_lead(self.max_num_seqs)

    def view(self, now: float) -> LedgerView:
        """What the scheduler may see now. Who reaches its length with the step in flight is seen no more."""
        for plan in self.flight.plans:
            drawn = plan.sample_rows
            for row in drawn[self.rows.num_tokens[drawn] >= self.rows.max_tokens[drawn]]:
                if (group := self.queues.group_of_row[row]) is not None:
                    self.queues.leave(group)
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
        builder = StepPlanBuilder(self.rows, self.step, self.flight.plans[-1] if self.flight else None)
        boundary = decode_rows[:0]
        if decision.decode_all and len(decode_rows):
            boundary = self._grow_decodes(decode_rows, decode_seqs, moves)
            builder.decode(decode_rows)
        shared = self.prefixes.among(decode_rows) if decision.decode_all else []
        for run in decision.run:
            self._grow_run(run, builder, moves)
        plan = builder.build()
        plan.changed_rows = np.concatenate([boundary, plan.changed_rows, _rows(changed + moves.returned)])
        if self.beams:
            plan.num_candidates = self.beams.wanted[plan.sample_rows]
        plan.swap_out, plan.copies, plan.swap_in = moves.swap_out, moves.copies, moves.swap_in
        plan.started, plan.shared_prefixes = moves.started, shared
        plan.ended, self._ended_rows = self._ended_rows, []
        self.step += 1
        return plan

    def advance(self, plan: StepPlan) -> None:
        """Enter a step as soon as it was submitted: computed lengths, forks, finished prefills, a place for each
        token that will be drawn."""
        self.flight.submitted(plan)
        self.rows.num_computed[plan.rows] = plan.seq_lens
        self.branches.fork_pending()
        drawn = plan.sample_rows
        if self.beams:  # which draw when candidates are there
            drawn = drawn[~self.beams.drew(drawn)]
        self.rows.num_tokens[drawn] += 1
        self._settle_prefills()

    def commit(self, plan: StepPlan, result: StepResult) -> None:
        """Enter a collected step: sampled tokens, publishable blocks, beams; stale draws leave `result`."""
        self.flight.collected(plan, result)
        if result.tokens.shape[1] != 1:
            self._check_forced(plan.sample_rows, result)
        self._enter_tokens(plan, result)
        self._publish(plan)
        for row, (first, top) in result.prompt_logprobs.items():
            self._prompt_collected(row, first + len(top.chosen))
        if self.beams:
            self.beams.select(plan, result)
            self._settle_prefills()

    def output_ids(self, row: int) -> NDArray[np.int32]:
        """The output of `row` as far as it is known: what steps in flight draw is not."""
        unknown = sum(bool((plan.sample_rows == row).any()) for plan in self.flight.plans)
        return self.rows.tokens[row, self.rows.num_prompt[row] : self.rows.num_tokens[row] - unknown]

    def append(self, rows: NDArray[np.int32], tokens: NDArray[np.int32]) -> None:
        """One more token for each of `rows`: the emitter, which knows where a sequence ends, enters what was forced
        after a draw."""
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
        """End one branch: its blocks are free, or will be (`flight`); the group ends with its last branch."""
        seq.finish_reason = reason
        group = self.queues.by_id[seq.request.id]
        self.branches.end(group, seq)
        if seq.row >= 0:
            self.flight.free(seq)
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
                self.flight.free(seq)
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
        self.flight.admitted(group)
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
        return RowStart(seq.row, request.params.for_sampler(), seed, 0, prompt, output, request.true_output_len)

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

    def _enter_tokens(self, plan: StepPlan, result: StepResult) -> None:
        """What was drawn takes its place; a draw that gave nothing gives its place back."""
        drawn, positions, tokens = plan.sample_rows, plan.sample_positions, result.tokens[:, 0]
        given = result.num_tokens >= 1
        if self.beams or not given.all():
            own = ~self.beams.drew(drawn)
            self.rows.num_tokens[drawn[own & ~given]] -= 1
            own &= given
            drawn, positions, tokens = drawn[own], positions[own], tokens[own]
        self.rows.tokens[drawn, positions] = tokens

    def _settle_prefills(self) -> None:
        for group in list(self.queues.prefilling.values()):
            self.branches.restore(group)
            self.queues.settle(group)

    def _publish(self, plan: StepPlan) -> None:
        """Blocks that a collected step has filled can be found from now on, but not what later steps compute yet."""
        computed = self.rows.num_computed
        num_tokens = plan.query_start[1:] - plan.query_start[:-1]
        for i in (plan.seq_lens % self.allocator.block_size < num_tokens).nonzero()[0]:
            row = plan.rows[i]
            seq = self.queues.seq_of_row[row]
            if seq is None or seq.finished:  # it ended while this step was in flight
                continue
            later, computed[row] = computed[row], plan.seq_lens[i]
            self.allocator.publish(seq)
            computed[row] = later

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
        self.flight.removed(group, rows)
        self.beams.remove(group)
        self._ended_groups.append(group)
        for row in rows:
            self.prompt_due.pop(row, None)
        self._ended_rows += rows
        self.num_cached.pop(group.id, None)
        del self._seeds[group.id]


def _rows(seqs: list[Sequence]) -> NDArray[np.int32]:
    return np.fromiter((seq.row for seq in seqs), np.int32, len(seqs))
