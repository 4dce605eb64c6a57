"""Every contract test has a provider that it alone has to catch; a sound one passes all of them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

MUTANTS = Path(__file__).with_name("contract_mutants.py")
(TABLE,) = [
    ast.literal_eval(node.value)
    for node in ast.parse(MUTANTS.read_text()).body
    if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "SPOTTED_BY"
]


def test_every_defect_is_caught_by_its_named_test_and_soundness_by_none(run_suite, contract_mutants) -> None:
    names = [*TABLE, "sched_sound"]
    run = run_suite(f"--paged-plugin={contract_mutants}", *(f"--paged-sched={name}" for name in names))
    assert run.code == 1, run.output
    assert {plugin["name"] for plugin in run.report["plugins"]} == set(names)
    survivors = [name for name, test in TABLE.items() if run.tests(name)[test]["outcome"] != "failed"]
    assert survivors == []
    assert {body["outcome"] for body in run.tests("sched_sound").values()} == {"passed"}
    for plugin in run.report["plugins"]:
        assert plugin["verdict"] == ("not run" if plugin["name"] == "sched_sound" else "not conformant")


def test_a_plugin_that_imports_torch_is_caught(run_suite, tmp_path) -> None:
    future = "from __future__ import annotations\n"
    (tmp_path / "heavy_mutant.py").write_text(MUTANTS.read_text().replace(future, f"{future}import torch\n"))
    run = run_suite("--paged-plugin=heavy_mutant.py", "--paged-sched=sched_sound")
    body = run.tests("sched_sound")["test_opening_the_plugin_imports_nothing_heavy"]
    assert body["outcome"] == "failed"
    assert "must not import torch" in body["message"]


@pytest.mark.parametrize("name", sorted({*TABLE.values()}))
def test_the_named_tests_exist(name, repository) -> None:
    source = (repository / "conformance/paged_conformance/suite/test_contract.py").read_text()
    assert f"def {name}(" in source
