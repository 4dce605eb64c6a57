"""The roofline, worked out by hand for a device with round numbers, and held against the published coefficients."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paged_core.costs.calibrated import calibrated
from paged_core.costs.devices import DEVICES, Device
from paged_core.costs.models import MODELS
from paged_core.costs.roofline import Roofline, roofline
from paged_core.costs.work import ModelWork, StepWork

MODEL = ModelWork(
    num_layers=10,
    layer_elements=1000,
    expert_elements=0,
    expert_share=1.0,
    head_elements=100,
    other_elements=100,
    kv_elements=20,
    pair_ops=40,
    hidden_size=8,
)
DEVICE = Device(
    "round", 1 << 30, bytes_per_s=100.0, ops_per_s=1000.0, link_bytes_per_s=64.0, read_share=0.5, ops_share=0.5,
    step_s=3.0, layer_s=0.1, sequence_s=0.01, all_reduce_s=0.2,
)  # fmt: skip
FIXED = 3.0 + 10 * 0.1


def test_few_tokens_wait_for_the_weights() -> None:
    """1,100 elements of two bytes at 50 bytes a second; 30 tokens of 40 bytes; 2 sequences."""
    work = StepWork(num_decodes=2, decode_context=30, num_draws=2)
    assert Roofline(MODEL, DEVICE).step_s(work) == pytest.approx(2200 / 50 + 30 * 40 / 50 + FIXED + 0.02)


def test_many_tokens_wait_for_the_products() -> None:
    """200 tokens of 2,000 operations and a draw of 200; half of 200^2 pairs of 40 operations."""
    work = StepWork(200, 200**2, 200, 1, num_draws=1)
    attention = 200**2 / 2 * 40 / 500
    assert Roofline(MODEL, DEVICE).step_s(work) == pytest.approx((200 * 2000 + 200) / 500 + attention + FIXED + 0.01)


def test_a_step_that_draws_nothing_reads_no_head() -> None:
    work = StepWork(1, 1, 1, 1)
    assert Roofline(MODEL, DEVICE).step_s(work) == pytest.approx(2000 / 50 + 40 / 50 + FIXED + 0.01)


def test_two_devices_halve_the_work_and_talk_twice_a_layer() -> None:
    """Each sends 2 * (2 - 1) / 2 of one token's 16 bytes at 32 bytes a second, and waits 0.2 s, 20 times."""
    work = StepWork(num_decodes=1, decode_context=30, num_draws=1)
    halved = (2200 / 50 + 30 * 40 / 50) / 2
    assert Roofline(MODEL, DEVICE, 2).step_s(work) == pytest.approx(halved + FIXED + 0.01 + 20 * (0.2 + 16 / 32))


def test_other_element_types_change_what_is_read() -> None:
    work = StepWork(num_decodes=1, decode_context=30, num_draws=1)
    narrow = Roofline(MODEL, DEVICE, weight_bytes=1, kv_bytes=1)
    assert narrow.step_s(work) == pytest.approx(1100 / 50 + 30 * 20 / 50 + FIXED + 0.01)


@pytest.mark.parametrize("context", [100, 500])
@pytest.mark.parametrize("count", [1, 8, 32, 64, 94])
@pytest.mark.parametrize("device", ["a100-80gb", "a100-40gb"])
def test_decodes_of_opt_13b_take_what_was_published(device: str, count: int, context: int) -> None:
    published = calibrated("opt-13b", device, 1)
    assert published is not None
    work = StepWork(num_decodes=count, decode_context=count * context, num_draws=count)
    assert roofline(MODELS["opt-13b"], DEVICES[device]).step_s(work) == pytest.approx(published.step_s(work), rel=0.1)


@pytest.mark.parametrize("length", [512, 1024, 2048])
def test_prompts_of_opt_13b_take_nearly_what_was_published(length: int) -> None:
    """A roofline is a bound: real steps do not overlap reading weights with multiplying entirely."""
    published = calibrated("opt-13b", "a100-80gb", 1)
    assert published is not None
    work = StepWork(length, length**2, length, 1, num_draws=1)
    ratio = roofline(MODELS["opt-13b"], DEVICES["a100-80gb"]).step_s(work) / published.step_s(work)
    assert 0.75 < ratio < 1


def test_what_is_assumed_is_said() -> None:
    text = Roofline(MODEL, replace(DEVICES["h200"], read_share=0.7), 4).describe()
    for part in ("4 x h200", "70%", "4,800 GB/s", "989 TFLOP/s"):
        assert part in text
