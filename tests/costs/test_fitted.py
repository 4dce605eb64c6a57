"""A fit finds the coefficients that made the data, says honestly how far off it is, and survives its file."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from paged_core.api.model import MoeSpec
from paged_core.costs.choice import Server, device_called, find_cost, model_called
from paged_core.costs.devices import DEVICES
from paged_core.costs.fitted import Calibration, Error, Fitted, error, fit, read_calibration
from paged_core.costs.models import MODELS
from paged_core.costs.work import StepWork
from paged_core.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

TRUE = Fitted(8e-3, (4, 16, 64, 256), (1e-3, 2e-4, 3e-4, 5e-4, 4e-4), 3e-4, 1e-6, 9e-8)


def works(count: int = 200, seed: int = 0) -> list[StepWork]:
    """Decodes, prompts and both, of many sizes."""
    random, found = np.random.default_rng(seed), []
    for i in range(count):
        decodes = int(random.integers(1, 64)) if i % 3 != 1 else 0
        prompt = int(random.integers(2, 500)) if i % 3 else 0
        context = decodes * int(random.integers(10, 900))
        prefills = int(prompt > 0)
        found.append(StepWork(prompt, prompt**2, prompt, prefills, decodes, context, decodes + prefills))
    return found


def test_a_step_costs_the_sum_of_its_parts() -> None:
    """100 tokens: 4 at the first slope, 12, 48 and 36 at the next ones."""
    work = StepWork(90, 8100, 90, 1, 10, 3000, 11)
    tokens = 4 * 1e-3 + 12 * 2e-4 + 48 * 3e-4 + 36 * 5e-4
    assert TRUE.step_s(work) == pytest.approx(8e-3 + tokens + 11 * 3e-4 + 3000e-6 + 8100 * 9e-8)


def test_the_coefficients_that_made_the_data_are_found() -> None:
    data = works()
    found = fit(data, [TRUE.step_s(work) for work in data])
    assert found.edges == TRUE.edges
    for name in ("step", "tokens", "draw", "context", "square"):
        assert getattr(found, name) == pytest.approx(getattr(TRUE, name), rel=1e-6), name
    assert error(found, data, [TRUE.step_s(work) for work in data]).worst < 1e-9


def test_noise_of_five_percent_moves_predictions_by_less() -> None:
    random, data, others = np.random.default_rng(1), works(), works(60, seed=9)
    noisy = [TRUE.step_s(work) * random.normal(1, 0.05) for work in data]
    off = error(fit(data, noisy), others, [TRUE.step_s(work) for work in others])
    assert off.median < 0.02
    assert off.r2 > 0.99


def test_no_coefficient_is_negative_whatever_was_measured() -> None:
    """Times that fall with the context are noise or a mistake; nobody gets time back for it."""
    data = works()
    found = fit(data, [0.1 - 1e-6 * work.decode_context + 1e-4 * work.num_tokens for work in data])
    assert found.context == 0
    assert min(found.tokens) >= 0


def test_ranges_that_were_not_measured_have_no_slope_of_their_own() -> None:
    data = [StepWork(num_decodes=n, decode_context=n * c, num_draws=n) for n in range(1, 15) for c in (10, 99)]
    mixed = [replace_draws(work, i % 3) for i, work in enumerate(data)]
    assert fit(mixed, [TRUE.step_s(work) for work in mixed]).edges == (4,)


def replace_draws(work: StepWork, fewer: int) -> StepWork:
    return work._replace(num_draws=max(0, work.num_draws - fewer))


def test_too_few_steps_are_refused() -> None:
    with pytest.raises(ConfigError, match="measure more kinds"):
        fit(works(5), [1.0] * 5)


def test_errors_are_relative_and_the_worst_is_told() -> None:
    data = [StepWork(num_decodes=1, decode_context=n, num_draws=1) for n in (0, 0, 0, 0)]
    took = TRUE.step_s(data[0])
    off = error(TRUE, data, [took, took, took, took / 2])
    assert (off.steps, off.median, off.worst) == (4, 0.0, pytest.approx(1.0))
    assert "100.0% at worst" in str(off)
    assert error(TRUE, data[:1], [took]).r2 == 1.0


@pytest.fixture
def calibration() -> Calibration:
    spec = replace(MODELS["llama-3-8b"], moe=MoeSpec(8, 2, 64), windows=(64, None) * 16)
    fitted = replace(TRUE, source="somewhere")
    return Calibration(
        "some/model", spec, DEVICES["l4"], fitted, Error(9, 1, 0, 0, 0), Error(4, 0.9, 0.1, 0.2, 0.3), {"cores": "2"}
    )


def test_a_file_gives_back_what_was_written(calibration: Calibration, tmp_path: Path) -> None:
    calibration.write(tmp_path / "cpu.json")
    assert read_calibration(tmp_path / "cpu.json") == calibration
    name = str(tmp_path / "cpu.json")
    assert find_cost(name, Server("x", MODELS["tiny"], DEVICES["l4"])) == calibration.fitted
    assert device_called(name) == DEVICES["l4"]
    assert model_called(name) == calibration.spec
    assert "somewhere" in calibration.fitted.describe()


@pytest.mark.parametrize("damage", ["missing", "text", "format", "coefficient", "shape"])
def test_a_damaged_file_is_refused_by_name(calibration: Calibration, tmp_path: Path, damage: str) -> None:
    path = tmp_path / "cpu.json"
    calibration.write(path)
    content = json.loads(path.read_text())
    if damage == "format":
        content["format"] = "paged-core costs 0"
    elif damage == "coefficient":
        del content["fitted"]["draw"]
    elif damage == "shape":
        content["spec"]["num_layers"] = None
        content["device"]["nonsense"] = 1
    path.write_text("no JSON" if damage == "text" else json.dumps(content))
    if damage == "missing":
        path.unlink()
    with pytest.raises(ConfigError, match=r"cpu\.json"):
        read_calibration(path)
