"""`paged-core calibrate` on a tiny model: the file it writes is this machine, as far as simulations are concerned."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from paged_core.cli import main
from paged_core.costs.fitted import read_calibration
from paged_core.costs.work import StepWork
from paged_core.sim.simulation import simulate
from paged_core.sim.system import System
from paged_core.workload.traces import Arrival

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result

TINY = ("--model", "random:tiny", "--attn", "torch", "--threads", "1", "--kv-memory", "4MiB", "--quick")


def calibrate(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["calibrate", *TINY, *arguments], catch_exceptions=False)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The costs, and the report."""
    folder = tmp_path_factory.mktemp("calibrate")
    costs, report = folder / "costs.json", folder / "report.json"
    result = calibrate("--check", "--requests", "5", "--scale", "0.05", "--output", str(costs), "--json", str(report))
    assert result.exit_code == 0, result.stderr
    assert str(costs) in result.stderr
    return costs, report


def test_the_file_holds_the_model_the_machine_and_honest_errors(written: tuple[Path, Path]) -> None:
    found = read_calibration(written[0])
    assert found.model == "random:tiny"
    assert (found.spec.num_layers, found.spec.hidden_size) == (2, 64)
    assert found.device.memory_bytes > 1 << 20
    assert found.device.bytes_per_s > 0
    assert found.fitted.step > 0
    assert found.held_out.steps > 0
    assert found.fit_error.steps > found.held_out.steps
    assert "processor" in found.conditions


def test_the_report_compares_the_engine_with_its_simulation(written: tuple[Path, Path]) -> None:
    tables = json.loads(written[1].read_text())["tables"]
    assert any("Held out" in note for note in tables[0]["notes"])
    rows = tables[1]["rows"]
    assert len({row["load"] for row in rows}) == 2
    for row in rows:
        assert row["real"] > 0
        assert row["off"] == pytest.approx(row["simulated"] / row["real"] - 1)


def test_a_simulation_takes_the_file_for_model_device_and_costs(written: tuple[Path, Path]) -> None:
    name = str(written[0])
    system = System(model=name, device=name, cost=name, num_blocks=50, max_num_seqs=4, token_budget=64)
    outcome = simulate(system, [Arrival(0.0, 10, 3)])
    first = outcome.steps.elapsed_s[0]
    assert first == pytest.approx(read_calibration(name).fitted.step_s(StepWork(10, 100, 10, 1, num_draws=1)))
    assert outcome.requests.generated_tokens.tolist() == [3]
    slower = replace(system, plugins={"exec_sim": {"cost": "roofline"}})
    assert simulate(slower, [Arrival(0.0, 10, 3)]).steps.elapsed_s[0] != first


def test_an_output_that_cannot_be_written_is_found_at_once(tmp_path: Path) -> None:
    result = calibrate("--output", str(tmp_path / "nowhere" / "costs.json"))
    assert result.exit_code == 2
    assert "there is no such folder" in result.stderr
