"""`paged-core plugins`: the command's body, its JSON and its table."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from paged_core.cli.plugins import listing, plugins_command
from paged_core.errors import PluginLoadError
from paged_core.settings import Settings

TABLE = """
from pydantic import Field
class Table(PluginSettings):
    split: int = Field(4, description="parts of a sequence")
"""


@pytest.fixture
def zoo(site, provider, monkeypatch, tmp_path):
    """One plugin of every status; the command sees these and no installed ones."""
    monkeypatch.chdir(tmp_path)
    site.plugin(
        "sched_ok", TABLE + provider("sched_ok", extra="    Settings = Table", capabilities=frozenset({"fcfs"}))
    )
    site.plugin("sched_unfit", provider("sched_unfit", reasons="['no left hand']"))
    site.plugin("sched_bad", "print('noise')\nraise ImportError('no libfoo')")
    site.plugin("sched_off", provider("sched_off"))
    site.plugin("toolbox", "raise SystemExit(1)")
    site.plugin("chooser", "@hookimpl\ndef paged_choose(kind): return None")
    for number in (1, 2):
        site.module(f"site_twin{number}", provider("sched_twin"))
        site.dist(f"dist-twin{number}", "1.0", {f"twin{number}": f"site_twin{number}"})
    monkeypatch.setattr("paged_core.cli.plugins.bootstrap", lambda settings: site.load(disabled=["sched_off"]))
    return site


STATUS = {
    "sched_ok": "ok",
    "sched_unfit": "unfit",
    "sched_bad": "broken",
    "sched_off": "blocked",
    "sched_twin": "conflict",
    "toolbox": "broken",
    "chooser": "ok",
}


def test_json_is_all_there_is_on_standard_output(zoo):
    result = CliRunner().invoke(plugins_command, ["--json"])
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    assert {row["name"]: row["status"] for row in report["plugins"]} == STATUS
    assert report["judged_for"] == "model smollm2-135m on cpu"
    rows = {row["name"]: row for row in report["plugins"]}
    assert rows["sched_ok"] == {
        "kind": "sched",
        "name": "sched_ok",
        "plugin": "sched_ok",
        "dist": "dist-sched-ok",
        "version": "1.0",
        "status": "ok",
        "api": 1,
        "priority": 0,
        "summary": "a test",
        "capabilities": ["fcfs"],
        "reasons": [],
        "hints": [],
        "settings": {},
    }
    assert rows["sched_unfit"]["reasons"] == ["no left hand"]
    assert "no libfoo" in rows["sched_bad"]["reasons"][0]


def test_verbose_describes_settings_with_their_variables(zoo):
    result = CliRunner().invoke(plugins_command, ["--json", "-v"])
    rows = {row["name"]: row for row in json.loads(result.stdout)["plugins"]}
    assert rows["sched_ok"]["settings"]["split"]["variable"] == "PAGED_PLUGINS__SCHED_OK__SPLIT"
    assert rows["sched_ok"]["settings"]["split"]["description"] == "parts of a sequence"
    text = CliRunner().invoke(plugins_command, ["-v"]).stdout
    assert "[plugins.sched_ok] split = 4  PAGED_PLUGINS__SCHED_OK__SPLIT  parts of a sequence" in text


def test_the_table_shows_every_plugin_and_why(zoo):
    result = CliRunner().invoke(plugins_command, [])
    assert result.exit_code == 0
    for name in STATUS:
        assert name in result.stdout
    for word in (
        "does not fit here: no left hand",
        "blocked:",
        "broken:",
        "conflict:",
        "capabilities",
        "dist-sched-ok",
    ):
        assert word in result.stdout


def test_strict_fails_on_anything_broken(zoo):
    result = CliRunner().invoke(plugins_command, ["--strict"])
    assert isinstance(result.exception, PluginLoadError)
    assert "no libfoo" in str(result.exception)
    assert "sched_twin is claimed by" in str(result.exception)


def test_a_plugin_that_two_distributions_own_is_listed_once_with_the_cure(site, provider, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    site.module("site_x", provider("sched_x"))
    site.dist("bundle", "1.0", {"sched_x": "site_x"})
    site.dist("alone", "1.1", {"sched_x": "site_x"})
    (row,) = listing(site.load(), Settings.load())
    assert set(row.dist.split(" + ")) == {"bundle", "alone"}
    assert "pip install --force-reinstall" in row.verdict


@pytest.mark.parametrize(
    ("arguments", "shows"),
    [(["--help"], "Commands"), (["--version"], "0."), (["plugins", "--json"], '"sched_bad"'), (["greet"], "hello")],
)
def test_g01_broken_plugins_leave_every_command_working(site, repository, tmp_path, arguments, shows):
    site.plugin("sched_bad", "raise ImportError('no libfoo')", dist="bad-dist")
    site.plugin("exit_bad", "raise SystemExit(7)")
    greet = "import click\n@hookimpl\ndef paged_cli(group): group.command('greet')(lambda: click.echo('hello'))"
    site.plugin("greeter", greet)
    code = "import sys; from paged_core.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": f"{site.folder}{os.pathsep}{repository}"},
    )
    assert done.returncode == 0, done.stderr
    assert shows in done.stdout
    if arguments != ["--version"]:
        warnings = [line for line in done.stderr.splitlines() if "bad-dist 1.0" in line]
        assert len(warnings) == 1
        assert "no libfoo" in warnings[0]
