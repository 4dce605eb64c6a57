"""The fixtures and marks in somebody's own tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

MINE = """
import pytest
from paged_conformance.marks import layer, requires, since

@pytest.fixture
def broken():
    raise RuntimeError("a fixture that a refusal must not set up")

@requires("chunked_prefill")
def test_declared(sched):
    assert sched.has("chunked_prefill")

@requires("teleport")
def test_undeclared(sched, broken):
    raise AssertionError("the test itself must not run")

@since(2)
def test_of_a_later_contract(sched):
    raise AssertionError("judges nobody yet")

def test_kind_that_was_not_chosen(alloc):
    raise AssertionError("alloc was not chosen")

def test_create(sched):
    assert type(sched.create(sched.small_need())).__name__ == "FcfsScheduler"
    assert (sched.kind, sched.device, sched.quick) == ("sched", "cpu", False)

@pytest.mark.parametrize("attn", [1, 2])
def test_parameter_of_the_same_name(attn):
    assert attn in (1, 2)

@pytest.fixture
def sampler():
    return "mine"

def test_fixture_of_the_same_name(sampler):
    assert sampler == "mine"
"""


def run_mine(run_suite: Callable[..., object], tmp_path, *options: str):
    (tmp_path / "test_mine.py").write_text(MINE)
    return run_suite(*options, "-rA", "--strict-markers", "-Werror", target=("test_mine.py",))


def test_marks_and_fixtures_serve_a_plugins_own_tests(run_suite, tmp_path) -> None:
    run = run_mine(run_suite, tmp_path, "--paged-sched=fcfs")
    assert run.code == 0, run.output
    assert "6 passed, 2 deselected" in run.output


def test_undeclared_capability_must_be_refused(run_suite, contract_mutants, tmp_path) -> None:
    run = run_mine(run_suite, tmp_path, f"--paged-plugin={contract_mutants}", "--paged-sched=eager")
    assert run.code == 1
    assert "FAILED test_mine.py::test_undeclared[sched_eager]" in run.output
    assert "does not declare 'teleport' but accepts a need that requires it" in run.output


def test_star_imported_suite_tests_are_judged_under_their_own_ids(run_suite, tmp_path) -> None:
    (tmp_path / "test_star.py").write_text("from paged_conformance.suite.test_contract import *\n")
    run = run_suite("--paged-sched=fcfs", target=("test_star.py",))
    assert run.code == 0, run.output
    assert all(test.startswith("test_contract.py::test_") for test in run.report["plugins"][0]["tests"])


def test_a_run_that_asks_for_nothing_loads_no_plugin(run_suite, tmp_path) -> None:
    (tmp_path / "test_other.py").write_text(
        "import sys\ndef test_it():\n    assert not {'paged_core', 'torch'} & set(sys.modules)\n"
    )
    run = run_suite(target=("test_other.py",))
    assert run.code == 0, run.output
    assert "conformance" not in run.output
