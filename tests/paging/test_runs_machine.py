"""State machine: RunAllocator against plain sets: places are found by trying all, contents read back after every rule.

Requests of several branches are admitted, prefilled in chunks, forked, decoded as gangs, lose branches, are evicted and
come back with their fork tree. What a scratch says must be what trying all places says, and what it accepts must
happen.
"""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from paged_core.api.allocator import AllocatorNeed
from paged_core.api.params import SamplingParams
from paged_core.api.request import Group, GroupState, Request, Residency, Rows, Sequence, share_out, spread
from paged_core.paging.buddy import order_for
from paged_core.paging.runs import RunAllocator

MAX_LEN = 24
PICK = st.integers(0, 1000)


class Asking(RunAllocator):
    """Every request asks for what the test says."""

    def __init__(self, need, asks):
        super().__init__(need)
        self.asks = asks

    def reserve(self, request):
        return self.asks[request.id]


def placed(regions, free, orders):
    """The blocks left when all orders found a place, or None: by trying all places."""
    if not orders:
        return free
    order, *rest = sorted(orders, reverse=True)
    size = 1 << order
    for start, length in regions:
        for begin in range(start, start + length - size + 1, size):
            blocks = set(range(begin, begin + size))
            if size <= length and blocks <= free and (left := placed(regions, free - blocks, rest)) is not None:
                return left
    return None


