"""Every claim, judged on measurements made by hand: the paper's own are reproduced, others missed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from paged_core.errors import ConfigError
from paged_core.sim.reproduce.claims import blocks, memory, rates, sharing
from paged_core.sim.reproduce.claims.every import CLAIMS, IDS, chosen
from paged_core.sim.reproduce.claims.rates import KNEES
from paged_core.sim.reproduce.tasks import FULL, QUICK, At
from tests.sim.reproduce.conftest import found_of

if TYPE_CHECKING:
    from paged_core.sim.reproduce.setup import Setup
    from paged_core.sim.reproduce.tasks import Size
    from paged_core.sim.reproduce.verdict import Row


def rows(claim_id: str, run: Any = lambda task: {}, knee: Any = lambda setup: 1.0, size: Size = FULL) -> list[Row]:
    (claim,) = chosen([claim_id])
    return claim.rows(found_of(claim, run, knee, size))


def verdicts(found: list[Row]) -> set[str]:
    return {row.verdict for row in found if row.tolerance is not None}


def paper_memory(task: At) -> dict[str, float]:
    """What the paper says of the four systems of Fig. 2 and 13."""
    kind, lengths = task.setup.kind, task.setup.lengths
    shares = memory.SPLIT.get(kind, (memory.VLLM_TOKEN, 0.0, 0.0, 0.0))
    token, reserved, internal = (share / 100 for share in shares[:3])
    batched = memory.BATCHED[lengths][kind]
    return {"token": token, "reserved": reserved, "internal": internal, "batched": batched, "tail": 0.02}


@pytest.mark.parametrize("claim", ["H1", "H2", "H4", "H5"])
def test_the_papers_own_memory_is_reproduced(claim: str) -> None:
    assert verdicts(rows(claim, paper_memory)) == {"reproduced"}


@pytest.mark.parametrize("claim", ["H1", "H4", "H5"])
def test_memory_a_fifth_off_is_missed(claim: str) -> None:
    def off(task: At) -> dict[str, float]:
        factor = 1.2 if task.setup.kind == "vllm" else 0.8
        return {name: factor * value for name, value in paper_memory(task).items()}

    assert verdicts(rows(claim, off)) == {"missed"}


def test_what_no_request_has_is_the_rest_of_the_pool() -> None:
    (other,) = [row for row in rows("H2", paper_memory) if row.what == "external and other, Orca (Pow2)"]
    assert other.ours == pytest.approx(100 - 26.8 - 17.9 - 13.6)


def test_waste_is_what_holds_no_token() -> None:
    found = rows("H3", paper_memory)
    assert [round(row.ours, 1) for row in found] == [79.6, 73.2, 61.8, 2.0]
    assert not any(row.required for row in found)


def test_ratios_of_batches_are_of_the_papers_printed_numbers() -> None:
    found = {row.what: row for row in rows("H4", paper_memory)}
    assert found["batched requests, vLLM over Orca (Oracle)"].paper == "2.23x"
    assert found["batched requests, vLLM over Orca (Oracle)"].ours == pytest.approx(30.42 / 13.62)


def test_rates_at_the_papers_knees_are_reproduced() -> None:
    found = rows("H6", knee=lambda setup: KNEES[setup.model, setup.lengths][setup.kind])
    small = [row for row in found if "175" not in row.what and "66" not in row.what]
    assert verdicts(small) == {"reproduced"}
    (over_oracle,) = [row for row in small if "Oracle" in row.what]
    assert over_oracle.ours == pytest.approx(1.9 / 1.1)


def test_h6_is_required_of_the_small_models_against_the_orcas() -> None:
    required = [row.what for row in rows("H6") if row.required]
    assert len(required) == 4
    assert not any("FasterTransformer" in what or "175B" in what for what in required)


def test_equal_rates_miss_h6() -> None:
    assert verdicts(rows("H6")) == {"missed"}


@pytest.mark.parametrize(("ample", "verdict"), [(1.1, "reproduced"), (1.9, "missed")])
def test_h7_wants_the_advantage_to_shrink(ample: float, verdict: str) -> None:
    def knee(setup: Setup) -> float:
        advantage = 1.5 if setup.model == "opt-13b" else ample
        return 10.0 * (advantage if setup.kind == "vllm" else 1.0)

    found = rows("H7", knee=knee)
    assert verdicts(found) == {verdict}
    shrunk = [row.ours for row in found if row.tolerance is not None]
    assert shrunk == pytest.approx([ample / 1.5] * 2)


@pytest.mark.parametrize(("claim", "mode", "required"), [("H8", "sample", True), ("H9", "beam", False)])
def test_the_papers_own_savings_are_reproduced(claim: str, mode: str, required: bool) -> None:
    def saved(task: At) -> dict[str, float]:
        told = sharing.PAPER[mode][task.setup.lengths]  # type: ignore[index]
        return {"saved": told.get(task.setup.width, sum(told.values()) / len(told)) / 100}

    found = rows(claim, saved)
    assert verdicts(found) == {"reproduced"}
    assert len(found) == 6
    assert {row.required for row in found} == {required}


def test_a_saving_four_points_off_is_missed() -> None:
    def saved(task: At) -> dict[str, float]:
        return {"saved": (sharing.PAPER["sample"]["alpaca"][task.setup.width] + 4) / 100}

    found = [row for row in rows("H8", saved) if "Alpaca" in row.what]
    assert verdicts(found) == {"missed"}


def test_the_bound_is_all_but_one() -> None:
    assert [sharing.bound(width) for width in (2, 4)] == [50.0, 75.0]


def test_h10_and_h11_compare_with_what_the_paper_gains() -> None:
    def knee(setup: Setup) -> float:
        told = {"basic": 1.3, "beam": 2.3}[setup.mode]
        told = rates.PREFIX[setup.lengths][1] if setup.lengths in rates.PREFIX else told
        return 4.0 * (told if setup.kind == "vllm" else 1.0)

    assert verdicts(rows("H10", knee=knee)) == verdicts(rows("H11", knee=knee)) == {"reproduced"}
    assert verdicts(rows("H10")) == verdicts(rows("H11")) == {"missed"}


def good_blocks(setup: Setup) -> float:
    """The paper's shape: level where it finds sizes good, falling beyond."""
    good = max(blocks.GOOD[setup.lengths])
    return 10.0 if setup.block_size <= good else 10.0 * 0.8 * good / setup.block_size


