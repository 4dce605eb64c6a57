"""The published verdicts: whole, of this version, and rendered as they stand."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import paged_core

if TYPE_CHECKING:
    from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
RESULTS = sorted((ROOT / "conformance/results").glob("*.json"))
PLUGIN_IDS = {path.parent.name for path in (ROOT / "plugins").glob("*/pyproject.toml")}


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("render_conformance", ROOT / "scripts/render_conformance.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def test_page_is_in_step_with_the_reports(script: ModuleType) -> None:
    page = (ROOT / "docs/conformance.md").read_text()
    assert page == script.render(script.load_results(ROOT / "conformance/results")), (
        "run: python scripts/render_conformance.py"
    )


def test_every_first_party_plugin_has_a_report_of_this_version() -> None:
    judged = {plugin["name"]: plugin for path in RESULTS for plugin in read(path)["plugins"]}
    assert PLUGIN_IDS - judged.keys() == set()
    versions = {judged[name]["version"] for name in PLUGIN_IDS} | {read(path)["core"] for path in RESULTS}
    assert versions == {paged_core.__version__}


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_a_report_tells_no_path_of_the_machine_it_was_made_on(path: Path) -> None:
    text = path.read_text()
    assert [word for word in ("/home/", "/root/", "/tmp/", "/work/", "C:\\\\") if word in text] == []


@pytest.mark.parametrize("change", [{"complete": False}, {"quick": True}])
def test_a_partial_or_quick_report_is_not_published(script: ModuleType, tmp_path: Path, change: dict[str, Any]) -> None:
    (tmp_path / "x.json").write_text(json.dumps(read(RESULTS[0]) | change))
    with pytest.raises(script.ResultError, match=r"x\.json"):
        script.load_results(tmp_path)


def test_a_refusal_that_was_not_tested_is_not_counted(script: ModuleType) -> None:
    rows = [row for row in script.load_results(ROOT / "conformance/results") if row["name"] == "attn_torch"][:1]
    body = {"layer": "laws", "outcome": "passed", "refusal": ["lse"]}
    rows[0] = rows[0] | {"tests": {"a": body, "b": body | {"outcome": "skipped"}}}
    (line,) = [line for line in script.render(rows).splitlines() if line.startswith("| `attn_torch` | attn ")]
    assert line.split("|")[7].strip() == "1"