class RunMachine(RuleBasedStateMachine):
    """`runs`: blocks of the run of each branch, and of those set aside, by what the rules did and nothing else."""

    @initialize(block_size=st.integers(1, 4), num_blocks=st.integers(2, 14))
    def begin(self, block_size, num_blocks):
        self.size, self.total = block_size, num_blocks
        self.asks = {}
        self.alloc = Asking(AllocatorNeed(num_blocks, 0, block_size, 12, MAX_LEN), self.asks)
        self.rows, self.free_rows = Rows(12, MAX_LEN), list(range(12))
        self.groups = []
        self.memory = {}
        self.runs, self.aside = {}, {}  # branch -> order; request -> orders set aside, None before the first run
        bits = [order for order in range(num_blocks.bit_length() - 1, -1, -1) if num_blocks >> order & 1]
        self.regions = [(sum(1 << b for b in bits[:i]), 1 << order) for i, order in enumerate(bits)]
        self.top, self.count = bits[0], 0

    # -- the model ------------------------------------------------------------------------------------------------

    def wanted(self, group, num_tokens):
        """Orders that leave the pool when `group` computes so much, and what its branches hold then."""
        aside = self.aside.get(group.id)
        aside = None if aside is None else list(aside)
        runs, taken, parts = {}, [], spread(group.live)
        for (seq, own), (_, num) in zip(parts, share_out(parts, num_tokens), strict=True):
            end = seq.num_tokens - own + num
            have = self.runs.get(seq)
            if not num or (have is not None and end <= self.size << have):
                continue
            least = order_for(-(-max(end, seq.num_tokens) // self.size))
            order = max(least, min(order_for(-(-min(self.asks[group.id], MAX_LEN) // self.size)), self.top))
            fitting = [spare for spare in aside or () if spare >= order]
            if aside is None:
                more = [order] * group.num_reserved_rows
                aside, taken = more[1:], taken + more
                runs[seq] = order
            elif fitting:
                aside.remove(fitting[0])
                runs[seq] = fitting[0]
            else:
                taken.append(order)
                runs[seq] = order
        return taken, runs, aside

    def free_blocks(self):
        return {
            block
            for order, starts in enumerate(self.alloc.buddy.free)
            for s in starts
            for block in range(s, s + (1 << order))
        }

    def plan(self):
        decoding = [seq.row for group in self.running() if group.decoding for seq in group.live]
        return self.alloc.scratch(self.running(), np.array(decoding, dtype=np.int32))

    def running(self):
        return [group for group in self.groups if group.state is GroupState.RUNNING]

    def try_to_run(self, group, num_tokens):
        """Plan, compare with trying all places, and carry out what was accepted."""
        scratch = self.plan()
        taken, runs, aside = self.wanted(group, num_tokens)
        fits = placed(self.regions, self.free_blocks(), taken) is not None
        need, free = scratch.need(group, num_tokens), scratch.free
        assert (need <= free) == fits, f"need {need} of {free} free for {taken} in {sorted(self.free_blocks())}"
        assert not fits or need == sum(1 << order for order in taken)
        assert scratch.take(group, num_tokens) == fits
        if not fits:
            return False
        assert scratch.free == free - need
        self.runs.update(runs)
        if aside is not None:
            self.aside[group.id] = aside
        if group.residency is Residency.NONE:
            self.enter(group)
        self.compute(group, num_tokens)
        for seq in runs:
            if seq.row not in self.alloc.runs:  # it came too late to grow in this step
                self.aside[group.id].append(self.runs.pop(seq))
        return True

    def enter(self, group):
        group.state, group.residency = GroupState.RUNNING, Residency.DEVICE
        for seq in group.live:
            if seq.row < 0:
                seq.bind(self.rows, self.free_rows.pop())
            if seq.parent is None or seq.parent not in group.live:
                self.alloc.open(seq)

    def compute(self, group, num_tokens):
        """As the ledger does: a branch that is not there yet waits until its parent has computed what they share."""
        copies, written = [], []
        for seq, num in share_out(spread(group.live), num_tokens):
            here = self.alloc.owners[seq.row] is seq
            if num and here:
                made = self.alloc.grow(seq, num)
                assert made is not None, "what the scratch accepted has no room"
                copies += made
                written.append((seq, num))
        moved = {dst: [self.memory.get((src, i)) for i in range(self.size)] for src, dst in copies}
        for dst, content in moved.items():
            self.memory.update({(dst, i): one for i, one in enumerate(content)})
        for seq, num in written:
            for position in range(seq.num_computed, seq.num_computed + num):
                self.memory[self.slot(seq, position)] = (seq.request.id, position, int(seq.token_ids[position]))
            self.rows.num_computed[seq.row] += num
            self.alloc.publish(seq)
        self.rejoin(group)

    def rejoin(self, group):
        for seq in group.live:
            if self.alloc.owners[seq.row] is not seq and seq.parent.num_computed >= seq.divergence:
                self.rows.num_computed[seq.row] = seq.divergence
                self.alloc.fork(seq.parent, seq)

    def slot(self, seq, position):
        return int(self.alloc.tables[seq.row, position // self.size]), position % self.size

    # -- rules ----------------------------------------------------------------------------------------------------

    @rule(length=st.integers(1, 10), n=st.integers(1, 4), ask=st.integers(1, 30), branches=st.lists(PICK, max_size=3))
    def arrive(self, length, n, ask, branches):
        if sum(group.num_reserved_rows for group in self.groups) + n > self.rows.capacity:
            return
        self.count += 1
        request = Request(f"r{self.count}", tuple(range(length)), SamplingParams(n=n), 0.0)
        self.asks[request.id] = ask
        group = Group(request, [Sequence(request)])
        order = max(order_for(-(-length // self.size)), min(order_for(-(-min(ask, MAX_LEN) // self.size)), self.top))
        fits = placed(self.regions, set(range(self.total)), [order] * n) is not None
        assert (self.alloc.refuses(request) is None) == fits
        if fits:
            self.groups.append(group)
        if fits and branches and self.try_to_run(group, length):
            for number in branches:
                self.fork(len(self.groups) - 1, number)

    @precondition(lambda self: self.groups)
    @rule(number=PICK, share=st.integers(1, 10))
    def run(self, number, share):
        group = self.groups[number % len(self.groups)]
        if group.gap:
            self.try_to_run(group, group.gap if group.decoding else min(share, group.gap))

    @precondition(lambda self: self.groups)
    @rule(number=PICK, token=st.integers(100, 109), times=st.integers(1, 6))
    def decode(self, number, token, times):
        group = self.groups[number % len(self.groups)]
        for step in range(times):
            if group.state is not GroupState.RUNNING or any(s.gap or s.num_tokens >= MAX_LEN for s in group.live):
                return
            for seq in group.live:
                self.rows.tokens[seq.row, seq.num_tokens] = token + seq.index + step
                self.rows.num_tokens[seq.row] += 1
            if not self.try_to_run(group, len(group.live)):
                return

    @precondition(lambda self: self.running())
    @rule(number=PICK, which=PICK)
    def fork(self, number, which):
        """A branch of any branch, also of one that has not grown since it was forked itself."""
        group = self.groups[number % len(self.groups)]
        if group.state is not GroupState.RUNNING or len(group.sequences) == group.num_reserved_rows:
            return
        if any(seq.gap for seq in group.live):
            return
        parent, child = group.live[which % len(group.live)], Sequence(group.request, len(group.sequences))
        child.bind(self.rows, self.free_rows.pop())
        self.rows.tokens[child.row] = self.rows.tokens[parent.row]
        self.rows.num_tokens[child.row] = parent.num_tokens
        self.rows.num_computed[child.row] = parent.num_computed
        child.parent, child.divergence = parent, parent.num_computed
        self.alloc.fork(parent, child)
        group.sequences.append(child)

    @precondition(lambda self: self.running())
    @rule(number=PICK)
    def evict(self, number):
        group = self.running()[number % len(self.running())]
        scratch = self.plan()
        before, freed = scratch.free, scratch.give_back(group)
        assert scratch.free == before + freed
        for seq in group.live:
            self.alloc.free(seq)
            self.rows.num_computed[seq.row] = 0
            self.runs.pop(seq, None)
        self.aside.pop(group.id, None)
        assert self.alloc.buddy.num_free == scratch.free, "the victim's runs are free, as was promised"
        group.state, group.residency = GroupState.PREEMPTED, Residency.NONE

    @precondition(lambda self: self.groups)
    @rule(number=PICK, which=PICK)
    def end_branch(self, number, which):
        group = self.groups[number % len(self.groups)]
        live = group.live
        if any(seq.row >= 0 and self.alloc.owners[seq.row] is not seq for seq in live) and len(live) > 1:
            return  # a branch ends with its own draw, for which all of them had to be here
        seq = live[which % len(live)]
        seq.finish_reason = "stop"
        heirs = [child for child in group.live if child.parent is seq]
        for child in heirs[1:]:
            child.parent, child.divergence = heirs[0], min(child.divergence, heirs[0].divergence)
        if heirs:
            heirs[0].parent, heirs[0].divergence = seq.parent, 0 if seq.parent is None else heirs[0].divergence
        self.runs.pop(seq, None)
        if seq.row >= 0:
            self.alloc.free(seq)
            self.free_rows.append(seq.row)
        if not group.live:
            self.groups.remove(group)
            self.aside.pop(group.id, None)

    # -- what always holds ----------------------------------------------------------------------------------------

    @invariant()
    def everybody_reads_its_own_past(self):
        for group in getattr(self, "groups", ()):
            for seq in group.live:
                if seq.row < 0 or self.alloc.owners[seq.row] is not seq:
                    continue
                for position, token in enumerate(seq.token_ids[: seq.num_computed].tolist()):
                    found = self.memory.get(self.slot(seq, position))
                    assert found == (seq.request.id, position, token), f"{seq.request.id}.{seq.index} at {position}"

    @invariant()
    def the_pool_holds_what_was_taken(self):
        if not hasattr(self, "alloc"):
            return
        self.alloc.check()
        orders = [*self.runs.values(), *(order for aside in self.aside.values() for order in aside)]
        least = self.total - sum(1 << order for order in orders)
        self.alloc.scratch([], np.zeros(0, dtype=np.int32))  # lets go of what was moved from
        late = sum(1 << run.order for kept in self.alloc.held.values() for run in kept)
        assert self.alloc.buddy.num_free == least - late, f"{self.runs} and {self.aside} of {self.total}"

    def teardown(self):
        for group in getattr(self, "groups", ()):
            for seq in group.live:
                self.alloc.free(seq)
        if hasattr(self, "alloc"):
            assert self.alloc.stats().free == self.total, "law 8"


def played(block_size, num_blocks):
    machine = RunMachine()
    machine.begin(block_size=block_size, num_blocks=num_blocks)
    return machine


def holds(machine):
    machine.everybody_reads_its_own_past()
    machine.the_pool_holds_what_was_taken()


def test_a_parents_run_stays_until_its_branches_have_copied_it() -> None:
    """It ends with its first draw; whoever comes next must not get its blocks, and they are free after the copy."""
    machine = played(2, 16)
    machine.arrive(length=4, n=2, ask=8, branches=[0])
    parent, child = machine.groups[0].live
    old = machine.alloc.runs[parent.row]
    machine.end_branch(number=0, which=0)
    assert machine.alloc.held == {child.row: [old]}
    machine.arrive(length=8, n=1, ask=8, branches=[])
    machine.run(number=1, share=8)
    holds(machine)
    assert not set(machine.alloc.runs[machine.groups[1].live[0].row].blocks) & set(old.blocks)
    machine.decode(number=0, token=100, times=1)
    holds(machine)
    assert not machine.alloc.held
    machine.teardown()


def test_a_parents_run_goes_from_one_branch_to_the_next_until_all_have_left() -> None:
    machine = played(2, 16)
    machine.arrive(length=4, n=3, ask=4, branches=[0, 0])
    parent, one, two = machine.groups[0].live
    old = machine.alloc.runs[parent.row]
    machine.end_branch(number=0, which=0)
    machine.end_branch(number=0, which=0)
    assert one.finished
    assert machine.alloc.held == {two.row: [old]}
    holds(machine)
    machine.end_branch(number=0, which=0)
    machine.teardown()


def test_a_branch_of_a_branch_that_has_not_grown_reads_where_that_one_reads() -> None:
    machine = played(2, 16)
    machine.arrive(length=2, n=1, ask=2, branches=[])
    machine.run(number=0, share=2)
    machine.arrive(length=4, n=3, ask=4, branches=[0, 1])
    holds(machine)
    machine.end_branch(number=1, which=0)
    machine.decode(number=1, token=100, times=3)
    holds(machine)
    machine.teardown()


TestRunMachine = RunMachine.TestCase
TestRunMachine.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
