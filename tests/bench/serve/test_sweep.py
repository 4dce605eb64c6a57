"""The whole command against a server of known timing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from paged_core.bench.serve import sweep as sweeping
from paged_core.bench.serve.client import Target
from paged_core.bench.serve.sweep import Sweep, run
from paged_core.cli import bench_serve, main
from paged_core.engine import aio
from paged_core.errors import ConfigError
from paged_core.workload.plan import Workload

if TYPE_CHECKING:
    from pathlib import Path

STEADY = Workload("fixed", (12, 3), burstiness=float("inf"), num_requests=4)


@pytest.fixture
def command(loop: Any, with_fake: Any, fake: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`command(...)`: exit code and output of `bench serve` with these options, against `fake`."""

    def timed(sweep: Sweep, progress: Any) -> Any:
        return run(sweep, progress, loop.time)

    monkeypatch.setattr(sweeping, "run", timed)
    monkeypatch.setattr(aio, "run", lambda work: with_fake(fake, work))

    def call(*options: str) -> tuple[int, str]:
        result = CliRunner().invoke(main, ["bench", "serve", "--base-url", "http://fake", *options])
        return result.exit_code, result.output

    return call


FIXED = ("--lengths=fixed", "--prompt-tokens=12", "--output-tokens=3", "--arrivals=constant", "--num-requests=4")


def test_figures_of_a_sweep_are_those_of_the_server(command: Any, fake: Any, tmp_path: Path) -> None:
    report, curves, lines = tmp_path / "report.json", tmp_path / "curves.svg", tmp_path / "requests.jsonl"
    code, output = command(
        *FIXED, "--rate=1", "--rate=4", "--slo=ttft:400", "--json", str(report), "--plot", str(curves),
        "--requests", str(lines),
    )  # fmt: skip
    assert code == 0, output
    rates, times = json.loads(report.read_text())["tables"]
    slow, fast = rates["rows"]
    # The last one is due at 4 s and takes 0.5 + 2 x 0.1 s; one rate after the other, each with warm-ups of its own.
    assert (slow["rate"], slow["num_ok"], slow["num_failed"], slow["peak_in_flight"]) == (1, 4, 0, 1)
    assert slow["duration_s"] == pytest.approx(4.7)
    assert slow["output_per_s"] == pytest.approx(4 * 3 / 4.7)
    assert slow["total_per_s"] == pytest.approx(4 * 15 / 4.7)
    assert (slow["goodput_per_s"], slow["good_share"]) == (0, 0)
    assert fast["duration_s"] == pytest.approx(1.7)
    assert fast["peak_in_flight"] == 3
    found = {(row["rate"], row["what"]): row for row in times["rows"]}
    assert found[1, "TTFT"]["p99"] == pytest.approx(500)
    assert found[4, "TPOT"]["mean"] == pytest.approx(100)
    assert found[4, "ITL"]["p50"] == pytest.approx(100)
    assert found[4, "E2E"]["p90"] == pytest.approx(700)
    assert found[4, "normalized (a token)"]["mean"] == pytest.approx(700 / 3)
    assert len(fake.bodies) == 2 * (3 + 4)
    assert len({body["prompt"] for body in fake.bodies}) == len(fake.bodies), "a prompt was sent twice"
    assert "normalized latency" in curves.read_text()
    requests = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [one["rate"] for one in requests] == [1] * 4 + [4] * 4
    assert requests[0]["text_s"] == pytest.approx([1.5, 1.6, 1.7])


def test_a_second_run_asks_for_the_same_lengths_in_other_words(command: Any, fake: Any) -> None:
    for _ in range(2):
        command("--num-requests=4", "--warmup=0", "--shared-prefix=8")
    asked = [(len(body["prompt"].split()), body["max_tokens"]) for body in fake.bodies]
    assert asked[:4] == asked[4:]
    firsts = [" ".join(body["prompt"].split()[:4]) for body in fake.bodies]
    assert len(set(firsts)) == 2
    assert len(set(firsts[:4])) == 1


def test_conditions_and_formulas_are_printed(command: Any) -> None:
    _, output = command(*FIXED, "--slo=ttft:600")
    flat = " ".join(output.split())
    for said in (
        "TPOT = (E2E - TTFT) / (output tokens - 1)",
        "server http://fake",
        "model fake-model",
        "prompts estimated",
        "longest 400 tokens;",
        "SLO ttft 600 ms",
        "100.0%",
    ):
        assert said in flat


