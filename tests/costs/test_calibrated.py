"""The published coefficients: figures worked out by hand from the table in the module's source."""

from __future__ import annotations

import pytest

from paged_core.costs.calibrated import LARGE_BATCH, calibrated
from paged_core.costs.work import StepWork
from paged_core.errors import ConfigError


def ms(work: StepWork, model: str = "opt-13b", device: str = "a100-80gb", num_devices: int = 1) -> float:
    found = calibrated(model, device, num_devices)
    assert found is not None
    return found.step_s(work) * 1000


def decodes(count: int, context: int) -> StepWork:
    return StepWork(num_decodes=count, decode_context=context, num_draws=count)


def prompts(*lengths: int) -> StepWork:
    total = sum(lengths)
    return StepWork(total, sum(length**2 for length in lengths), total, len(lengths), num_draws=len(lengths))


def test_a_prefill_pays_for_tokens_and_for_squares_of_lengths() -> None:
    assert ms(prompts(1000)) == pytest.approx(22.05 + 140.5 + 8.08)
    assert ms(prompts(500, 500)) == pytest.approx(22.05 + 140.5 + 4.04)
    assert ms(prompts(200), "opt-66b", num_devices=4) == pytest.approx(42.97 + 42.58 + 1.84)


def test_decodes_pay_for_context_and_sequences_by_two_lines() -> None:
    assert ms(decodes(10, 5000)) == pytest.approx(23.48 + 2.965 + 0.607)
    assert ms(decodes(94, 0)) == pytest.approx(23.48 + 94 * 0.0607)
    assert ms(decodes(LARGE_BATCH, 0)) == pytest.approx(20.21 + 95 * 0.12)
    assert ms(decodes(200, 10_000), "opt-66b", num_devices=4) == pytest.approx(40.86 + 4.26 + 39.02)


def test_slower_memory_makes_decodes_dearer_but_for_the_sequences() -> None:
    assert ms(decodes(10, 5000), device="a100-40gb") == pytest.approx(1.31 * (23.48 + 2.965) + 0.607)
    assert ms(prompts(1000), device="a100-40gb") == ms(prompts(1000))


def test_chunks_of_a_prompt_cost_what_it_does_but_for_the_fixed_part() -> None:
    whole = ms(prompts(1000))
    first = ms(StepWork(400, 400**2, 400, 1))
    second = ms(StepWork(600, 1000**2 - 400**2, 1000, 1))
    assert first + second == pytest.approx(whole + 22.05)


class Flat:
    """Always the same price."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def step_s(self, work: StepWork) -> float:
        return self.seconds

    def describe(self) -> str:
        return "flat"


def test_prompts_beside_decodes_are_refused_unless_somebody_prices_them() -> None:
    mixed = prompts(100)._replace(num_decodes=4, decode_context=400, num_draws=5)
    with pytest.raises(ConfigError, match="prefill-only"):
        ms(mixed)
    from dataclasses import replace

    found = calibrated("opt-13b", "a100-80gb", 1)
    assert found is not None
    assert replace(found, mixed=Flat(9.0)).step_s(mixed) == 9.0
    least = max(ms(prompts(100)), ms(decodes(4, 400))) / 1000
    assert replace(found, mixed=Flat(0.001)).step_s(mixed) == pytest.approx(least)


def test_there_are_none_for_other_servers() -> None:
    assert calibrated("opt-13b", "h100-80gb", 1) is None
    assert calibrated("opt-13b", "a100-80gb", 2) is None
    assert calibrated("opt-175b", "a100-80gb", 8) is None


def test_where_the_numbers_are_from_is_said() -> None:
    found = calibrated("llama-13b", "a100-40gb", 1)
    assert found is not None
    for part in ("llama-13b, as large as", "OPT-13B", "DistServe", "1.31", "refused"):
        assert part in found.describe()
