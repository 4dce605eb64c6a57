"""Names, kinds, marks, known gaps and exit codes, seen from outside."""

from __future__ import annotations

import json

import pytest

GAP = "test_contract.py::test_summary_is_one_line[sched_two_lines]"
LINK = "printed on two lines: https://example.org/issues/7"


def gaps(**entries: str) -> str:
    return "[tool.paged-conformance.known-gaps]\n" + "".join(
        f"{json.dumps(k)} = {json.dumps(v)}\n" for k, v in entries.items()
    )


def test_a_named_kind_is_judged_alone_and_from_any_folder(run_suite) -> None:
    run = run_suite("--paged-sched=fcfs")
    assert run.code == 0, run.output
    assert [plugin["name"] for plugin in run.report["plugins"]] == ["sched_fcfs"]
    assert run.report["complete"] is False  # one file of the suite is no verdict
    assert run.report["verdict"] == "not run"
    assert "only part of the suite ran" in run.output


def test_report_says_what_ran_where(run_suite) -> None:
    report = run_suite("--paged-sched=fcfs", "--paged-quick", "--paged-badge=badge.json").report
    assert (
        report["command"]
        == "pytest --pyargs paged_conformance.suite --paged-sched=sched_fcfs --paged-device=cpu --paged-quick"
    )
    assert set(report["environment"]) == {"python", "system", "torch", "triton", "numpy", "pytest", "hypothesis"}
    (plugin,) = report["plugins"]
    assert (plugin["dist"], plugin["api"], plugin["capabilities"]) == ("paged-core", 1, ["chunked_prefill", "fcfs"])
    assert plugin["counts"] == {"passed": len(plugin["tests"])}
    assert {body["layer"] for body in plugin["tests"].values()} == {"contract"}


@pytest.mark.slow
def test_workers_of_xdist_give_the_same_report(run_suite) -> None:
    alone = run_suite("--paged-sched=fcfs")
    several = run_suite("--paged-sched=fcfs", "-n2")
    assert several.code == 0, several.output
    assert several.report == alone.report


def test_without_names_every_registered_plugin_is_judged(run_suite) -> None:
    from paged_core.testing.build import default_plugins

    run = run_suite("-k", "test_summary")
    assert {plugin["name"] for plugin in run.report["plugins"]} == set(default_plugins().records)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--paged-sched=sched_fcfz", "no such scheduler; did you mean sched_fcfs?"),
        ("--paged-alloc=attn_torch", "no such block allocator"),
        ("--paged-plugin=nowhere.py", "nowhere.py"),
        ("--paged-known-gaps=nowhere.toml", "no such file"),
    ],
)
def test_a_wrong_name_ends_the_run_before_it_starts(run_suite, option, message) -> None:
    run = run_suite("--paged-preempt=swap", option)
    assert (run.code, run.report) == (4, {})
    assert message in run.output


def test_a_known_gap_is_admitted_not_failed(run_suite, contract_mutants, tmp_path) -> None:
    (tmp_path / "pyproject.toml").write_text(gaps(**{GAP: LINK}))
    run = run_suite(f"--paged-plugin={contract_mutants}", "--paged-sched=two_lines")
    assert run.code == 0, run.output
    assert run.report["plugins"][0]["known_gaps"] == {GAP: LINK}
    assert run.tests("sched_two_lines")["test_summary_is_one_line"]["outcome"] == "known gap"


def test_a_known_gap_that_passes_is_a_failure(run_suite, contract_mutants, tmp_path) -> None:
    (tmp_path / "gaps.toml").write_text(gaps(**{GAP.replace("two_lines", "sound"): LINK}))
    run = run_suite(f"--paged-plugin={contract_mutants}", "--paged-sched=sound", "--paged-known-gaps=gaps.toml")
    assert run.code == 1, run.output
    assert run.tests("sched_sound")["test_summary_is_one_line"]["outcome"] == "failed"


@pytest.mark.parametrize("options", [(), pytest.param(("-n1",), marks=pytest.mark.slow)], ids=["alone", "xdist"])
def test_a_known_gap_that_matches_no_test_is_a_failure(run_suite, tmp_path, options) -> None:
    (tmp_path / "pyproject.toml").write_text(gaps(**{"test_contract.py::test_gone[sched_fcfs]": LINK}))
    run = run_suite("--paged-sched=fcfs", *options)
    assert run.code == 1, run.output
    assert run.report["stale_known_gaps"] == ["test_contract.py::test_gone[sched_fcfs]"]
    assert "matches no test: delete it" in run.output


def test_a_known_gap_needs_a_link(run_suite, tmp_path) -> None:
    (tmp_path / "pyproject.toml").write_text(gaps(**{GAP: "later"}))
    run = run_suite("--paged-sched=fcfs")
    assert run.code == 4
    assert "must be a reason with a link" in run.output


def test_a_plugin_for_another_device_leaves_the_exit_code_of_a_run_of_everything(run_suite) -> None:
    run = run_suite("-k", "test_summary", "--paged-badge=badge.json")
    assert run.code == 0, run.output
    (plugin,) = [plugin for plugin in run.report["plugins"] if plugin["name"] == "attn_cuda"]
    assert plugin["verdict"] == "not run"
    assert "attn_cuda runs on the device cuda only, not on cpu" in plugin["reasons"]
    assert "attn_cuda is made for cuda and nobody named it" in run.output
    assert run.report["verdict"] == "not run"


def test_a_plugin_for_another_device_that_was_named_is_not_run(run_suite) -> None:
    run = run_suite("-k", "test_summary", "--paged-attn=attn_cuda")
    assert run.code == 3, run.output
    assert run.report["verdict"] == "not run"
    assert "nobody named it" not in run.output


def test_a_plugin_for_another_device_keeps_nobody_else_from_being_judged(run_suite) -> None:
    """Tests of combinations leave it out when nobody named it: skipped, they would count against the others too."""
    test = ("--pyargs", "paged_conformance.suite.test_engine_model")
    run = run_suite("-k", "this_combination and None", target=test)
    counts = {plugin["name"]: plugin["counts"] for plugin in run.report["plugins"]}
    executors = [plugin["name"] for plugin in run.report["plugins"] if plugin["kind"] == "executor"]
    assert len(executors) > 1
    for name in ("attn_torch", "attn_cpu"):
        assert counts[name] == {"passed": len(executors)}, run.output
    for name in executors:
        assert counts[name] == {"passed": 2}, run.output
    assert counts["sample_torch"] == {"passed": 2 * len(executors)}, run.output


def test_a_failing_contract_counts_on_any_device(run_suite, contract_mutants) -> None:
    run = run_suite("-k", "test_summary", f"--paged-plugin={contract_mutants}")
    assert run.code == 1, run.output


def test_absent_hardware_is_not_run(run_suite) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    run = run_suite("--paged-attn=attn_torch", "--paged-device=cuda")
    assert run.code == 3, run.output
    (plugin,) = run.report["plugins"]
    assert plugin["verdict"] == "not run"
    assert plugin["reasons"] == ["there is no CUDA device here"]
