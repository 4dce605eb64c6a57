"""Laws under any sequence of calls: the set-based model and the allocator agree after every one of them."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from paged_conformance.marks import layer
from paged_conformance.oracles.allocator_calls import CALLS, Call, Trace
from paged_conformance.oracles.allocator_shape import Shape
from paged_conformance.oracles.allocator_world import World

if TYPE_CHECKING:
    from paged_conformance.candidate import Candidate

pytestmark = layer("laws")

SMALL_SIZES = (2, 4, 3, 1, 5)
POOLS = (24, 16, 40, 12, 6, 2)
HOSTS = (24, 12, 4, 0)
MAX_ROWS = 8
MAX_LEN = 40
QUICK = (Phase.explicit, Phase.generate)  # the first failure as it is: shrinking it may take a minute

TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=4)
TRACES = st.lists(st.builds(Call, st.sampled_from(CALLS), st.integers(0, 1000), TOKENS), min_size=12, max_size=50)


def small_shapes(alloc: Candidate) -> list[Shape]:
    """Pools with every small block size that the candidate accepts, or with the smallest of all that it does."""
    shapes = [Shape(block_size=size, max_rows=MAX_ROWS, max_blocks=-(-MAX_LEN // size)) for size in SMALL_SIZES]
    return [shape for shape in shapes if alloc.fit(shape.need(alloc)).ok] or [Shape(max_rows=MAX_ROWS)]


def pools(alloc: Candidate) -> tuple[int, ...]:
    """Sizes of pools in which a few sequences have room, reserved ahead or not."""
    return tuple(4 * size for size in POOLS) if alloc.has("reserves_ahead") else POOLS


def sized(shape: Shape, num_blocks: int, num_host_blocks: int, cache: bool) -> Shape:
    """`shape` with a pool of these sizes."""
    return Shape(num_blocks, shape.block_size, num_host_blocks, MAX_ROWS, shape.max_blocks, cache)


def test_any_sequence_of_calls_agrees_with_the_set_based_model(alloc: Candidate) -> None:
    @settings(
        max_examples=120 if alloc.quick else 250,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        phases=QUICK if alloc.quick else tuple(Phase),
    )
    @given(
        st.builds(
            sized,
            st.sampled_from(small_shapes(alloc)),
            st.sampled_from(pools(alloc)),
            st.sampled_from(HOSTS if alloc.has("swap") else (0,)),
            st.sampled_from((True, True, False)),
        ),
        TRACES,
    )
    def any_trace(shape: Shape, calls: list[Call]) -> None:
        Trace(alloc, World(alloc, shape)).run(calls)

    any_trace()


@pytest.mark.parametrize("seed", range(5))
def test_long_random_traces_agree_with_the_set_based_model(alloc: Candidate, seed: int) -> None:
    """The same calls, thousands of them: a pool that was never empty for long ages differently."""
    draw = random.Random(seed)
    shape = sized(draw.choice(small_shapes(alloc)), draw.choice(pools(alloc)[:4]), 24 if alloc.has("swap") else 0, True)
    calls = [
        Call(draw.choice(CALLS), draw.randrange(1000), [draw.randrange(2) for _ in range(draw.randint(1, 4))])
        for _ in range(200 if alloc.quick else 2000)
    ]
    Trace(alloc, World(alloc, shape)).run(calls)
