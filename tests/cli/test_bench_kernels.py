"""`paged-core bench` linear, kernels, startup, quality: options reach the measurement, tables and JSON come out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch
from click.testing import CliRunner

from paged_core.bench import linear, startup
from paged_core.bench.kernels import cases, run
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

    def measure_peaks(clock: str, device: str) -> Peaks:
        asked.append(clock)
        assert device == "cpu"
        return Peaks(1e9, 1e9, 1e9, 1e9, copy_bytes=1e9, out_bytes=1e9, in_bytes=1e9)

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


def kernels(path: Path, *options: str) -> list[list[dict[str, Any]]]:
    """Tables of a run on the CPU but for the last one, the peaks."""
    result = bench("kernels", "--quick", "--device=cpu", "--threads", "1", "--json", str(path), *options)
    assert result.exit_code == 0, result.stderr
    return tables(path)[:-1]


def test_every_operation_of_a_plugin_is_measured(tmp_path: Path, clocks: list[str]) -> None:
    decode, prefill, write, move = kernels(tmp_path / "x.json", "--attn=torch", "--kv-dtype=float32", "--block-size=8")
    rows = decode + prefill + write + move
    assert {(row["plugin"], row["kv_dtype"], row["block_size"]) for row in rows} == {("attn_torch", "float32", 8)}
    assert {row["new"] for row in prefill} == {64, 16}
    assert [row["operation"] for row in move] == ["copy", "swap out", "swap in"]
    assert all(row["share"] > 0 for row in rows)
    assert decode[0]["contiguous_ratio"] == pytest.approx(decode[0]["us"] / decode[0]["contiguous_us"])
    assert clocks == ["wall"]
    content = json.loads((tmp_path / "x.json").read_text())
    assert (content["command"], content["conditions"]["device"]) == ("bench kernels", "cpu")
    assert any("flash-attn: not installed" in note for note in content["tables"][0]["notes"])


def test_heads_contexts_and_batches_are_combined_and_block_sizes_and_types_as_well(
    tmp_path: Path, clocks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(cases.HEADS, "smollm2", cases.Heads(2, 1, 16))
    monkeypatch.setattr(run, "QUICK_ROTATION", 1 << 10)
    grid = ("--heads=smollm2", "--context=8", "--context=24", "--batch=2", "--batch=3")
    more = ("--block-size=8", "--block-size=16", "--kv-dtype=float32", "--kv-dtype=uint8", "--operation=decode")
    (decode,) = kernels(tmp_path / "x.json", "--attn=torch", *grid, *more)
    found = {(row["context"], row["sequences"], row["block_size"], row["kv_dtype"]) for row in decode}
    assert len(found) == len(decode) == 2**4
    assert {row["heads"] for row in decode} == {"2/1 x 16"}


def test_an_unknown_plugin_is_refused(clocks: list[str]) -> None:
    result = bench("kernels", "--quick", "--attn", "nonesuch", "--device=cpu", "--threads", "1")
    assert result.exit_code == 2
    assert "nonesuch" in result.stderr
    assert clocks == [], "peaks were measured first"


def test_when_nothing_can_be_measured_the_reasons_are_told(clocks: list[str]) -> None:
    options = ("--attn=torch", "--operation=copy", "--memory=1", "--device=cpu", "--threads", "1")
    result = bench("kernels", "--quick", *options)
    assert result.exit_code == 2
    assert "nothing was measured" in result.stderr
    assert "more than --memory" in result.stderr


@pytest.mark.slow
def test_triton_runs_in_its_interpreter(tmp_path: Path) -> None:
    """In a process of its own: the interpreter is chosen when triton is imported."""
    pytest.importorskip("triton")
    path = tmp_path / "x.json"
    command = [
        sys.executable,
        "-c",
        "from paged_core.cli import main; main()",
        "bench",
        "kernels",
        "--attn=attn_triton",
        "--device=cpu",
    ]
    small = ["--context=17", "--batch=1", "--heads=smollm2", "--kv-dtype=float32", "--memory=400KB"]
    small += [f"--operation={name}" for name in ("decode", "prefill", "copy", "swap")]
    done = subprocess.run(
        [*command, *small, "--quick", "--json", str(path)],
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    *found, _ = tables(path)
    assert [len(rows) for rows in found] == [1, 1, 3]
    assert {row["plugin"] for rows in found for row in rows} == {"attn_triton"}


@pytest.mark.gpu
@pytest.mark.parametrize("plugin", ["attn_triton", "attn_cuda"])
def test_kernels_run_on_a_gpu(tmp_path: Path, plugin: str) -> None:
    if not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device here")
    path = tmp_path / "x.json"
    result = bench("kernels", "--quick", f"--attn={plugin}", "--device=cuda", "--json", str(path))
    assert result.exit_code == 0, result.stderr
    *found, peaks = tables(path)
    assert {row["plugin"] for rows in found for row in rows if "us" in row} == {plugin}
    assert min(row["share"] for rows in found for row in rows if "share" in row) > 0
    assert "device to host, GB/s" in {row["peak"] for row in peaks}
    content = json.loads(path.read_text())
    assert {"GPU", "driver", "CUDA", "triton"} <= set(content["conditions"])
    assert not [note for table in content["tables"] for note in table["notes"] if "capturing decode" in note]


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["latency", "throughput"])
def test_an_engine_is_measured_on_a_gpu(tmp_path: Path, name: str) -> None:
    if not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device here")
    path = tmp_path / "x.json"
    options = ("--model", "random:tiny", "--device=cuda", "--kv-memory=64MiB", "--json", str(path))
    result = bench(name, "--quick", *options)
    assert result.exit_code == 0, result.stderr
    content = json.loads(path.read_text())
    assert {"device": "cuda", "model": "random:tiny"}.items() <= content["conditions"].items()
    assert "GPU" in content["conditions"]
    assert 0 < content["tables"][0]["rows"][0]["decode_share" if name == "latency" else "share"] < 1


def test_a_model_that_is_a_shape_brings_its_loader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paged_core.bench.speed.measure_peaks", lambda device: Peaks(1e9, 1e9, 1e9, None))
    path, work = tmp_path / "x.json", tmp_path / "work.json"
    work.write_text(json.dumps({"requests": [{"prompt": [5, 6, 7], "out": 2}]}))
    options = ("--model", "random:tiny", "--threads", "1", "--kv-memory=4MiB", "--attn=torch")
    for name, more in (("latency", ()), ("throughput", ("--workload", str(work)))):
        result = bench(name, "--quick", *options, *more, "--json", str(path))
        assert result.exit_code == 0, result.stderr
        assert json.loads(path.read_text())["conditions"]["model"] == "random:tiny"


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