def test_failures_are_counted_by_kind_and_answers_still_measured(command: Any, fake: Any, words: Any) -> None:
    def every_other(body: Any) -> Any:
        return (429, "full\nup") if len(fake.bodies) % 2 else words.paced(body)

    fake.answer = every_other
    code, output = command(*FIXED, "--warmup=0")
    assert code == 0
    assert "HTTP 429 2 full up" in " ".join(output.split())


def test_nothing_answered_is_a_failure(command: Any, fake: Any) -> None:
    fake.answer = lambda body: (503, "draining")
    code, output = command(*FIXED)
    assert code == 1
    assert "HTTP 503" in output


def test_all_at_once_through_a_limit(command: Any, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    code, _ = command(
        *FIXED, "--rate=inf", "--max-concurrency=2", "--json", str(path), "--plot", str(tmp_path / "a.png")
    )
    assert code == 0
    (row,) = json.loads(path.read_text())["tables"][0]["rows"]
    assert (row["rate"], row["peak_in_flight"]) == ("inf", 2)
    assert row["duration_s"] == pytest.approx(1.4)
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_a_trace_is_replayed_at_its_pace(command: Any, fake: Any, tmp_path: Path) -> None:
    trace = tmp_path / "small.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,10,5\n3,20,2\n4,500,5\n")
    code, output = command("--trace", str(trace), "--warmup=0", "--json", str(tmp_path / "report.json"))
    assert code == 0, output
    assert [(len(body["prompt"].split()), body["max_tokens"]) for body in fake.bodies] == [(10, 5), (20, 2)]
    (row,) = json.loads((tmp_path / "report.json").read_text())["tables"][0]["rows"]
    assert row["rate"] == pytest.approx(1 / 3)
    assert "400 tokens, 1 left out" in " ".join(output.split())


def test_the_model_must_be_known(fake: Any, with_fake: Any, loop: Any) -> None:
    fake.models = None
    with pytest.raises(ConfigError, match="give its name with --model"):
        with_fake(fake, run(Sweep(Target("http://fake"), STEADY, (1.0,)), print, loop.time))
    found = with_fake(fake, run(Sweep(Target("http://fake", "mine"), STEADY, (1.0,), warmup=0), print, loop.time))
    assert found.conditions["model"] == "mine"
    assert {body["model"] for body in fake.bodies} == {"mine"}


def test_no_server_is_one_line_and_exit_code_2() -> None:
    result = CliRunner().invoke(main, ["bench", "serve", "--base-url", "http://127.0.0.1:1"])
    assert result.exit_code == 2
    (line,) = result.output.splitlines()
    assert line.startswith("paged-core: no server answers at http://127.0.0.1:1/v1/models: ")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--burstiness=2"], "go together"),
        (["--arrivals=gamma"], "go together"),
        (["--trace=x.csv", "--arrivals=poisson"], "leave out --arrivals and --lengths"),
        (["--length-factor=2"], "is for --trace"),
        (["--trace=absent.csv"], "absent.csv cannot be read"),
        (["--rate=inf", "--duration=5"], "give --num-requests"),
        (["--rate=nan"], "nan is no number"),
        (["--rate=0"], "0"),
        (["--slo=speed:9"], "NAME:MILLISECONDS"),
        (["--plot=curves.docx"], "plots are written as"),
        (["--plot=absent/curves.svg"], "no such folder"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_sent(
    command: Any, fake: Any, options: list[str], said: str
) -> None:
    code, output = command(*options)
    assert code == 2
    assert said in output
    assert len(output.splitlines()) == 1
    assert fake.bodies == []


def test_a_missing_package_is_named_with_its_cure(command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_serve, "find_spec", lambda name: None)
    code, output = command()
    assert code == 2
    assert output == 'paged-core: `bench serve` needs aiohttp: pip install "paged-core[bench]"\n'


def test_missing_matplotlib_is_said_before_anything_is_sent(
    command: Any, fake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    code, output = command("--plot=curves.svg")
    assert (code, output) == (2, 'paged-core: plots need matplotlib: pip install "paged-core[bench]"\n')
    assert fake.bodies == []
