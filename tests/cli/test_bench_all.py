"""`paged-core bench all` hands each benchmark what it knows, and goes on after one that fails."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click
import pytest
from click.testing import CliRunner

from paged_core.cli.bench_all import all_command
from paged_core.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result

HEARD: list[tuple[str, dict[str, Any]]] = []


def fake(name: str, *flags: str, error: str = "") -> click.Command:
    def callback(**given: Any) -> None:
        HEARD.append((name, given))
        if error:
            raise ConfigError(error)
        with open(given["json"], "w") as file:
            json.dump({"command": name}, file)

    options = [click.Option([flag]) for flag in ("--json", *flags)] + [click.Option(["--quick"], is_flag=True)]
    return click.Command(name, callback=callback, params=list[click.Parameter](options))


@pytest.fixture(autouse=True)
def forget() -> None:
    HEARD.clear()


def run(commands: list[click.Command], *arguments: str) -> Result:
    return CliRunner().invoke(all_command(commands), arguments)


def test_each_gets_the_options_it_knows_and_a_file_of_its_own(tmp_path: Path) -> None:
    commands = [fake("one", "--threads", "--rounds"), fake("two", "--data", "--clock")]
    target = tmp_path / "deep" / "out"
    options = ("--threads", "2", "--rounds", "3", "--clock", "cpu", "--data", "DIR", "--output", str(target))
    result = run(commands, *options)
    assert result.exit_code == 0, result.stderr
    one, two = (given for _, given in HEARD)
    assert one == {"threads": "2", "rounds": "3", "quick": False, "json": str(target / "one.json")}
    assert two == {"data": "DIR", "clock": "cpu", "quick": False, "json": str(target / "two.json")}
    assert sorted(path.name for path in target.iterdir()) == ["one.json", "two.json"]


def test_without_data_those_that_need_it_are_left_out_unless_it_is_to_be_quick(tmp_path: Path) -> None:
    commands = [fake("one"), fake("two", "--data")]
    result = run(commands, "--output", str(tmp_path))
    assert [name for name, _ in HEARD] == ["one"]
    assert "bench two is left out" in result.stderr
    HEARD.clear()
    run(commands, "--output", str(tmp_path), "--quick")
    assert [(name, given["quick"]) for name, given in HEARD] == [("one", True), ("two", True)]


def test_one_that_fails_is_named_and_the_rest_is_run(tmp_path: Path) -> None:
    result = CliRunner().invoke(
        all_command([fake("one", error="no luck"), fake("two")]), ["--output", str(tmp_path)], standalone_mode=False
    )
    assert result.return_value == 1
    assert "bench one failed: no luck" in result.stderr
    assert [name for name, _ in HEARD] == ["one", "two"]


def test_what_is_to_be_skipped_is_not_run(tmp_path: Path) -> None:
    result = run([fake("one"), fake("two")], "--output", str(tmp_path), "--skip", "one")
    assert result.exit_code == 0, result.stderr
    assert [name for name, _ in HEARD] == ["two"]
