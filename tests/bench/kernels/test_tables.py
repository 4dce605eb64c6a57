"""Rates and shares by hand, from readings made up; goals met and missed."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest
import torch

from paged_core.bench.kernels.cases import GOAL_CASE, LLAMA_8B, Case, Heads, Move
from paged_core.bench.kernels.goals import LARGE_BYTES, goal_tables
from paged_core.bench.kernels.paged import Backend
from paged_core.bench.kernels.reading import Log, Moved, Reading
from paged_core.bench.kernels.tables import move_tables, step_tables
from paged_core.bench.peaks import Peaks
from paged_core.bench.timing import Measurement

if TYPE_CHECKING:
    from paged_core.bench.site import Site

HEADS = Heads(4, 2, 16)
PEAKS = Peaks(read_bytes=1e9, fp32=1e9, bf16=2e9, int8=None, copy_bytes=4e9, out_bytes=5e8, in_bytes=2.5e8)
BF16 = Backend("attn_x", 16, "bfloat16")


@pytest.fixture
def gpu(site: Site) -> Site:
    return dataclasses.replace(site, device=torch.device("cuda"))


def reading(case: Case, seconds: float, contiguous: float | None = None, backend: Backend = BF16) -> Reading:
    rivals = {} if contiguous is None else {"contiguous": Measurement((contiguous,))}
    return Reading(case, backend, Measurement((seconds,)), None, None, rivals)


def log_of(*steps: Reading) -> Log:
    return Log(lambda line: None, steps=list(steps))


def test_a_decode_is_held_against_reading_on_a_cpu_and_copying_on_a_gpu(site: Site, gpu: Site) -> None:
    case = Case(HEADS, 2, 100)
    log = log_of(reading(case, 1e-3, contiguous=2e-3))
    for where, peak in ((site, PEAKS.read_bytes), (gpu, PEAKS.copy_bytes)):
        (table,) = step_tables(log, PEAKS, where, rounds=1)
        (row,) = table.as_json()["rows"]
        assert peak is not None
        assert (row["sequences"], row["context"], row["new"], row["us"]) == (2, 100, 1, pytest.approx(1000))
        assert row["memory_share"] == pytest.approx(case.kv_bytes("bfloat16") / peak / 1e-3)
        assert row["share"] == pytest.approx(max(row["memory_share"], case.ops / PEAKS.bf16 / 1e-3))
        assert (row["contiguous_us"], row["contiguous_ratio"]) == (pytest.approx(2000), pytest.approx(0.5))


def test_a_prefills_limit_is_the_products_rate_of_its_type(site: Site) -> None:
    case = Case(HEADS, 1, 64, 64)
    log = log_of(reading(case, 1e-3), reading(case, 1e-3, backend=Backend("attn_x", 16, "float32")))
    (table,) = step_tables(log, PEAKS, site, rounds=1)
    bf16, fp32 = table.as_json()["rows"]
    assert bf16["share"] == pytest.approx(case.ops / 2e9 / 1e-3)
    assert fp32["share"] == pytest.approx(case.ops / 1e9 / 1e-3)
    assert bf16["tflop_per_s"] == pytest.approx(case.ops / 1e-3 / 1e12)
    assert "contiguous_us" not in bf16


def test_a_write_shows_the_whole_call_and_what_writing_adds(site: Site) -> None:
    case = Case(HEADS, 8, 1)
    one = dataclasses.replace(reading(case, 3e-6), without_writing=Measurement((1e-6,)), rotating=Measurement((4e-6,)))
    (table,) = step_tables(log_of(one), PEAKS, site, rounds=1)
    (row,) = table.as_json()["rows"]
    assert row["gb_per_s"] == pytest.approx(case.moved_bytes("bfloat16", "bfloat16") / 3e-6 / 1e9)
    assert row["share"] == pytest.approx(row["gb_per_s"] / 4)
    assert (row["writing_us"], row["rotating_us"]) == (pytest.approx(2), pytest.approx(4))
    assert "no call that writes only" in table.notes[0]


def test_copies_count_twice_and_swaps_once_each_against_its_own_peak(site: Site) -> None:
    moved = [
        Moved(Move(direction, HEADS, 3, 2), BF16, Measurement((1e-3,)), 10**5) for direction in ("copy", "out", "in")
    ]
    (table,) = move_tables(moved, PEAKS, site)
    copy, out, back = table.as_json()["rows"]
    assert [one["operation"] for one in (copy, out, back)] == ["copy", "swap out", "swap in"]
    assert (copy["mb"], out["mb"]) == (pytest.approx(0.2), pytest.approx(0.1))
    assert copy["share"] == pytest.approx(2e5 / 1e-3 / 4e9)
    assert out["share"] == pytest.approx(1e5 / 1e-3 / 5e8)
    assert back["share"] == pytest.approx(1e5 / 1e-3 / 2.5e8)
    assert move_tables([], PEAKS, site) == []


def test_a_cpus_goals_are_read_bandwidth_and_the_gain_of_codes(site: Site) -> None:
    read_s = GOAL_CASE.kv_bytes("bfloat16") / PEAKS.read_bytes
    bf16 = reading(GOAL_CASE, read_s / 0.8)
    codes = reading(GOAL_CASE, read_s / 0.8 / 1.5, backend=Backend("attn_x", 16, "uint8"))
    (table,) = goal_tables([bf16, codes], PEAKS, site)
    rows = table.as_json()["rows"]
    assert [row["value"] for row in rows] == pytest.approx([0.8, 1.5])
    assert [(row["goal"], row["verdict"]) for row in rows] == [(0.75, "met"), (1.6, "missed")]
    assert len(goal_tables([bf16], PEAKS, site)[0].rows) == 1
    assert goal_tables([codes], PEAKS, site) == []


def test_a_gpus_goals_are_those_of_the_worst_large_case(gpu: Site) -> None:
    large, small = Case(LLAMA_8B, 32, 1024), Case(LLAMA_8B, 1, 64)
    assert small.kv_bytes("bfloat16") < LARGE_BYTES <= large.kv_bytes("bfloat16")
    copy_s = large.kv_bytes("bfloat16") / 4e9
    whole, few = Case(LLAMA_8B, 1, 4096, 4096), Case(LLAMA_8B, 1, 64, 64)
    product_s = whole.ops / PEAKS.bf16
    log = [
        reading(large, copy_s / 0.9, contiguous=copy_s / 0.9),
        reading(large, copy_s / 0.84, contiguous=copy_s / 0.9, backend=Backend("attn_x", 32, "bfloat16")),
        reading(small, 1.0, contiguous=0.1),
        reading(whole, product_s / 0.7, contiguous=product_s / 0.7 / 1.04),
        reading(few, 1.0, contiguous=0.1),
        reading(whole, 1e3, backend=Backend("attn_x", 16, "float32")),
    ]
    (table,) = goal_tables(log, PEAKS, gpu)
    copied, multiplied, decoded, prefilled = table.as_json()["rows"]
    assert (copied["cases"], copied["verdict"]) == (2, "missed")
    assert (copied["value"], copied["best"]) == (pytest.approx(0.84), pytest.approx(0.9))
    assert "blocks of 32" in copied["where"]
    assert (multiplied["cases"], multiplied["value"], multiplied["verdict"]) == (1, pytest.approx(0.7), "met")
    assert (decoded["value"], decoded["verdict"]) == (pytest.approx(0.9 / 0.84), "missed")
    assert (prefilled["value"], prefilled["verdict"]) == (pytest.approx(1.04), "met")


def test_goals_without_large_cases_are_not_shown(gpu: Site) -> None:
    assert goal_tables([reading(Case(LLAMA_8B, 1, 64), 1.0)], PEAKS, gpu) == []
