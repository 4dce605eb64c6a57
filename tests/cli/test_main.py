"""Errors are one line and an exit code; commands load on use."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest

from paged_core.cli.main import LazyGroup
from paged_core.errors import (
    EngineDeadError,
    ModelNotFoundError,
    PluginConflictError,
    PluginContractError,
    PluginUnfitError,
)

HEAVY = ["torch", "triton", "numba", "transformers"]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (PluginUnfitError("attn_cuda does not fit: no GPU"), 2),
        (ModelNotFoundError("no such model"), 2),
        (PluginContractError("law 3"), 1),
        (EngineDeadError("gone"), 1),
    ],
)
def test_our_errors_are_one_line_and_their_class_exit_code(monkeypatch, invoke, error, code):
    def fail(settings):
        raise error

    monkeypatch.setattr("paged_core.cli.run.open_llm", fail)
    result = invoke("run", "hello")
    assert (result.exit_code, result.stderr, result.stdout) == (code, f"paged-core: {error}\n", "")


def test_unexpected_error_is_one_line_that_names_debug(monkeypatch, invoke):
    def fail(settings):
        return {}["missing"]

    monkeypatch.setattr("paged_core.cli.run.open_llm", fail)
    result = invoke("run", "hello")
    assert result.exit_code == 1
    assert result.stderr == "paged-core: unexpected KeyError: 'missing' (--debug shows the traceback)\n"


@pytest.mark.parametrize("arguments", [["--debug", "run", "hello"], ["run", "hello", "--debug"]])
def test_debug_shows_the_traceback_wherever_it_stands(monkeypatch, invoke, arguments):
    def fail(settings):
        raise ModelNotFoundError("no such model")

    monkeypatch.setattr("paged_core.cli.run.open_llm", fail)
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert "Traceback" in result.stderr
    assert result.stderr.endswith("paged-core: no such model\n")


def test_debug_after_the_double_dash_is_a_prompt(monkeypatch, invoke):
    def fail(settings):
        raise ModelNotFoundError("no such model")

    monkeypatch.setattr("paged_core.cli.run.open_llm", fail)
    assert "Traceback" not in invoke("run", "--", "--debug").stderr


def test_keyboard_interrupt_stops_with_130(monkeypatch, invoke):
    def interrupted(settings):
        raise KeyboardInterrupt

    monkeypatch.setattr("paged_core.cli.run.open_llm", interrupted)
    result = invoke("run", "hello")
    assert result.exit_code == 130
    assert result.stderr.strip() == "paged-core: stopped"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "--tempratur", "1", "x"], "No such option"),
        (["run", "--block-size", "many", "x"], "not a valid integer"),
        (["run", "--device", "tpu", "x"], "tpu"),
        (["run", "--block-size", "999", "x"], "block_size"),
        (["run", "--kv-memory", "lots", "x"], "kv_memory"),
        (["run", "--temperature", "-1", "x"], "temperature"),
        (["run", "--top-p", "0", "x"], "top_p"),
        (["run", "--n", "0", "x"], "n must lie in"),
        (["run", "one", "two"], "unexpected extra argument"),
        (["nonsense"], "No such command"),
        (["pull"], "Missing argument"),
        (["run", "--logprobs", "3", "x"], "--logprobs"),
        (["run", "--input", "a.jsonl"], "--output"),
        (["run", "--raw", "--system", "S", "x"], "--system"),
        (["run", "--input", "a.jsonl", "--output", "b.jsonl", "--system", "S"], "--system"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(invoke, arguments, words):
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("paged-core: ")
    assert words in result.stderr
    assert "Traceback" not in result.stderr
    assert len([line for line in result.stderr.splitlines() if line.startswith("paged-core: ")]) == 1


def test_version(invoke):
    from paged_core import __version__

    assert invoke("--version").stdout.split() == ["paged-core,", "version", __version__]


def test_plugin_command_appears_and_runs():
    group = LazyGroup("paged-core", commands={})
    group._plugins_asked = True
    group.add_command(click.Command("hello", callback=lambda: click.echo("hi"), help="Greets."))
    context = click.Context(group)
    assert group.list_commands(context)[-1] == "hello"
    command = group.get_command(context, "hello")
    assert command is not None
    assert "debug" in [parameter.name for parameter in command.params]


@pytest.mark.parametrize("name", ["run", "hello"])
def test_plugin_command_cannot_take_a_name(name):
    group = LazyGroup("paged-core", commands={})
    group._plugins_asked = True
    group.add_command(click.Command("hello"))
    with pytest.raises(PluginConflictError, match=name):
        group.add_command(click.Command(name))


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        ("import paged_core", None),
        ("from paged_core import SamplingParams, RequestOutput, hookimpl", None),
        ("from paged_core.cli import main; main(['--help'])", 0),
        ("from paged_core.cli import main; main(['run', '--help'])", 0),
        ("from paged_core.cli import main; main(['plugins'])", 0),
        ("from paged_core.cli import main; main(['run', '--temperature', '-1', 'x'])", 2),
    ],
)
def test_light_commands_import_nothing_heavy(code, exit_code):
    script = f"import sys\ncode = None\ntry:\n    {code}\nexcept SystemExit as end:\n    code = end.code\n"
    script += f"print(code, sorted(set({HEAVY}) & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == f"{exit_code} []", result.stderr
