"""Preemption plugins alone: modes that are declared, prices that make sense, and nothing but an answer."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paged_conformance.benches.examples import bounded
from paged_conformance.benches.stage import BLOCK, Stage
from paged_conformance.marks import layer, requires
from paged_core.api.preemption import PreemptionNeed

if TYPE_CHECKING:
    from paged_conformance.candidate import Candidate
    from paged_core.api.preemption import Eviction, Preemption
    from paged_core.api.request import Group

pytestmark = layer("behaviour")

MODES = frozenset({"swap", "recompute"})


def situations() -> st.SearchStrategy[tuple[int, int, int, int, float]]:
    """(prompt tokens, branches, tokens computed, free host blocks, how dear recomputing is against swapping)."""
    return st.tuples(
        st.integers(2, 60),
        st.sampled_from([1, 1, 2, 4]),
        st.integers(1, 60),
        st.integers(0, 64),
        st.sampled_from([1e-6, 1e-2, 1.0, 1e2, 1e6]),
    )


def plugin(preempt: Candidate, ratio: float = 1.0) -> Preemption:
    """A fresh backend that takes recomputing for `ratio` times as dear as it is by default."""
    need = PreemptionNeed(BLOCK, 1 << 16, 64, swap_bytes_per_s=10e9, prefill_tokens_per_s=1000.0 / ratio)
    backend: Preemption = preempt.create(need)
    return backend


def group_of(preempt: Candidate, prompt: int, n: int, computed: int) -> tuple[Group, int]:
    """A running group, `computed` tokens in or (`computed` >= `prompt`) decoding; and its distinct device blocks."""
    stage = Stage(preempt.plugins, num_blocks=128)
    group = stage.runs(prompt, n, computed=computed if computed < prompt else None)
    assert group is not None
    return group, stage.num_blocks_of(group)


def facts(group: Group) -> list[object]:
    """All that a plugin could alter of a group, scheduler's notes included."""
    rows = [
        (seq.row, seq.num_tokens, seq.num_computed, seq.divergence, seq.finish_reason, seq.token_ids.tolist())
        for seq in group.sequences
    ]
    return [
        group.state,
        group.residency,
        group.num_preemptions,
        dict(group.notes),
        list(map(id, group.sequences)),
        rows,
    ]


def test_only_declared_modes_are_chosen(preempt: Candidate) -> None:
    @bounded(preempt, 200)
    @given(situations())
    def judge(situation: tuple[int, int, int, int, float]) -> None:
        prompt, n, computed, host_free, ratio = situation
        group, num_blocks = group_of(preempt, prompt, n, computed)
        mode = plugin(preempt, ratio).evict(group, num_blocks, host_free).mode
        assert mode in MODES, f"{mode!r} is no mode; a group of {num_blocks} blocks, {host_free} host blocks free"
        assert preempt.has(mode), f"{preempt.name} chose {mode!r}, which it does not declare, for {situation}"

    judge()


def test_prices_are_finite_and_not_negative(preempt: Candidate) -> None:
    @bounded(preempt, 200)
    @given(situations())
    def judge(situation: tuple[int, int, int, int, float]) -> None:
        prompt, n, computed, host_free, ratio = situation
        group, num_blocks = group_of(preempt, prompt, n, computed)
        cost = plugin(preempt, ratio).evict(group, num_blocks, host_free).cost_s
        assert math.isfinite(cost), f"a price of {cost} s for {situation}"
        assert cost >= 0, f"a price of {cost} s for {situation}"

    judge()


def test_a_price_is_a_question_that_changes_no_group(preempt: Candidate) -> None:
    for prompt, n, computed in ((9, 1, 9), (30, 1, 12), (10, 3, 10)):
        group, num_blocks = group_of(preempt, prompt, n, computed)
        before = facts(group)
        backend = plugin(preempt)
        for host_free in (0, 1, 64):
            backend.evict(group, num_blocks, host_free)
        assert facts(group) == before, f"evict altered the group (prompt {prompt}, {n} branches, {computed} computed)"


def test_asking_for_a_price_twice_gives_the_same_answer(preempt: Candidate) -> None:
    """`View.eviction_cost` asks about groups that then stay: an answer may not count on being obeyed."""
    backend = plugin(preempt)
    group, num_blocks = group_of(preempt, 20, 1, 20)
    for host_free in (64, 0, 64):
        answers = [backend.evict(group, num_blocks, host_free) for _ in range(3)]
        assert answers[0] == answers[1] == answers[2], f"{host_free} host blocks free: {answers}"


def test_every_declared_mode_is_chosen_somewhere(preempt: Candidate) -> None:
    """Host memory free or full, recomputing cheap or dear: a mode that never happens should not be declared."""
    seen: set[str] = set()
    for ratio in (1e-6, 1.0, 1e6):
        for prompt in (3, 60):
            group, num_blocks = group_of(preempt, prompt, 1, prompt)
            for host_free in (0, 64):
                seen.add(plugin(preempt, ratio).evict(group, num_blocks, host_free).mode)
    assert seen == preempt.provider.capabilities & MODES, (
        f"declared {sorted(preempt.provider.capabilities)}, saw {seen}"
    )


@requires("swap")
@pytest.mark.parametrize("n", [1, 2, 4])
def test_a_swapped_gang_moves_each_shared_block_once(preempt: Candidate, n: int) -> None:
    stage = Stage(preempt.plugins, num_blocks=64)
    group = stage.runs(10, n)
    assert group is not None
    stage.allocator.check()
    num_blocks = stage.num_blocks_of(group)
    answer: Eviction = plugin(preempt, ratio=1e6).evict(group, num_blocks, 64)
    if answer.mode != "swap":
        pytest.fail(f"recomputing is a million times dearer than usual, the host is empty, and the answer is {answer}")
    out = stage.allocator.swap_out(group)
    assert out is not None
    assert len({pair.src for pair in out}) == len(out) == num_blocks, f"{n} branches on {num_blocks} blocks: {out}"
    assert len({pair.dst for pair in out}) == len(out), f"two blocks to one place: {out}"
    back = stage.allocator.swap_in(group)
    assert back is not None
    assert sorted(pair.src for pair in back) == sorted(pair.dst for pair in out), "what left is not what came back"
    stage.allocator.check()
