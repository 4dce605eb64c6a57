"""`paged-core bench`: every benchmark runs, prints its table and writes its JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from paged_core.cli import main
from paged_core.testing import tiny

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result


def bench(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["bench", *arguments])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A random tiny model with room for five examples of bytes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(tiny.CONFIG, "max_position_embeddings", 2048)
        return str(tiny.write_tiny_llama(tmp_path_factory.mktemp("bench") / "model"))


def rows(path: Path, table: int = 0) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text())["tables"][table]["rows"]
    return found


def test_sharing_without_data_says_what_is_needed() -> None:
    result = bench("sharing")
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
    assert "--data DIR" in result.stderr
    assert "wmt_ende_pairs.tsv" in result.stderr


def test_sharing_names_all_files_that_a_folder_lacks(tmp_path: Path) -> None:
    result = bench("sharing", "--data", str(tmp_path))
    assert result.exit_code == 2
    assert "mt_bench.jsonl" in result.stderr
    assert "arena_multiclient.csv" in result.stderr


def test_saving_under_the_papers_lengths_is_near_the_papers(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    result = bench("sharing", "--quick", "--part", "lengths", "--json", str(path))
    assert result.exit_code == 0, result.stderr
    assert "Memory saved by parallel sampling" in result.stdout
    saved = {(row["prompts"], row["width"]): row["saved"] for row in rows(path)}
    assert len(saved) == 6
    for width, paper in ((2, 0.0609), (4, 0.0853), (6, 0.0979)):
        assert saved["Alpaca-like", width] == pytest.approx(paper, abs=0.02)
    assert 0.1 < saved["ShareGPT-like", 2] < saved["ShareGPT-like", 6] < 0.4


def test_sharing_runs_samples_beams_and_prefixes_on_a_real_model(tmp_path: Path, model: str) -> None:
    path = tmp_path / "x.json"
    parts = ("--part", "prompts", "--part", "prefix")
    result = bench("sharing", "--quick", *parts, "--json", str(path), "--model", model, "--kv-memory", "16MiB")
    assert result.exit_code == 0, result.stderr
    saved = {(row["prompts"], row["mode"], row["width"]): row["saved"] for row in rows(path)}
    assert len(saved) == 12
    for name in ("tasks", "chat"):
        for width in (2, 4, 6):
            assert 0 < saved[name, "sample", width] < saved[name, "beam", width] < (width - 1) / width
    drawn = [row for row in rows(path, 1) if row["prompts"] == "ShareGPT-like"]
    assert [row["paper"] for row in drawn] == [0.443, None, 0.663]
    assert 0 < drawn[0]["saved"] < drawn[1]["saved"] < drawn[2]["saved"]
    one_shot, five_shots = rows(path, 2)
    assert (one_shot["shots"], five_shots["shots"]) == (1, 5)
    for row in (one_shot, five_shots):
        spared = row["tokens_off"] - row["tokens_on"]
        whole_blocks = row["prefix_tokens"] // 16 * 16
        assert spared >= (row["sentences"] - 1) * whole_blocks


def test_latency_is_held_against_the_floor(tmp_path: Path, model: str) -> None:
    path = tmp_path / "x.json"
    result = bench("latency", "--quick", "--json", str(path), "--model", model, "--kv-memory", "4MiB")
    assert result.exit_code == 0, result.stderr
    (row,) = rows(path)
    assert row["prompt_tokens"] == 16
    assert 0 < row["decode_per_s"] < row["decode_floor_per_s"]
    assert rows(path, 1)[0]["peak"] == "memory read, GB/s"


def test_prompts_that_do_not_fit_are_cut_and_measured_once(tmp_path: Path, model: str) -> None:
    path = tmp_path / "x.json"
    lengths = ("--prompt", "8", "--prompt", "4000", "--prompt", "5000", "--rounds", "1")
    options = ("--json", str(path), "--model", model, "--kv-memory", "4MiB", "--max-model-len", "128")
    result = bench("latency", *lengths, *options)
    assert result.exit_code == 0, result.stderr
    assert [row["prompt_tokens"] for row in rows(path)] == [8, 64]
    for row in rows(path):
        assert row["prefill_per_s"] == pytest.approx(row["prompt_tokens"] / row["first_ms"] * 1e3)


def test_waste_in_last_blocks_grows_with_their_size(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    result = bench("sharing", "--quick", "--part", "waste", "--json", str(path))
    assert result.exit_code == 0, result.stderr
    found = {(row["lengths"], row["block_size"]): row["waste"] for row in rows(path)}
    for name in ("ShareGPT-like", "Alpaca-like"):
        assert 0 < found[name, 8] < found[name, 16] < found[name, 32]
    assert found["ShareGPT-like", 16] < 0.04 < found["Alpaca-like", 16] < 0.2


def test_a_victims_ways_are_measured_by_its_length(tmp_path: Path, model: str) -> None:
    path = tmp_path / "x.json"
    result = bench(
        "preemption", "--quick", "--json", str(path), "--model", model, "--kv-memory", "4MiB", "--attn=torch"
    )
    assert result.exit_code == 0, result.stderr
    found = rows(path)
    assert [row["tokens"] for row in found] == [16, 64]
    for row in found:
        assert row["mb"] == pytest.approx(row["tokens"] * 2 * 2 * 2 * 16 * 4 / 1e6)  # layers, K and V, heads, width
        assert row["ratio"] == pytest.approx(row["recompute_ms"] / row["swap_ms"])
        assert row["gb_per_s"] == pytest.approx(2 * row["mb"] / row["swap_ms"])


def test_throughput_counts_a_workload_of_ones_own(tmp_path: Path, model: str) -> None:
    work, path = tmp_path / "work.json", tmp_path / "x.json"
    work.write_text(json.dumps({"requests": [{"prompt": [5, 6, 7], "out": 4}, {"prompt": [8] * 20, "out": 6}]}))
    options = ("--rounds", "2", "--workload", str(work), "--json", str(path))
    result = bench("throughput", *options, "--model", model, "--kv-memory", "4MiB")
    assert result.exit_code == 0, result.stderr
    (row,) = rows(path)
    assert (row["workload"], row["requests"], row["prompt_tokens"], row["output_tokens"]) == ("work.json", 2, 23, 10)
    assert 0 < row["share"] < 1


def test_engine_overhead_is_measured_and_drawn(tmp_path: Path) -> None:
    path, picture = tmp_path / "x.json", tmp_path / "curve.svg"
    result = bench("engine", "--quick", "--json", str(path), "--plot", str(picture))
    assert result.exit_code == 0, result.stderr
    assert [row["running"] for row in rows(path)] == [1, 16]
    assert "<svg" in picture.read_text()


def test_a_plot_of_unknown_kind_is_refused(tmp_path: Path) -> None:
    result = bench("engine", "--quick", "--plot", str(tmp_path / "curve.xyz"))
    assert result.exit_code == 2
    assert "curve.xyz" in result.stderr


def test_a_shape_decodes_in_batches_beside_its_floor(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    options = ("--batch", "1", "--batch", "3", "--kv-memory", "4MiB", "--threads", "1", "--attn", "torch")
    result = bench("model", "--quick", *options, "--json", str(path))
    assert result.exit_code == 0, result.stderr
    found = rows(path)
    assert [(row["weights"], row["batch"]) for row in found] == [("bf16", 1), ("bf16", 3), ("int8", 1), ("int8", 3)]
    for row in found:
        assert 0 < row["share"] == pytest.approx(row["per_s"] / row["floor_per_s"])
        assert row["per_s"] == pytest.approx(row["batch"] * 1e3 / row["step_ms"])
        assert row["goal"] is None
    assert "random:tiny" in result.stdout


def test_a_model_and_a_shape_at_once_are_refused(model: str) -> None:
    result = bench("model", "--shape", "tiny", "--model", model)
    assert result.exit_code == 2
    assert "--shape and --model" in result.stderr


def test_a_batch_beyond_what_runs_at_once_is_refused() -> None:
    result = bench("model", "--quick", "--batch", "9", "--max-num-seqs", "8", "--kv-memory", "4MiB", "--attn", "torch")
    assert result.exit_code == 2
    assert "a batch of 9 is more than the engine runs at once (8)" in result.stderr