def test_h14_wants_the_good_sizes_level_and_the_large_ones_worse() -> None:
    assert verdicts(rows("H14", knee=good_blocks)) == {"reproduced"}


def test_h14_is_missed_when_nothing_degrades_and_when_everything_does() -> None:
    flat, falling = rows("H14"), rows("H14", knee=lambda setup: 100.0 / setup.block_size)
    assert [row.verdict for row in flat if "worst" not in row.what] == ["missed", "missed"]
    assert [row.verdict for row in falling if "worst" in row.what] == ["missed", "missed"]


def latencies(swap: float) -> Any:
    return lambda task: {"normalized_latency": swap if task.setup.preempt == "swap" else 0.2}


def test_h15_has_the_papers_shape() -> None:
    found = rows("H15", latencies(0.21))
    assert [row.what for row in found if row.verdict == "missed"] == ["recompute over swap, at most"]
    assert {row.verdict for row in found if row.required} == {"reproduced"}
    assert sum(row.required for row in found) == 3
    assert [row.verdict for row in rows("H15", latencies(0.3)) if "end to end" in row.what] == ["missed"] * 3


def test_swapping_falls_with_the_block_and_recomputing_does_not() -> None:
    found = blocks.moves()
    swaps = [found[size].swap_ms for size in blocks.SIZES]
    assert swaps == sorted(swaps, reverse=True)
    # 80 chunks a block each way at 2.2 us, and 819,200 bytes a token over 25 GB/s
    assert found[1].swap_ms == pytest.approx(2 * 256 * (80 * 2.2e-3 + 819_200 / 25e6))
    assert found[16].recompute_ms == pytest.approx(0.1405 * 256 + 8.08e-6 * 256**2)


def test_crossings_count_changes_of_the_cheaper_way() -> None:
    move = blocks.Move
    assert blocks.crossings({1: move(9, 5), 2: move(7, 5), 4: move(3, 5)}) == 1
    assert blocks.crossings({1: move(9, 5), 2: move(3, 5), 4: move(9, 5)}) == 2
    assert blocks.crossings({1: move(9, 5), 2: move(8, 5)}) == 0
    assert blocks.dearest({1: move(9, 5), 2: move(4, 5)}) == 1.25


def controls(vllm: float = 1.0, tail: float = 0.0, rounding: bool = True) -> list[Row]:
    def run(task: At) -> dict[str, float]:
        halved = rounding and task.setup.lengths == "equal-513" and task.setup.kind == "oracle"
        return {"tail": tail, "batched": (vllm if task.setup.kind == "vllm" else 1.0) * (0.5 if halved else 1.0)}

    return rows("control", run, lambda setup: vllm if setup.kind == "vllm" else 1.0)


def test_controls_hold_when_nothing_is_gained_but_rounding() -> None:
    assert verdicts(controls()) == {"reproduced"}


@pytest.mark.parametrize(
    ("found", "missed"), [(controls(vllm=1.2), 4), (controls(tail=0.001), 1), (controls(rounding=False), 1)]
)
def test_controls_fail_when_something_is(found: list[Row], missed: int) -> None:
    assert [row.verdict for row in found].count("missed") == missed


@pytest.mark.parametrize("size", [FULL, QUICK], ids=["full", "quick"])
@pytest.mark.parametrize("claim", IDS)
def test_every_claim_needs_runs_and_makes_rows(claim: str, size: Size) -> None:
    (one,) = chosen([claim])
    assert one.tasks(size)
    assert all(row.claim == claim for row in rows(claim, latencies(1.0), size=size))


def test_all_claims_are_there_in_order() -> None:
    assert IDS == ("H1", "H2", "H3", "H4", "H5", "H6", "H7", "H8", "H9", "H10", "H11", "H14", "H15", "control")


def test_claims_are_chosen_by_name() -> None:
    assert [one.id for one in chosen(["control", " h4", "H1"])] == ["H1", "H4", "control"]
    assert chosen(None) == list(CLAIMS)
    with pytest.raises(ConfigError, match="no claim is called H12; known are H1"):
        chosen(["H12"])
