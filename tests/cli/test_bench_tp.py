"""`paged-core bench tp`: every column is what it says."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from paged_core.cli import main
from paged_core.testing.tiny import write_tiny_llama

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.slow
def test_a_shared_step_is_measured_beside_one_process(tmp_path: Path) -> None:
    model = write_tiny_llama(tmp_path / "model")
    out = tmp_path / "x.json"
    sizes = ["--batch", "1", "--batch", "4", "--num-blocks", "128", "--max-num-seqs", "8"]
    result = CliRunner().invoke(main, ["bench", "tp", "--quick", "--model", str(model), *sizes, "--json", str(out)])
    assert result.exit_code == 0, result.stderr
    report = json.loads(out.read_text())
    rows = report["tables"][0]["rows"]
    assert [row["batch"] for row in rows] == [1, 4]
    assert report["conditions"]["ranks"] == 2  # the smallest size above 1
    for row in rows:
        assert row["ratio"] == pytest.approx(row["ranks_ms"] / row["one_ms"])
        assert row["meetings"] == 6  # the embedding, two in each of two layers, the logits
        for column in ("control_ms", "meeting_ms", "one_cpu_ms", "ranks_cpu_ms"):
            assert row[column] > 0, column
    assert rows[1]["bytes"] - rows[0]["bytes"] > 3 * 8 * 4


def test_a_size_that_does_not_work_is_refused_with_those_that_do(tmp_path: Path) -> None:
    model = write_tiny_llama(tmp_path / "model")
    arguments = ["--tensor-parallel-size", "3", "--model", str(model), "--num-blocks", "64"]
    result = CliRunner().invoke(main, ["bench", "tp", "--quick", *arguments])
    assert result.exit_code == 2
    assert "sizes that work: 1, 2, 4" in result.stderr
