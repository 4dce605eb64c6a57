"""Schedulers and groups of several branches: gangs run whole or not at all, and are admitted at their full width."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paged_conformance.benches.examples import bounded
from paged_conformance.benches.judges import FCFS
from paged_conformance.benches.stage import BLOCK, Stage, decide
from paged_conformance.marks import layer

if TYPE_CHECKING:
    from paged_conformance.candidate import Candidate

pytestmark = layer("laws")

WIDEST = 4  # branches of the widest newcomer; a narrower cap could never take it


@pytest.mark.parametrize("token_budget", [1, 2, 3, 4, 5])
def test_a_gang_decodes_all_its_branches_or_none(sched: Candidate, token_budget: int) -> None:
    stage = Stage(sched.plugins, num_blocks=32)
    single, gang = stage.runs(6), stage.runs(6, n=3)
    decision, recorder = decide(sched, stage, token_budget, 8)
    assert not recorder.breaches, f"budget {token_budget}, a single decode and a gang of 3: {recorder.breaches}"
    ran = {run.group for run in decision.run} | ({single, gang} if decision.decode_all else set())
    assert gang not in ran or token_budget >= 3
    assert ran, f"progress: a budget of {token_budget} runs nobody, though one decode fits"


@pytest.mark.parametrize("swap", [False, True])
def test_a_gang_that_returns_is_not_cut(sched: Candidate, swap: bool) -> None:
    stage = Stage(sched.plugins, num_blocks=32)
    gang = stage.runs(6, n=3)
    assert gang is not None
    stage.leaves(gang, swap=swap)
    for token_budget in (1, 2, 3, 16):
        decision, recorder = decide(sched, stage, token_budget, 8)
        assert not recorder.breaches, f"a returning gang of 3, budget {token_budget}: {recorder.breaches}"
        if token_budget == 16:
            assert decision.resume == [gang], "progress: the only group fits and does not come back"


def test_admission_counts_the_branches_a_request_will_have(sched: Candidate) -> None:
    stage = Stage(sched.plugins, num_blocks=64)
    stage.runs(6, n=3)
    stage.waits(6, n=2)
    stage.waits(6, n=2)
    _, recorder = decide(sched, stage, 64, 6)
    assert "cap" not in recorder.breaches, f"law 6: {recorder.breaches['cap']}"


def moments() -> st.SearchStrategy[dict[str, Any]]:
    """Random queues: (prompt length, branches, tokens computed or None, whether it was preempted and how)."""
    member = st.tuples(
        st.integers(1, 20),
        st.sampled_from([1, 1, 2, 3]),
        st.one_of(st.none(), st.integers(1, 12)),
        st.sampled_from(["runs", "runs", "dropped", "swapped"]),
    )
    return st.fixed_dictionaries(
        {
            "num_blocks": st.integers(4, 30),
            "token_budget": st.integers(WIDEST, 40),  # settings refuse a budget below the cap
            "spare_seqs": st.integers(0, 4),
            "members": st.lists(member, max_size=6),
            "newcomers": st.lists(st.tuples(st.integers(1, 24), st.sampled_from([1, 1, 2, WIDEST])), max_size=4),
        }
    )


def test_decisions_on_random_queues_obey_every_law(sched: Candidate) -> None:
    exempt = frozenset() if sched.has("fcfs") else FCFS

    @bounded(sched, 400)
    @given(moments())
    def judge(moment: dict[str, Any]) -> None:
        stage = build(sched, moment)
        reserved = sum(group.num_reserved_rows for group in stage.running)
        cap = max(WIDEST, reserved + moment["spare_seqs"])
        _, recorder = decide(sched, stage, moment["token_budget"], cap)
        breaches = {law: breach for law, breach in recorder.breaches.items() if law not in exempt}
        assert not breaches, f"on {moment}: {breaches}"

    judge()


def build(sched: Candidate, moment: dict[str, Any]) -> Stage:
    """The queues of a random moment; members that the pool has no room for are left out."""
    stage = Stage(sched.plugins, moment["num_blocks"])
    for length, n, computed, fate in moment["members"]:
        partly = computed if computed is not None and computed < length else None
        group = stage.runs(length, n, computed=partly)
        if group is not None and fate != "runs":
            stage.leaves(group, swap=fate == "swapped")
    for length, n in moment["newcomers"]:
        if length <= moment["num_blocks"] * BLOCK:
            stage.waits(length, n)
    return stage
