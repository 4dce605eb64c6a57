"""A simulation is the real engine: what it conserves, repeats, decides and counts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from paged_core.errors import ConfigError
from paged_core.sim.simulation import _Sampling, simulate
from paged_core.sim.system import System
from paged_core.workload.traces import Arrival

if TYPE_CHECKING:
    from paged_core.sim.outcome import Outcome

SMALL = System(
    model="tiny", cost="roofline", device="l4", block_size=4, num_blocks=60, max_num_seqs=16, token_budget=64
)


def trace(count: int, gap: float = 1e-3, seed: int = 0) -> list[Arrival]:
    """Requests a little faster than a small system answers them, so that its pool runs short."""
    random = np.random.default_rng(seed)
    return [
        Arrival(i * gap, int(random.integers(3, 40)), int(random.integers(2, 40)), client=f"client-{i % 2}")
        for i in range(count)
    ]


def columns(outcome: Outcome) -> dict[str, list[object]]:
    """All columns, to be compared."""
    parts = (outcome.requests, outcome.steps)
    return {name: getattr(part, name).tolist() for part in parts for name in part.__dataclass_fields__}


@pytest.mark.parametrize("preempt", ["recompute", "swap"])
@pytest.mark.parametrize("sampling", [{}, {"n": 3}, {"use_beam_search": True, "beam_width": 3}])
def test_tokens_out_are_the_true_lengths_and_no_block_is_lost(preempt: str, sampling: dict[str, object]) -> None:
    arrivals = trace(40)
    outcome = simulate(replace(SMALL, preempt=preempt), arrivals, sampling=sampling)
    requests, branches = outcome.requests, int(sampling.get("n", 1))  # type: ignore[call-overload]
    assert requests.finished.all()
    assert requests.generated_tokens.tolist() == [branches * one.output_tokens for one in arrivals]
    assert outcome.reasons == {}
    assert not requests.cut.any()
    assert not requests.rejected.any()
    assert sum(outcome.preemptions.values()) == requests.num_preemptions.sum() > 0
    assert set(outcome.steps.used_slots[-1:]) <= {4 * n for n in range(61)}
    assert (requests.arrival_s <= requests.first_token_s).all()
    assert (requests.first_token_s <= requests.finish_s).all()


def test_beams_that_are_computed_again_in_steps_of_their_own_end_as_well() -> None:
    """In such a step nobody draws, although it is one of beams."""
    system = replace(SMALL, preempt="recompute", sched="sched_prefill_first", chunked_prefill=False)
    outcome = simulate(system, trace(40), sampling={"use_beam_search": True, "beam_width": 3})
    assert outcome.requests.finished.all()
    assert outcome.preemptions["recompute"] > 0


def test_steps_follow_each_other_on_the_clock_and_count_every_token() -> None:
    arrivals = trace(30, gap=1e-4)
    outcome = simulate(replace(SMALL, num_blocks=400), arrivals)
    steps = outcome.steps
    ends = steps.begin_s + steps.elapsed_s
    assert (steps.elapsed_s > 0).all()
    assert (steps.begin_s[1:] >= ends[:-1] - 1e-12).all()
    assert outcome.end_s == pytest.approx(ends[-1])
    computed = steps.prefill_tokens.sum() + steps.decode_tokens.sum()
    assert computed == sum(one.prompt_tokens + one.output_tokens - 1 for one in arrivals)  # the last one is not
    assert sum(outcome.preemptions.values()) == 0


def test_equal_arguments_give_equal_outcomes() -> None:
    once, again = (simulate(SMALL, trace(30), seed=3) for _ in range(2))
    assert columns(once) == columns(again)


def test_the_seed_is_that_of_the_models_draws() -> None:
    """Lengths are the trace's, so only what depends on draws may differ: which beams live on."""
    beams = {"use_beam_search": True, "beam_width": 4}
    one, other = (simulate(SMALL, trace(12), sampling=beams, seed=seed) for seed in (0, 1))
    assert one.requests.generated_tokens.tolist() == other.requests.generated_tokens.tolist()
    assert one.steps.saved_blocks.tolist() != other.steps.saved_blocks.tolist()


def test_what_a_request_announces_changes_no_length() -> None:
    """FCFS does not look at it; the end token comes at the true length instead of the limit."""
    exact, vague = simulate(SMALL, trace(20)), simulate(SMALL, trace(20), claimed_tokens=200)
    assert columns(exact) == columns(vague)
    assert vague.requests.generated_tokens.tolist() == vague.requests.output_tokens.tolist()
    announced = [_Sampling({}, claimed).of(30).max_tokens for claimed in (None, 200, 10)]
    assert announced == [30, 200, 30], "never less than the truth"


