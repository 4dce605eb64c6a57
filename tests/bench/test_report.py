"""Tables as people and as programs read them."""

from __future__ import annotations

import json
from io import StringIO
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from paged_core.bench.conditions import conditions, gpu, processor
from paged_core.bench.report import Column, Report, Table

if TYPE_CHECKING:
    from pathlib import Path


def table() -> Table:
    made = Table("Saved", (Column("mode", "mode"), Column("saved", "saved", ".1%"), Column("paper", "paper", ".1%")))
    made.add("beam", 0.12345, None)
    made.notes.append("a [note] in brackets")
    return made


def test_a_table_shows_rounded_values_and_a_dash_for_what_is_not_known() -> None:
    out = StringIO()
    Report("bench x", {"cores": 2}, [table()]).show(Console(file=out, width=100))
    text = out.getvalue()
    assert "12.3%" in text
    assert text.count(" -") == 1
    assert "a [note] in brackets" in text
    assert "bench x: cores 2" in text


def test_json_holds_conditions_and_unrounded_rows(tmp_path: Path) -> None:
    Report("bench x", {"cores": 2}, [table()]).write_json(tmp_path / "x.json")
    content = json.loads((tmp_path / "x.json").read_text())
    assert content["conditions"] == {"cores": 2}
    assert content["tables"][0]["rows"] == [{"mode": "beam", "saved": 0.12345, "paper": None}]


def test_a_row_of_the_wrong_width_is_refused() -> None:
    with pytest.raises(ValueError, match="2 cells for 3 columns"):
        table().add("beam", 1)


def test_conditions_name_machine_and_versions() -> None:
    found = conditions(seed=3)
    assert {"date", "processor", "cores", "load before", "python", "paged-core", "torch", "numba"} <= set(found)
    assert found["seed"] == 3


def test_on_a_gpu_the_device_and_its_software_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.current_device", lambda: 0)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda index: (9, 0))
    monkeypatch.setattr("torch.cuda.get_device_name", lambda index: "NVIDIA X")
    driver = tmp_path / "version"
    driver.write_text("570.1\n")
    assert gpu(str(driver))["driver"] == "570.1"
    found = conditions(device="cuda")
    assert found["GPU"] == "NVIDIA X (sm_90)"
    assert {"driver", "CUDA", "triton"} <= set(found)
    assert "GPU" not in conditions(device="cpu")


def test_processor_says_which_matrix_instructions_there_are(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("model name : Fast One\ncpu family : 7\nflags : fpu avx2 avx512_bf16 sse\n")
    assert processor(str(cpuinfo)) == "Fast One family 7 (avx2 avx512_bf16)"
    cpuinfo.write_text("model name : Slow One\nflags : fpu\n")
    assert processor(str(cpuinfo)) == "Slow One (no matrix extensions)"


def test_markdown_holds_tables_notes_and_conditions(tmp_path: Path) -> None:
    Report("bench x", {"cores": 2}, [table()]).write_markdown(tmp_path / "x.md")
    lines = (tmp_path / "x.md").read_text().splitlines()
    assert lines[2:5] == ["| mode | saved | paper |", "| --- | --- | --- |", "| beam | 12.3% | - |"]
    assert lines[-3:] == ["a [note] in brackets", "", "bench x: cores 2"]
