"""State machines over allocator, scheduler and preemption together: laws 1 to 14 after every step."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from paged_core.api.request import GroupState

PROMPTS = st.one_of(
    st.lists(st.integers(0, 1), min_size=1, max_size=12),
    st.integers(1, 24).map(lambda length: [0] * length),
)
PICK = st.integers(0, 1000)


class EngineMachine(RuleBasedStateMachine):
    """Random arrivals, forks, beam-like replacements and aborts over a tiny pool; every step is audited by Books."""

    make_books = None

    @initialize(
        block_size=st.integers(1, 4),
        blocks=st.integers(6, 24),
        host=st.integers(0, 16),
        budget=st.integers(4, 20),
        swap=st.booleans(),
        prefix_cache=st.booleans(),
        chunked=st.booleans(),
    )
    def begin(self, block_size, blocks, host, budget, swap, prefix_cache, chunked):
        self.world = self.make_books(
            blocks, block_size, host, budget, 4, swap=swap, prefix_cache=prefix_cache, chunked=chunked
        )

    @rule(prompt=PROMPTS, max_tokens=st.integers(1, 14), n=st.sampled_from([1, 1, 1, 2, 3]), salt=st.sampled_from("ab"))
    def arrive(self, prompt, max_tokens, n, salt):
        if len(self.world.unfinished) < 8:
            self.world.add(prompt, max_tokens, n, salt)

    @rule(number=st.integers(1, 4))
    def steps(self, number):
        for _ in range(number):
            self.world.step()

    @precondition(lambda self: self.world.unfinished)
    @rule(number=PICK)
    def abort(self, number):
        unfinished = self.world.unfinished
        self.world.abort(unfinished[number % len(unfinished)])

    @precondition(lambda self: self.world.running)
    @rule(number=PICK, pair=st.permutations(range(3)))
    def replace(self, number, pair):
        group = self.world.running[number % len(self.world.running)]
        live = group.live
        if group.decoding and len(live) > 1 and live[0].num_output > 1:
            winner, loser = (live[i % len(live)] for i in pair[:2])
            if winner is not loser:
                self.world.replace(group, winner, loser)

    def teardown(self):
        if hasattr(self, "world"):
            self.world.drain()
            lone = [group for group in self.world.outgrown if group.num_reserved_rows == 1]
            for group in lone:
                length = len(group.request.prompt_token_ids) + len(self.world.outputs[group.sequences[0]])
                assert length > (self.world.total - 1) * self.world.size, "a group that could have gone on was ended"


def test_laws_hold_whatever_arrives_forks_and_aborts(books):
    machine = type("Machine", (EngineMachine,), {"make_books": books})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=80, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


def wander(world, steps, seed):
    """A random trace; the pool is far too small for what arrives. Returns the world, drained."""
    dice = random.Random(seed)
    for _ in range(steps):
        if len(world.unfinished) < 12 and dice.random() < 0.4:
            start = dice.choice([[0] * dice.randint(1, 20), [dice.randint(0, 2) for _ in range(dice.randint(1, 9))]])
            world.add(start, dice.randint(1, 24), dice.choice([1, 1, 2, 4]), dice.choice([None, "tenant"]))
        if world.unfinished and dice.random() < 0.02:
            world.abort(dice.choice(world.unfinished))
        gangs = [g for g in world.running if g.decoding and len(g.live) > 1 and g.live[0].num_output > 1]
        if gangs and dice.random() < 0.1:
            group = dice.choice(gangs)
            world.replace(group, *dice.sample(group.live, 2))
        world.step()
    world.drain()
    return world


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_a_random_trace_of_300_steps(books, swap, seed):
    world = wander(books(18, 3, 14, 12, 6, swap=swap), 300, seed)
    assert world.evictions["swap" if swap else "recompute"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("swap", [False, True])
def test_a_random_trace_of_10000_steps(books, swap):
    world = wander(books(40, 4, 30, 32, 12, swap=swap), 10_000, 7)
    assert world.evictions["recompute"] + world.evictions["swap"] > 100
    assert all(group.state is GroupState.FINISHED for group in world.finished)


@pytest.mark.parametrize("swap", [False, True])
def test_law_15_output_does_not_depend_on_pool_budget_or_block_size(books, swap):
    """Tokens drawn from the whole past: any loss or mix-up on a preemption would change them."""

    def draw(seq):
        past = tuple(seq.token_ids.tolist())
        return hash((past, seq.index)) % 5

    def outputs(**shape):
        world = books(draw=draw, swap=swap, **shape)
        groups = [world.add([i % 2] * (3 + 2 * i), max_tokens=14, n=1 + i % 3) for i in range(6)]
        world.drain()
        assert not world.outgrown
        return [[world.outputs[seq] for seq in group.sequences] for group in groups], world

    ample, world = outputs(num_blocks=200, block_size=4)
    assert not any(world.evictions.values())
    for shape in (
        {"num_blocks": 24, "block_size": 4},
        {"num_blocks": 24, "block_size": 4, "host_blocks": 24, "budget": 7},
        {"num_blocks": 90, "block_size": 1, "host_blocks": 50, "budget": 9},
        {"num_blocks": 24, "block_size": 4, "prefix_cache": False, "chunked": False},
    ):
        tight, world = outputs(**shape)
        assert sum(world.evictions.values()) > 0, shape
        assert tight == ample, shape