def test_the_clock_stops_at_until_with_requests_left() -> None:
    outcome = simulate(SMALL, trace(40), until=0.02)
    assert 0.02 <= outcome.end_s < 0.03
    unfinished = ~outcome.requests.finished
    assert unfinished.any()
    assert np.isnan(outcome.requests.latency_s[unfinished]).all()
    begun = unfinished & ~np.isnan(outcome.requests.first_token_s)
    assert begun.any(), "what had come by then is told of those that were stopped, too"
    assert (outcome.requests.generated_tokens[begun] > 0).all()
    assert (outcome.requests.generated_tokens[begun] < outcome.requests.output_tokens[begun]).all()
    idle = simulate(SMALL, [Arrival(5.0, 4, 4)], until=1.0)
    assert (idle.end_s, len(idle.steps)) == (1.0, 0)


def test_a_request_waits_for_its_time() -> None:
    outcome = simulate(SMALL, [Arrival(0.0, 4, 2), Arrival(7.0, 4, 2)])
    assert outcome.steps.begin_s.tolist()[2] == 7.0
    assert outcome.requests.first_token_s[1] == pytest.approx(7.0 + outcome.steps.elapsed_s[2])


def test_what_can_never_run_is_counted_and_harms_nobody() -> None:
    arrivals = [Arrival(0.0, 10, 5), Arrival(0.0, 3000, 5), Arrival(0.0, 300, 5), Arrival(0.0, 10, 5)]
    outcome = simulate(SMALL, arrivals)
    assert outcome.requests.rejected.tolist() == [False, True, True, False]
    assert outcome.requests.finished.tolist() == [True, False, False, True]
    assert sum(outcome.reasons.values()) == 2


def test_what_ends_before_its_true_length_is_cut_with_the_reason() -> None:
    """One outgrows the pool of 240 slots alone, one the model's longest sequence."""
    pool = simulate(SMALL, [Arrival(0.0, 10, 500)])
    assert pool.requests.cut.tolist() == [True]
    assert any("pool" in reason for reason in pool.reasons)
    model = simulate(replace(SMALL, max_model_len=50), [Arrival(0.0, 10, 500)])
    assert model.requests.generated_tokens.tolist() == [40]
    assert list(model.reasons.values()) == [1]


def test_parameters_that_noise_cannot_heed_fail_their_request_with_the_reason() -> None:
    outcome = simulate(SMALL, [Arrival(0.0, 10, 5)], sampling={"allowed_token_ids": [5]})
    assert outcome.requests.cut.tolist() == [True]
    assert any("allowed_token_ids" in reason for reason in outcome.reasons)


def test_memory_is_split_without_rest() -> None:
    """One request of 10 + 8 tokens in blocks of 4, by hand: what it holds, has filled, will fill, and never will."""
    steps = simulate(SMALL, [Arrival(0.0, 10, 8)]).steps
    computed = np.arange(10, 18)
    assert steps.token_slots.tolist() == computed.tolist()
    held = -(-computed // 4) * 4
    assert steps.used_slots.tolist() == held.tolist()
    useful = np.minimum(held, 18)
    assert steps.reserved_slots.tolist() == (useful - computed).tolist()
    assert steps.internal_slots.tolist() == (held - useful).tolist()
    assert set(steps.total_slots.tolist()) == {240}


def test_requests_share_prefixes_exactly_where_blocks_have_equal_names() -> None:
    """Blocks of 8 tokens; the second request shares two, the third none though its lengths are equal."""
    system = replace(SMALL, prefix_cache=True, num_blocks=200)
    arrivals = [
        Arrival(0.0, 24, 2, blocks=(1, 2, 3), block_tokens=8),
        Arrival(1.0, 22, 2, blocks=(1, 2, 4), block_tokens=8),
        Arrival(2.0, 24, 2, blocks=(2, 1, 3), block_tokens=8),
        Arrival(3.0, 24, 2, blocks=(1, 2, 3), block_tokens=8),
    ]
    outcome = simulate(system, arrivals)
    assert outcome.requests.cached_tokens.tolist() == [0, 16, 0, 23]
    assert outcome.prefix_hits == 39
    nameless = [replace(one, blocks=(), block_tokens=0) for one in arrivals]
    assert simulate(system, nameless).prefix_hits == 0
    assert simulate(replace(system, prefix_cache=False), arrivals).prefix_hits == 0


def test_progress_is_told() -> None:
    told: list[tuple[int, float]] = []
    simulate(SMALL, trace(5), progress=lambda ended, now: told.append((ended, now)))
    assert told


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"model": "opt-13"}, "opt-13b"),
        ({"device": "a1000"}, "Known are"),
        ({"sched": "nothing"}, "nothing"),
        ({"cost": "nothing"}, "module:attribute"),
        ({"model": "opt-175b", "num_blocks": None}, "GB of weights"),
        ({"token_budget": 8}, "max_num_seqs"),
        ({"plugins": {"exec_sim": {"no_such_key": 1}}}, "no_such_key"),
    ],
)
def test_a_system_that_cannot_be_is_refused(change: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        simulate(replace(SMALL, **change), [Arrival(0.0, 4, 4)])  # type: ignore[arg-type]


def test_arrivals_out_of_order_are_refused() -> None:
    with pytest.raises(ConfigError, match="order of time"):
        simulate(SMALL, [Arrival(1.0, 4, 4), Arrival(0.0, 4, 4)])
