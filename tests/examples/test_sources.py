"""The examples hold to what they promise on paper: size, and imports of the contract only."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
MODULES = sorted(EXAMPLES.glob("*/paged_*/__init__.py"))


def lines_of_code(source: str) -> int:
    """Lines that are neither blank nor comment nor docstring."""
    documented: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            documented |= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    lines = enumerate(source.splitlines(), 1)
    return sum(1 for number, line in lines if number not in documented and line.strip(" ")[:1] not in ("", "#"))


def test_lines_are_counted_without_words() -> None:
    assert lines_of_code('"""Doc."""\n\n# why\ndef f():\n    """Doc\n    more."""\n    return 1  # one\n') == 2


def test_scheduler_fits_in_eighty_lines() -> None:
    assert lines_of_code((EXAMPLES / "paged-sched-sjf/paged_sched_sjf/__init__.py").read_text()) <= 80


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.parent.name)
def test_only_the_contract_is_imported(module: Path) -> None:
    imported = [node for node in ast.walk(ast.parse(module.read_text())) if isinstance(node, ast.ImportFrom)]
    ours = {node.module for node in imported if (node.module or "").startswith("paged_core")}
    assert {name for name in ours if name != "paged_core" and not str(name).startswith("paged_core.api")} == set()
    names = {alias.name for node in imported if node.module == "paged_core" for alias in node.names}
    assert names == {"hookimpl"}


def test_there_are_two_examples_with_everything_a_package_needs() -> None:
    assert [path.parent.name for path in MODULES] == ["paged_attn_numpy", "paged_sched_sjf"]
    for module in MODULES:
        for name in ("pyproject.toml", "README.md", ".github/workflows/ci.yml", f"{module.parent.name}/py.typed"):
            assert (module.parents[1] / name).is_file()
