"""`paged-core bench` linear, attention, startup, quality: options reach the measurement, tables and JSON come out."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from click.testing import CliRunner

from paged_core.bench import attention, linear, startup
from paged_core.bench.peaks import Peaks
from paged_core.cli import main
from paged_core.testing.tiny import write_tiny_llama

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from click.testing import Result


def bench(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["bench", *arguments])


def tables(path: Path) -> list[list[dict[str, Any]]]:
    return [table["rows"] for table in json.loads(path.read_text())["tables"]]


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The clocks that peaks were asked for; peaks themselves cost nothing here, and threads are put back."""
    asked: list[str] = []
    threads = torch.get_num_threads()

    def measure_peaks(clock: str) -> Peaks:
        asked.append(clock)
        return Peaks(1e9, 1e9, 1e9, 1e9)

    monkeypatch.setattr("paged_core.bench.peaks.measure_peaks", measure_peaks)
    yield asked
    torch.set_num_threads(threads)


def test_linear_times_the_rows_and_types_that_were_asked_for(
    tmp_path: Path, clocks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(linear.MODELS, "smollm2", (linear.Shape("tiny", "o", 64, 32),))
    monkeypatch.setattr(linear, "ROTATION", 1 << 16)
    path = tmp_path / "x.json"
    options = ("--rows", "3", "--dtype", "float32", "--clock", "cpu", "--threads", "1")
    result = bench("linear", "--quick", *options, "--json", str(path))
    assert result.exit_code == 0, result.stderr
    times, shares, *_, peaks = tables(path)
    assert [(row["layer"], row["rows"]) for row in times] == [("o", 3)]
    assert times[0]["torch fp32"] > 0
    assert "torch bf16" not in times[0]
    assert shares[0].keys() == times[0].keys()
    assert peaks[0]["value"] == 1.0
    assert clocks == ["cpu"]
    assert json.loads(path.read_text())["conditions"]["threads"] == 1


def test_attention_takes_plugin_block_size_and_kv_type(
    tmp_path: Path, clocks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "ROTATION", 1 << 16)
    path = tmp_path / "x.json"
    options = ("--attn", "torch", "--block-size", "8", "--kv-dtype", "float32", "--threads", "1")
    result = bench("attention", "--quick", *options, "--json", str(path))
    assert result.exit_code == 0, result.stderr
    decode, prefill, _ = tables(path)
    assert [(row["plugin"], row["kv_dtype"]) for row in decode + prefill] == [("attn_torch", "float32")] * 2
    assert "blocks of 8" in result.stdout
    assert clocks == ["wall"]


def test_attention_by_an_unknown_plugin_is_refused(clocks: list[str]) -> None:
    result = bench("attention", "--quick", "--attn", "nonesuch", "--threads", "1")
    assert result.exit_code == 2
    assert "nonesuch" in result.stderr


def test_startup_hands_its_engine_options_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []

    def observe(settings: Sequence[str], rounds: int, cold_rounds: int, say: Callable[[str], None]) -> startup.Starts:
        seen.append([*settings, str(rounds), str(cold_rounds)])
        one = startup.Start(1.0, 2.0, 0.5, {"plugins": 0.25})
        return startup.Starts([one], [one], [one])

    monkeypatch.setattr(startup, "observe", observe)
    path = tmp_path / "x.json"
    options = ("--threads", "1", "--no-prefix-cache", "--plugin", "one", "--plugin", "two", "--kv-memory", "1GiB")
    result = bench("startup", "--rounds", "7", *options, "--json", str(path))
    assert result.exit_code == 0, result.stderr
    (given,) = seen
    assert given[-2:] == ["7", "3"]
    words = " ".join(given[:-2])
    for wanted in ("--threads 1", "--no-prefix-cache", "--plugin one --plugin two", "--kv-memory"):
        assert wanted in words
    assert tables(path)[1] == [{"phase": "plugins", "warm_s": 0.25, "cold_s": 0.25}]


def test_quality_needs_texts_or_the_sample(tmp_path: Path) -> None:
    result = bench("quality")
    assert result.exit_code == 2
    assert "text/c4_sample.jsonl" in result.stderr
    path = tmp_path / "x.json"
    model = write_tiny_llama(tmp_path / "model")
    result = bench("quality", "--quick", "--json", str(path), "--model", str(model), "--attn=torch", "--kv-memory=4MiB")
    assert result.exit_code == 0, result.stderr
    perplexity, answers = tables(path)
    assert [row["text"] for row in perplexity] == ["sample"] * 5
    assert len(answers) == 4
