"""`paged-core new-plugin` writes packages that are what they should be, and refuses the rest in one line."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from paged_core.api.provider import KINDS
from paged_core.cli import main
from paged_core.cli.new_plugin import write_plugin
from paged_core.errors import ConfigError
from paged_core.plugins import load_plugins

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def module_of(folder: Path) -> Path:
    (init,) = folder.glob("paged_*/__init__.py")
    return init


@pytest.mark.parametrize("kind", KINDS)
def test_package_of_every_kind_registers_what_its_name_says(kind: str, tmp_path: Path) -> None:
    name = "trial_" + kind  # modules of one process need names of their own
    folder = write_plugin(kind, name, tmp_path)
    plugin = KINDS[kind].prefix + name
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    assert project["project"]["name"] == folder.name == f"paged-{plugin.replace('_', '-')}"
    assert project["project"]["entry-points"]["paged_core"] == {plugin: f"paged_{plugin}"}
    record = load_plugins(path=[], modules=[str(module_of(folder).parent)]).records[plugin]
    assert (record.kind, record.provider.api) == (kind, KINDS[kind].api)
    for path in folder.rglob("*"):
        if path.is_file():
            assert "${" not in path.read_text().replace("${{", ""), f"{path} has an unfilled placeholder"


@pytest.mark.parametrize("kind", KINDS)
def test_package_keeps_the_style_of_the_project(kind: str, tmp_path: Path) -> None:
    folder = write_plugin(kind, "trial", tmp_path)
    config = str(EXAMPLES.parent / "pyproject.toml")
    for command in (["check", "--no-cache"], ["format", "--check", "--no-cache"]):
        arguments = [sys.executable, "-m", "ruff", *command, "--config", config, str(folder)]
        result = subprocess.run(arguments, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stdout + result.stderr


def test_command_prints_the_folder_and_the_next_step(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["new-plugin", "sched", "sched_mine", "--output", str(tmp_path)])
    assert result.exit_code == 0
    assert result.stdout == f"{tmp_path / 'paged-sched-mine'}\n"
    assert "pytest" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["schedler", "mine"], "no kind 'schedler' of plugins; did you mean sched?"),
        (["sched", "Mine"], "'Mine' cannot be a plugin's name"),
        (["sched", "../mine"], "'../mine' cannot be a plugin's name"),
        (["sched", ""], "'' cannot be a plugin's name"),
        (["sched", "fcfs"], "sched_fcfs is the name of"),
        (["sched"], "Missing argument 'NAME'"),
    ],
)
def test_bad_arguments_get_one_line_and_write_nothing(arguments: list[str], says: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["new-plugin", *arguments, "--output", str(tmp_path)])
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
    assert says in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    module = module_of(write_plugin("sched", "mine", tmp_path))
    module.write_text("mine\n")
    with pytest.raises(ConfigError, match="exists already"):
        write_plugin("sched", "mine", tmp_path)
    assert module.read_text() == "mine\n"


def test_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        write_plugin("sched", "mine", tmp_path / "file")


def test_hardware_example_is_what_the_template_writes(tmp_path: Path) -> None:
    written = module_of(write_plugin("attn", "numpy", tmp_path)).read_text()
    assert (EXAMPLES / "paged-attn-numpy/paged_attn_numpy/__init__.py").read_text() == written


@pytest.mark.slow
def test_templates_are_conformant(tmp_path: Path) -> None:
    """Of every kind but attention, whose template is the example that test_third_party.py has judged."""
    judged = set(KINDS) - {"attn"}
    options = ["--paged-quick", f"--paged-loader-sample={tmp_path / 'sample'}", "--paged-report=report.json"]
    for kind in judged:
        folder = write_plugin(kind, "trial", tmp_path)
        options += [f"--paged-{kind}=trial", f"--paged-plugin={module_of(folder).parent}"]
    subprocess.run([sys.executable, "paged-load-trial/tests/sample.py", "sample"], check=True, cwd=tmp_path)
    suite = ["-m", "pytest", "-p", "no:cacheprovider", "--pyargs", "paged_conformance.suite"]
    result = subprocess.run(
        [sys.executable, *suite, *options], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert result.returncode == 0, result.stdout + result.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert {plugin["kind"]: plugin["verdict"] for plugin in report["plugins"]} == dict.fromkeys(judged, "conformant")
