"""State machine: any sequence of calls, checked against the set-based model after every one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from paged_conformance.marks import layer
from paged_conformance.oracles.allocator_plan import Plan
from paged_conformance.oracles.allocator_world import PLAIN, Origin, Shape, World

if TYPE_CHECKING:
    from paged_conformance.candidate import Candidate
    from paged_core.api.request import Group, Sequence

pytestmark = layer("laws")

SMALL_SIZES = (1, 2, 3, 4, 5)
QUICK = (Phase.explicit, Phase.generate)  # the first failure as it is: shrinking it may take a minute
PICK = st.integers(0, 1000)
PROMPTS = st.builds(  # with long common beginnings, so that there is something to hit
    lambda length, tail: [0] * length + tail,
    st.sampled_from([10, 8, 12, 4, 0]),
    st.lists(st.integers(0, 1), min_size=1, max_size=4),
)
ORIGINS = st.sampled_from([PLAIN, PLAIN, PLAIN, Origin(salt="s"), Origin(adapter="s"), Origin(cold=True)])
MAX_ROWS = 8


class AllocatorMachine(RuleBasedStateMachine):
    """Calls of the ledger in any order; `World` checks each. A stranger's optional capabilities switch rules off."""

    candidate: Candidate

    @initialize(
        data=st.data(),
        blocks=st.sampled_from([12, 6, 16, 24, 3, 1]),
        host=st.integers(0, 12),
        cache=st.sampled_from([True, True, False]),
    )
    def begin(self, data: st.DataObject, blocks: int, host: int, cache: bool) -> None:
        """A pool of any small size."""
        alloc = self.candidate

        def shape(size: int) -> Shape:
            return Shape(blocks, size, host if alloc.has("swap") else 0, MAX_ROWS, max(4, 40 // (size or 4)), cache)

        fitting = [size for size in SMALL_SIZES if alloc.fit(shape(size).need(alloc)).ok]
        self.world = World(alloc, shape(data.draw(st.sampled_from(fitting or [0]))))
        self.groups: list[Group] = []
        self.away: list[Group] = []

    def can(self, capability: str) -> bool:
        """Whether the candidate declares it."""
        return self.candidate.has(capability)

    def resident(self) -> list[Sequence]:
        """Branches on the device."""
        return [seq for group in self.groups for seq in group.live]

    def pick(self, number: int) -> Sequence:
        """One of them."""
        seqs = self.resident()
        return seqs[number % len(seqs)]

    @precondition(lambda self: self.world.free_rows)
    @rule(prompt=PROMPTS, origin=ORIGINS)
    def admit(self, prompt: list[int], origin: Origin) -> None:
        """A newcomer that computes its whole prompt if there is room."""
        seq = self.world.seq(prompt, origin)
        self.world.open(seq)
        self.world.compute(seq)
        self.groups.append(self.world.group(seq))

    @precondition(lambda self: self.world.free_rows)
    @rule(prompt=PROMPTS, origin=ORIGINS)
    def open(self, prompt: list[int], origin: Origin) -> None:
        """A newcomer that computes nothing yet."""
        seq = self.world.seq(prompt, origin)
        self.world.open(seq)
        self.groups.append(self.world.group(seq))

    @precondition(lambda self: self.groups)
    @rule(number=PICK, part=st.integers(1, 14))
    def compute(self, number: int, part: int) -> None:
        """A chunk of somebody's prompt."""
        seq = self.pick(number)
        if seq.gap:
            self.world.compute(seq, min(part, seq.gap))

    @precondition(lambda self: self.groups)
    @rule(number=PICK, tokens=st.lists(st.integers(0, 1), min_size=1, max_size=6))
    def decode(self, number: int, tokens: list[int]) -> None:
        """Several steps of one group: branches take turns and differ by their tokens."""
        group = self.groups[number % len(self.groups)]
        for token in tokens:
            for position, seq in enumerate(group.live):
                if seq.gap or seq.num_tokens >= self.world.rows.max_len:
                    return
                self.world.append(seq, (token + position) % 2)
            for seq in group.live:
                self.world.compute(seq)

    @precondition(lambda self: self.groups)
    @rule(number=PICK, token=st.integers(0, 1))
    def sample(self, number: int, token: int) -> None:
        """One more token for every branch of a group that has none left to compute."""
        group = self.groups[number % len(self.groups)]
        if all(seq.gap == 0 and seq.num_tokens < self.world.rows.max_len for seq in group.live):
            for position, seq in enumerate(group.live):
                self.world.append(seq, (token + position) % 2)

    @precondition(lambda self: any(group.decoding for group in self.groups))
    @rule(number=PICK)
    def decode_all(self, number: int) -> None:
        """One step of several decoding groups, planned and carried out."""
        groups = [group for group in self.groups if group.decoding][: number % 3 + 1]
        plan = Plan(self.world, groups)
        if plan.take_decodes():
            plan.apply()

    @precondition(lambda self: self.can("fork") and self.groups and self.world.free_rows)
    @rule(number=PICK, back=st.integers(0, 6))
    def fork(self, number: int, back: int) -> None:
        """A branch from the end of another, or from its past."""
        parent = self.pick(number)
        if parent.num_computed > back:
            at = parent.num_computed - back if back else None
            child = self.world.fork(parent, at)
            next(group for group in self.groups if parent in group.live).sequences.append(child)

    @precondition(lambda self: self.groups or self.away)
    @rule(number=PICK)
    def free(self, number: int) -> None:
        """A branch ends, on whichever tier it is."""
        seqs = [seq for group in (*self.groups, *self.away) for seq in group.live]
        self.world.free_seq(seqs[number % len(seqs)])
        self.groups = [group for group in self.groups if group.live]
        self.away = [group for group in self.away if group.live]

    @precondition(lambda self: self.can("shrink") and self.groups)
    @rule(number=PICK, keep=st.integers(0, 14))
    def shrink(self, number: int, keep: int) -> None:
        """The last tokens are taken back; those that were hit stay, as every prompt does."""
        seq = self.pick(number)
        keep = max(keep, self.world.hits.get(seq, 0) + 1)
        if seq.num_computed > keep:
            self.world.shrink(seq, keep)

    @precondition(lambda self: self.can("swap") and self.groups)
    @rule(number=PICK)
    def swap_out(self, number: int) -> None:
        """A group leaves for the host."""
        group = self.groups[number % len(self.groups)]
        if self.world.swap_out(group) is not None:
            self.groups.remove(group)
            self.away.append(group)

    @precondition(lambda self: self.away)
    @rule(number=PICK)
    def swap_in(self, number: int) -> None:
        """A group comes back."""
        group = self.away[number % len(self.away)]
        if self.world.swap_in(group) is not None:
            self.away.remove(group)
            self.groups.append(group)

    def teardown(self) -> None:
        """Everything leaves."""
        if hasattr(self, "world"):
            self.world.drain()


def test_any_sequence_of_calls_agrees_with_the_set_based_model(alloc: Candidate) -> None:
    members: dict[str, Any] = {"candidate": alloc}
    run_state_machine_as_test(
        type("Machine", (AllocatorMachine,), members),
        settings=settings(
            max_examples=40 if alloc.quick else 200,
            stateful_step_count=40,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
            phases=QUICK if alloc.quick else tuple(Phase),
        ),
    )
