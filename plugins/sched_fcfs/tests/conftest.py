"""Books: a small ledger of the tests' own, with forks, over any scheduler, allocator and preemption plugin.

It follows the order that `paged_core.api.allocator` promises (victims leave, everyone opens, swapped groups return,
tables grow), pretends to compute, and checks after every step: laws 1 to 14, what the scratch accepted could be
applied, and that every branch still reads exactly its own past from a pretended KV memory.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from paged_alloc_cow import CowProvider
from paged_preempt_recompute import RecomputeProvider
from paged_preempt_swap import SwapProvider
from paged_sched_fcfs import FcfsProvider

from paged_core.api.allocator import AllocatorNeed
from paged_core.api.params import SamplingParams
from paged_core.api.preemption import PreemptionNeed
from paged_core.api.request import Group, GroupState, Request, Residency, Rows, Sequence, share_out, spread
from paged_core.api.scheduler import SchedulerNeed, View

NO_PLUGINS = SimpleNamespace()
MAX_LEN = 96


def make(provider, need, **options):
    return provider.create(need, provider.Settings(**options), NO_PLUGINS)


class BooksView(View):
    """The books as a scheduler sees them."""

    def __init__(self, books):
        decoding = [group for group in books.running if group.decoding]
        rows = [seq.row for group in decoding for seq in group.live]
        self.now, self.step = float(books.step_count), books.step_count
        self.token_budget, self.max_num_seqs = books.budget, books.max_seqs
        self.waiting, self.running, self.preempted = list(books.waiting), list(books.running), list(books.preempted)
        self.prefilling = [group for group in books.running if not group.decoding]
        self.num_decode_tokens = len(rows)
        self.num_free_seqs = books.max_seqs - sum(group.num_reserved_rows for group in books.running)
        self.scratch = books.alloc.scratch(self.running, np.array(rows, dtype=np.int32))

    def eviction_cost(self, group):
        return 1.0


class Books:
    """Sizes in blocks and tokens; `swap` chooses the preemption plugin; `tokens` draws the next token of a branch."""

    def __init__(
        self,
        num_blocks=16,
        block_size=4,
        host_blocks=0,
        budget=64,
        max_seqs=8,
        *,
        swap=False,
        prefix_cache=True,
        chunked=True,
        watermark=0.01,
        scheduler=None,
        draw=None,
    ):
        rows = 4 * max_seqs
        self.alloc = make(
            CowProvider(),
            AllocatorNeed(num_blocks, host_blocks, block_size, rows, MAX_LEN, prefix_cache, hash_seed=1),
        )
        need = SchedulerNeed(budget, max_seqs, MAX_LEN, block_size, num_blocks, chunked)
        self.sched = scheduler or make(FcfsProvider(), need, watermark=watermark)
        self.preempt = make(
            SwapProvider() if swap else RecomputeProvider(), PreemptionNeed(block_size, 64, host_blocks)
        )
        self.rows = Rows(rows, MAX_LEN)
        self.budget, self.max_seqs, self.size, self.total = budget, max_seqs, block_size, num_blocks
        self.draw = draw or (lambda seq: (seq.index + seq.num_tokens) % 3)
        self.free_rows = list(range(rows - 1, -1, -1))
        self.waiting, self.running, self.preempted, self.finished = [], [], [], []
        self.memory = np.zeros((num_blocks, block_size), dtype=np.int64)
        self.host_memory = np.zeros((host_blocks, block_size), dtype=np.int64)
        self.step_count = 0
        self.log = []  # per step: group id -> tokens computed
        self.evictions = {"swap": 0, "recompute": 0}
        self.outgrown = []
        self.outputs = {}  # ended branch -> its output tokens

    # -- requests -------------------------------------------------------------------------------------------------

    def add(self, prompt, max_tokens=4, n=1, salt=None, arrival=None):
        number = len(self.waiting) + len(self.running) + len(self.preempted) + len(self.finished)
        prompt = tuple(range(100, 100 + prompt)) if isinstance(prompt, int) else tuple(prompt)
        params = SamplingParams(n=n, max_tokens=max_tokens)
        at = float(self.step_count) if arrival is None else arrival
        request = Request(f"r{number}", prompt, params, at, cache_salt=salt)
        group = Group(request, [Sequence(request)])
        self.waiting.append(group)
        return group

    def abort(self, group):
        self._end(group, "abort")
        self.alloc.check()

    @property
    def unfinished(self):
        return [*self.running, *self.preempted, *self.waiting]

    def drain(self, limit=3000):
        for _ in range(limit):
            if not self.unfinished:
                break
            self.step()
        assert not self.unfinished, f"{[group.id for group in self.unfinished]} starve after {limit} steps"
        self.alloc.check()
        assert self.alloc.stats().free == self.total  # law 8
        assert self.alloc.stats().host_free == self.alloc.stats().host_total

    # -- one step -------------------------------------------------------------------------------------------------

    def step(self):
        """Decide, audit, apply, compute, commit. Returns the decision."""
        view = BooksView(self)
        decision = self.sched.decide(view)
        self._audit(view, decision)
        self.step_count += 1
        if decision.empty:
            self.log.append({})
            self._end_the_outgrown(view)
            return decision
        parts = self._apply(view, decision)
        self.alloc.check()
        self._compute(parts)
        self._commit(parts)
        self.alloc.check()
        return decision

    def _audit(self, view, decision):
        runs = [run.group for run in decision.run]
        decoding = [g for g in view.running if g.decoding and g not in decision.preempt] if decision.decode_all else []
        named = [*runs, *decoding, *decision.preempt]
        assert len(named) == len(set(named)), "law 7: a group is named twice"
        assert all(group in view.running for group in decision.preempt), "law 7: a victim does not run"
        assert all(group in view.preempted for group in decision.resume), "law 7: who resumes was not preempted"
        tokens = sum(run.num_tokens for run in decision.run) + sum(len(group.live) for group in decoding)
        assert tokens <= view.token_budget, "law 6: the budget"
        entering = [g for g in runs if g.state is GroupState.WAITING] + decision.resume
        leaving = sum(group.num_reserved_rows for group in decision.preempt)
        wanted = sum(group.num_reserved_rows for group in entering)
        assert wanted <= view.num_free_seqs + leaving, "law 6: the cap"
        assert not (decision.preempt and entering), "nobody enters in a step that evicts"
        for group, num in decision.run:
            assert 1 <= num <= view.scratch.gap(group)
            assert num == len(group.live) or not group.decoding, "a gang runs whole"
        newcomers = [group for group in runs if group.state is GroupState.WAITING]
        assert newcomers == view.waiting[: len(newcomers)], "law 12: nobody overtakes the head of the queue"
        returners = sorted(view.preempted, key=lambda group: (group.arrival, int(group.id[1:])))
        assert decision.resume == returners[: len(decision.resume)], "law 12: returners keep their order"
        assert not newcomers or len(decision.resume) == len(view.preempted), "law 12: returners come before newcomers"

    def _apply(self, view, decision):
        decoding = [group for group in view.running if group.decoding]
        moves = SimpleNamespace(swap_out=[], swap_in=[], copies=[])
        for group in decision.preempt:
            self._evict(group, moves)
        swapped = [group for group in decision.resume if group.residency is Residency.HOST]
        for group in decision.resume:
            self.preempted.remove(group)
            self._enter(group, opened=group not in swapped)
        for group, _ in decision.run:
            if group.state is GroupState.WAITING:
                self.waiting.remove(group)
                group.sequences[0].bind(self.rows, self.free_rows.pop())
                self._enter(group, opened=True)
        for group in swapped:
            pairs = self.alloc.swap_in(group)
            assert pairs is not None, "the scratch accepted a return that does not fit"
            moves.swap_in += pairs
        parts = []
        if decision.decode_all:
            decoding = [group for group in decoding if group.state is GroupState.RUNNING]
            seqs = [seq for group in decoding for seq in group.live]
            copies = self.alloc.grow_decodes(seqs, np.array([seq.row for seq in seqs], dtype=np.int32))
            assert copies is not None, "take_decodes accepted what does not fit"
            moves.copies += copies
            parts += [(group, [(seq, 1) for seq in group.live], True) for group in decoding]
        for group, num in decision.run:
            parts.append(self._grow(group, num, moves))
        self._move(moves)
        return parts

    def _grow(self, group, num, moves):
        shares = spread(group.live)
        whole = num == sum(own for _, own in shares)
        ready = [seq for seq, _ in shares if self._is_forked(seq)]
        if whole and len(ready) < len(shares):
            whole, num = False, num - 1
        done = []
        for seq, part in share_out(shares, num):
            if part and seq in ready:
                copies = self.alloc.grow(seq, part)
                assert copies is not None, "take accepted what does not fit"
                moves.copies += copies
                done.append((seq, part))
        assert done, "a run that computes nothing"
        return group, done, whole

    def _move(self, moves):
        for swaps, source, target in (
            (moves.swap_out, self.memory, self.host_memory),
            (moves.swap_in, self.host_memory, self.memory),
            (moves.copies, self.memory, self.memory),
        ):
            contents = [source[src].copy() for src, _ in swaps]
            for (_, dst), content in zip(swaps, contents, strict=True):
                target[dst] = content

    def _compute(self, parts):
        for _, shares, _ in parts:
            for seq, num in shares:
                marks = fingerprints(seq)
                for position in range(seq.num_computed, seq.num_computed + num):
                    block = self.alloc.tables[seq.row, position // self.size]
                    self.memory[block, position % self.size] = marks[position]
        for _, shares, _ in parts:
            for seq, num in shares:
                self._check_reads(seq, seq.num_computed + num)

    def _check_reads(self, seq, length):
        marks, blocks = fingerprints(seq), self.alloc.tables[seq.row]
        read = [self.memory[blocks[p // self.size], p % self.size] for p in range(length)]
        assert read == marks[:length], f"branch {seq.index} of {seq.request.id} reads another's past"

    def _commit(self, parts):
        self.log.append({group.id: sum(num for _, num in shares) for group, shares, _ in parts})
        for group, shares, whole in parts:
            for seq, num in shares:
                self.rows.num_computed[seq.row] += num
                self.alloc.publish(seq)
            self._fork_ready(group)
            if whole:
                self._sample(group)

    def _sample(self, group):
        first = group.sequences[0]
        for index in range(len(group.sequences), group.num_reserved_rows):
            if first.num_output == 0:
                self.fork(group, first, index)
        for seq in group.live:
            row = seq.row
            self.rows.tokens[row, self.rows.num_tokens[row]] = self.draw(seq)
            self.rows.num_tokens[row] += 1
        for seq in group.live:
            if seq.num_output >= group.max_tokens or seq.num_tokens >= MAX_LEN:
                self._end_branch(seq, "length")
        if not group.live:
            self._leave(group)

    def fork(self, group, parent, index):
        """A new branch with the parent's tokens and blocks."""
        child = Sequence(group.request, index)
        child.bind(self.rows, self.free_rows.pop())
        for column in (self.rows.num_tokens, self.rows.num_computed, self.rows.tokens):
            column[child.row] = column[parent.row]
        child.parent, child.divergence = parent, parent.num_computed
        self.alloc.fork(parent, child)
        group.sequences.append(child)
        return child

    def replace(self, group, winner, loser):
        """As beam search does: `winner` is forked once more, then `loser` is dropped."""
        assert group.decoding
        child = self.fork(group, winner, len(group.sequences))
        child.divergence = winner.num_computed
        row = child.row
        self.rows.tokens[row, self.rows.num_tokens[row] - 1] = 7
        self._end_branch(loser, "dropped")
        self.alloc.check()

    # -- leaving and coming back ----------------------------------------------------------------------------------

    def _evict(self, group, moves):
        blocks = {b for seq in group.live for b in self.alloc.tables[seq.row, : self.alloc.lengths[seq.row]].tolist()}
        mode = self.preempt.evict(group, len(blocks), self.alloc.stats().host_free).mode
        self.evictions[mode] += 1
        if mode == "swap":
            pairs = self.alloc.swap_out(group)
            assert pairs is not None, "swap was chosen without host room"
            moves.swap_out += pairs
        else:
            for seq in group.live:
                self.alloc.free(seq)
                self.rows.num_computed[seq.row] = 0
        group.num_preemptions += 1
        group.state = GroupState.PREEMPTED
        group.residency = Residency.HOST if mode == "swap" else Residency.NONE
        self.running.remove(group)
        self.preempted.append(group)
        self.preempted.sort(key=lambda member: member.arrival)

    def _enter(self, group, opened):
        group.state, group.residency = GroupState.RUNNING, Residency.DEVICE
        self.running.append(group)
        if opened:
            for seq in group.live:
                if seq.parent is None or seq.parent not in group.live:
                    self.rows.num_computed[seq.row] = self.alloc.open(seq)
            self._fork_ready(group)

    def _is_forked(self, seq):
        return self.alloc.on_device(seq)

    def _fork_ready(self, group):
        """Branches of a recomputed group come back as soon as their parent has computed where they left it."""
        for seq in group.live:
            parent = seq.parent
            if not self._is_forked(seq) and self._is_forked(parent) and parent.num_computed >= seq.divergence:
                self.rows.num_computed[seq.row] = seq.divergence
                self.alloc.fork(parent, seq)

    def _end_the_outgrown(self, view):
        """Nothing ran: legitimate only if the oldest unfinished group can never fit, alone as it is."""
        assert len(self.running) <= 1, "nothing runs though several groups could"
        group = (self.running or self.preempted or self.waiting or [None])[0]
        if group is not None:
            num = len(group.live) if group.decoding else 1
            if group.state is not GroupState.RUNNING:
                num = view.scratch.gap(group)
            assert view.scratch.need(group, num) > view.scratch.free, f"{group.id} fits but does not run"
            self.outgrown.append(group)
            self._end(group, "length")

    def _end(self, group, reason):
        for seq in group.live:
            self._end_branch(seq, reason)
        self._leave(group)

    def _end_branch(self, seq, reason):
        seq.finish_reason = reason
        self.outputs[seq] = seq.token_ids[len(seq.request.prompt_token_ids) :].tolist()
        if seq.row >= 0:
            self.alloc.free(seq)

    def _leave(self, group):
        for queue in (self.waiting, self.running, self.preempted):
            if group in queue:
                queue.remove(group)
        self.sched.forget(group)
        self.free_rows += [seq.row for seq in group.sequences if seq.row >= 0]
        group.state, group.residency = GroupState.FINISHED, Residency.NONE
        self.finished.append(group)


def fingerprints(seq):
    """One number per position that depends on all tokens up to it and on the salt."""
    mark = hash(("salt", seq.request.cache_salt))
    marks = []
    for token in seq.token_ids.tolist():
        mark = hash((mark, token))
        marks.append(mark)
    return marks


@pytest.fixture
def books():
    """Makes Books."""
    return Books
