"""A stranger's path, walked from wheels: install, list, run, judge; and what happens when plugins are broken."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.examples.conftest import Environment

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
RUN = ("paged-core", "run", "hello", "--model=model", "--attn=numpy", "--raw", "--max-tokens=8", "--block-size=4")

PROVIDER = """
from paged_core import hookimpl
from paged_core.api.provider import Fit, Provider


class Stub(Provider):
    name, kind, api, priority, summary = "{name}", "sched", {api}, 1000, "never to be chosen"

    def probe(self, need):
        return Fit(True)

    def create(self, need, settings, plugins):
        raise AssertionError("it was chosen")


@hookimpl
def paged_scheduler():
    return Stub()
"""


def install(site: Path, dist: str, plugin: str, source: str, version: str = "1.0") -> None:
    """A module and the metadata pip would have left, as if `dist` were installed."""
    module = f"{dist.replace('-', '_')}_module"
    (site / f"{module}.py").write_text(source)
    info = site / f"{dist.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {dist}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(f"[paged_core]\n{plugin} = {module}\n")


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / "site"
    folder.mkdir()
    return folder


def rows(environment: Environment) -> dict[str, list[dict[str, object]]]:
    listed = json.loads(environment.ok("paged-core", "plugins", "--json"))["plugins"]
    by_name: dict[str, list[dict[str, object]]] = {}
    for row in listed:
        by_name.setdefault(row["name"], []).append(row)
    return by_name


def test_nothing_comes_from_the_checkout(environment: Environment) -> None:
    code = "import paged_core, paged_conformance, paged_sched_sjf, paged_attn_numpy as last; import sys; print(*("
    code += (
        "sys.modules[name].__file__ for name in ('paged_core', 'paged_conformance', 'paged_sched_sjf', last.__name__)"
    )
    code += "), sep='\\n'); from importlib.metadata import distributions; print(*sorted("
    code += "dist.name for dist in distributions() if dist.name.startswith('paged')), sep=' ')"
    *files, names = environment.ok("python", "-c", code).splitlines()
    assert len(files) == 4
    for file in files:
        assert Path(file).is_relative_to(environment.folder), file
    assert names == "paged-attn-numpy paged-core paged-sched-sjf"


def test_both_examples_are_listed_and_fit(environment: Environment) -> None:
    found = rows(environment)
    for name, dist in (("sched_sjf", "paged-sched-sjf"), ("attn_numpy", "paged-attn-numpy")):
        ((row,), version) = found[name], "0.1.0"
        assert (row["status"], row["dist"], row["version"]) == ("ok", dist, version)
    assert found["attn_torch"][0]["dist"] == "paged-core"


def test_a_prompt_is_answered_the_same_through_both(environment: Environment) -> None:
    plain = environment.ok(*RUN[:4], "--attn=torch", *RUN[5:])
    assert plain.strip()
    assert environment.ok(*RUN, "--sched=sjf", "--audit") == plain


def test_both_examples_are_conformant(environment: Environment) -> None:
    judged = ("--sched=sjf", "--attn=numpy", "--quick", "--report=report.json")
    output = environment.ok("paged-core", "conformance", *judged)
    assert "not conformant" not in output
    report = json.loads((environment.work / "report.json").read_text())
    assert {plugin["name"]: plugin["verdict"] for plugin in report["plugins"]} == {
        "sched_sjf": "conformant",
        "attn_numpy": "conformant",
    }


def test_templates_travel_in_the_wheel(environment: Environment, tmp_path: Path) -> None:
    output = environment.ok("paged-core", "new-plugin", "alloc", "mine", "--output", str(tmp_path))
    module = Path(output.strip()) / "paged_alloc_mine"
    question = ("paged-core", "run", "hello", "--model=model", "--attn=numpy", "--alloc=mine", "--max-tokens=2")
    assert environment.ok(*question, "--plugin", str(module), "--audit").strip()


@pytest.mark.parametrize("example", ["paged-sched-sjf", "paged-attn-numpy"])
def test_the_tests_of_the_example_pass(example: str, environment: Environment, tmp_path: Path) -> None:
    for name in ("tests", "pyproject.toml"):  # without the package: it is the wheel's that is tested
        source = EXAMPLES / example / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, tmp_path / name)
    tests = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path / "tests"))
    # Conformance has its own test above; running it twice would double the time.
    output = environment.ok("python", *tests, "-c", str(tmp_path / "pyproject.toml"), "-k", "not is_conformant")
    assert " passed" in output
    assert "1 deselected" in output


def test_a_plugin_whose_import_raises_is_listed_and_harmless(environment: Environment, site: Path) -> None:
    install(site, "dist-broken", "sched_broken", "import a_library_that_is_not_there")
    there = environment.with_site(site)
    reason = (
        "plugin sched_broken (distribution dist-broken 1.0) cannot be loaded: "
        "ModuleNotFoundError: No module named 'a_library_that_is_not_there'"
    )
    (row,) = rows(there)["sched_broken"]
    assert (row["status"], row["reasons"]) == ("broken", [reason])
    result = there.run(*RUN)
    assert result.returncode == 0, result.stderr
    assert result.stderr.count(reason) == 1
    chosen = there.run(*RUN, "--sched=broken")
    assert (chosen.returncode, chosen.stdout) == (2, "")
    assert f"paged-core: {reason}" in chosen.stderr.splitlines()


@pytest.mark.parametrize(("api", "cure"), [(0, "dist-other"), (2, "paged-core")])
def test_a_plugin_of_another_api_version_is_told_apart(
    environment: Environment, site: Path, api: int, cure: str
) -> None:
    install(site, "dist-other", "sched_other", PROVIDER.format(name="sched_other", api=api))
    there = environment.with_site(site)
    reason = (
        f"plugin sched_other (distribution dist-other 1.0): sched_other speaks scheduler API {api}; "
        f"this core speaks 1: pip install --upgrade {cure}"
    )
    (row,) = rows(there)["sched_other"]
    assert (row["status"], row["reasons"]) == ("broken", [reason])
    result = there.run(*RUN)
    assert result.returncode == 0, result.stderr
    assert result.stderr.count(reason) == 1


def test_two_plugins_of_one_name_are_both_set_aside(environment: Environment, site: Path) -> None:
    for dist in ("dist-one", "dist-two"):
        install(site, dist, "sched_twin", PROVIDER.format(name="sched_twin", api=1))
    there = environment.with_site(site)
    found = rows(there)["sched_twin"]
    assert [row["status"] for row in found] == ["conflict", "conflict"]
    (message,) = {str(row["reasons"]) for row in found}
    assert "sched_twin is claimed by plugin sched_twin (distribution dist-one 1.0) and plugin sched_twin" in message
    assert "PAGED_DISABLE_PLUGINS=dist-two" in message
    refused = there.run(*RUN)
    assert refused.returncode == 2, "auto would have to choose between the two"
    assert "sched_twin is claimed by" in refused.stderr
    assert there.run(*RUN, "--sched=fcfs").returncode == 0
    assert there.run(*RUN, PAGED_DISABLE_PLUGINS="sched_twin").returncode == 0
