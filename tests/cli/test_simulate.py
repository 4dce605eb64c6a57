"""`paged-core simulate`: comparisons from the command line, and what it says to bad input."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from paged_core.cli import main
from paged_core.cli.simulate_options import rates_of, span
from paged_core.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result

FEW = ("--num-prompts", "12")
MINE = '''
"""A scheduler of somebody else: sched_fcfs under another name."""
from typing import ClassVar
from paged_core.api.hookspecs import hookimpl
from paged_core.api.provider import Fit, Provider

class Provider_(Provider):
    name: ClassVar[str] = "sched_mine"
    kind: ClassVar[str] = "sched"
    api: ClassVar[int] = 1
    summary: ClassVar[str] = "mine"
    def probe(self, need):
        return Fit.judge([])
    def create(self, need, settings, plugins):
        return plugins.create("sched", "sched_fcfs", need)

@hookimpl
def paged_scheduler():
    return Provider_()
'''


def simulate(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["simulate", *arguments])


def tables(path: Path) -> list[list[dict[str, Any]]]:
    return [table["rows"] for table in json.loads(path.read_text())["tables"]]


def test_policies_and_rates_are_compared_on_the_same_requests(tmp_path: Path) -> None:
    path, picture = tmp_path / "found.json", tmp_path / "found.png"
    result = simulate(
        *("--rates", "1,8", "--alloc", "cow,contiguous:reservation=max", "--slo", "ttft:1000,tpot:100", *FEW),
        *("--warmup", "0", "--output", str(path), "--plot", str(picture)),
    )
    assert result.exit_code == 0, result.stderr
    latency, throughput, memory, capacity = tables(path)
    assert [(row["system"], row["rate"]) for row in latency] == [
        (name, rate) for name in ("cow", "contiguous max") for rate in (1.0, 8.0)
    ]
    assert {row["num_requests"] for row in throughput} == {12}
    assert all(row["num_unfinished"] == row["num_rejected"] == row["num_cut"] == 0 for row in throughput)
    by_name = {(row["system"], row["rate"]): row for row in memory}
    assert by_name["contiguous max", 8.0]["internal"] > 0.1 > by_name["cow", 8.0]["internal"]
    assert [row["system"] for row in capacity] == ["cow", "contiguous max"]
    assert picture.read_bytes().startswith(b"\x89PNG")
    for said in ("DistServe", "sched_fcfs, alloc_contiguous", "983 blocks of 16 slots", "ShareGPT-like"):
        assert said in " ".join(result.stdout.split())


def test_a_scheduler_of_somebody_else_takes_part_by_its_name(tmp_path: Path) -> None:
    module, path = tmp_path / "mine.py", tmp_path / "found.json"
    module.write_text(MINE)
    result = simulate("--plugin", str(module), "--sched", "mine", "--sched", "fcfs", *FEW, "--output", str(path))
    assert result.exit_code == 0, result.stderr
    mine, fcfs = tables(path)[0]
    assert (mine.pop("system"), fcfs.pop("system")) == ("mine", "fcfs")
    assert mine == fcfs


def test_a_trace_goes_at_its_own_rate_and_says_what_is_too_long(tmp_path: Path) -> None:
    trace, path = tmp_path / "trace.csv", tmp_path / "found.json"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,9,5\n1,9,5\n2,9,5\n3,3000,5\n4,9,5\n9,9,5\n")
    result = simulate("--trace", str(trace), "--slice", "1:9", "--warmup", "0", "--output", str(path))
    assert result.exit_code == 0, result.stderr
    (row,) = tables(path)[1]
    assert (row["num_requests"], row["rate"]) == (3, pytest.approx(2 / 3))
    assert "left out 1 requests of more than 2048 tokens" in " ".join(result.stdout.split())


def test_capacity_is_found_by_trying(tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    small = ("--trace", "fixed", "--prompt-tokens", "64", "--output-tokens", "8", "--num-prompts", "60")
    limits = ("--num-blocks", "40", "--limit", "0.1", "--rate", "8")
    result = simulate("--find-capacity", *small, *limits, "--output", str(path))
    assert result.exit_code == 0, result.stderr
    latency, _, _, capacities = tables(path)
    (found,) = capacities
    rates = [row["rate"] for row in latency]
    below = max(row["rate"] for row in latency if row["normalized_s"] <= 0.1)
    above = min(row["rate"] for row in latency if row["normalized_s"] > 0.1)
    assert rates == sorted(set(rates))
    assert found["bound"] == "it"
    assert below <= found["rate"] < above
    assert above - below <= 0.02 * below


def test_requests_that_can_never_run_fail_the_command_and_say_why() -> None:
    result = simulate("--n", "300", *FEW)
    assert result.exit_code == 1
    assert "rejected or cut: 12 for n." in result.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--model", "opt-13"), "did you mean opt-13b?"),
        (("--gpu", "a100-41g"), "did you mean a100-40gb?"),
        (("--model", "opt-66b"), "take more devices"),
        (("--sched", "fcsf"), "did you mean fcfs?"),
        (("--alloc", "contiguous:reservtion=max"), "did you mean reservation?"),
        (("--alloc", "contiguous:max"), "NAME:KEY=VALUE"),
        (("--sched", "fcfs,fcfs"), "asked for twice"),
        (("--cost", "rooflin"), "did you mean roofline?"),
        (("--trace", "sharegtp"), "did you mean sharegpt?"),
        (("--rate", "0"), "above 0"),
        (("--rate", "inf"), "--num-prompts"),
        (("--rate-sweep", "2:1:4"), "must be below"),
        (("--block-size", "x"), "--block-size x: a number"),
        (("--num-gpus", "0"), "--num-gpus 0: a number above 0"),
        (("--block-size", "999"), "outside 1..256"),
        (("--max-model-len", "4000"), "exceeds what opt-13b was built for"),
        (("--slo", "foo:1"), "ttft, tpot, e2e"),
        (("--slice", "1:2"), "are for trace files"),
        (("--plot", "x.nothing"), "plots are written as"),
        (("--output", "absent/x.json"), "there is no such folder"),
        (("--find-capacity", "--rate", "1,2"), "tries rates of its own"),
        (("--frobnicate",), "No such option"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_two(arguments: tuple[str, ...], said: str) -> None:
    result = simulate(*arguments, *FEW) if arguments != ("--rate", "inf") else simulate(*arguments)
    assert result.exit_code == 2
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_rates_come_once_each_and_ascending() -> None:
    asked = {"rate": ("2", "0.5, 1"), "rate_sweep": "1:3:3"}
    assert rates_of(asked) == (0.5, 1.0, 2.0, 3.0)
    assert rates_of({"rate": (), "rate_sweep": None}) == ()


def test_a_span_may_lack_an_end() -> None:
    assert (span(None, "x"), span("3:", "x"), span(":4.5", "x")) == (None, (3.0, float("inf")), (0.0, 4.5))
    for bad in ("3", "4:3", "a:b", "-1:3"):
        with pytest.raises(ConfigError, match="BEGIN:END"):
            span(bad, "x")
