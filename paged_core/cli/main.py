"""The `paged-core` command: finds the subcommand, and turns every error into one line and an exit code.

0 success, 1 a failure, 2 bad input or settings, 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import sys
import traceback
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from paged_core import __version__
from paged_core.errors import PagedError, PluginConflictError

if TYPE_CHECKING:
    from collections.abc import Sequence

PROGRAM = "paged-core"
INTERRUPTED = 130

# name -> module:attribute, short help. Resolved on use: `--help` must not import what only `run` needs.
_BUILTINS = {
    "run": ("paged_core.cli.run:run_command", "Answer a prompt, a file of prompts, or chat."),
    "serve": ("paged_core.cli.serve:serve_command", "Serve the model over HTTP, as OpenAI's API has it."),
    "pull": ("paged_core.cli.pull:pull_command", "Obtain a model, so that it runs without the network."),
    "inspect": ("paged_core.cli.inspect:inspect_command", "Show a model's facts and what fits on this machine."),
    "plugins": ("paged_core.cli.plugins:plugins_command", "List plugins, their status and settings."),
    "conformance": ("paged_core.cli.conformance:conformance_command", "Judge plugins by the conformance suite."),
    "bench": ("paged_core.cli.bench:bench_command", "Measure on this machine, with floors and published figures."),
    "calibrate": ("paged_core.cli.calibrate:calibrate_command", "Measure this machine's steps, for simulations of it."),
    "simulate": ("paged_core.cli.simulate:simulate_command", "Try policies on traces, on a device that is not here."),
    "leaderboard": ("paged_core.cli.leaderboard:leaderboard_command", "Compare all schedulers, trace by trace."),
    "reproduce": ("paged_core.cli.reproduce:reproduce_command", "Find the PagedAttention paper's figures again."),
    "new-plugin": ("paged_core.cli.new_plugin:new_plugin_command", "Write a plugin package to start from."),
}


class LazyGroup(click.Group):
    """A group whose own commands load on use, and whose plugin commands load only when somebody asks for them."""

    _plugins_asked = False

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Own commands first, then those of plugins."""
        self._ask_plugins()
        return [*_BUILTINS, *sorted(self.commands)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Own commands win without loading any plugin; no plugin can take their names (`add_command`)."""
        if cmd_name in _BUILTINS:
            module, _, attribute = _BUILTINS[cmd_name][0].partition(":")
            command: click.Command = getattr(import_module(module), attribute)
            _accept_debug(command)
            return command
        self._ask_plugins()
        found = super().get_command(ctx, cmd_name)
        if found is not None:
            _accept_debug(found)
        return found

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        """Register a plugin's command. PluginConflictError when the name is taken."""
        taken = name or cmd.name or ""
        if taken in _BUILTINS or taken in self.commands:
            raise PluginConflictError(f"a plugin adds the command {taken!r}, which exists already; disable the plugin")
        super().add_command(cmd, name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List own commands from the table, without importing them."""
        self._ask_plugins()
        records = [(name, summary) for name, (_, summary) in _BUILTINS.items()]
        records += [(name, self.commands[name].get_short_help_str()) for name in sorted(self.commands)]
        with formatter.section("Commands"):
            formatter.write_dl(records)

    def main(self, args: Sequence[str] | None = None, *rest: Any, **extra: Any) -> Any:
        """Run, report errors as one line on stderr, exit with the code of the error's class."""
        given = list(sys.argv[1:] if args is None else args)
        extra["standalone_mode"] = False
        extra.setdefault("prog_name", PROGRAM)
        try:
            code = super().main(given, *rest, **extra)
        except click.ClickException as error:
            code = _report(_usage_line(error), error.exit_code)
        except (click.Abort, KeyboardInterrupt):
            code = _report("stopped", INTERRUPTED)
        except PagedError as error:
            code = _report(str(error), error.exit_code, debug=_debug(given))
        except Exception as error:
            text = f"unexpected {type(error).__name__}: {error}"
            code = _report(text, 1, debug=_debug(given), hint=True)
        sys.exit(code if isinstance(code, int) else 0)

    def _ask_plugins(self) -> None:
        if self._plugins_asked:
            return
        self._plugins_asked = True
        from paged_core.plugins import bootstrap
        from paged_core.settings import Settings

        bootstrap(Settings.load()).extend_cli(self)


def _accept_debug(command: click.Command) -> None:
    """Let `--debug` stand after the subcommand too; `main` reads it from the arguments."""
    for inner in command.commands.values() if isinstance(command, click.Group) else ():
        _accept_debug(inner)
    if not any(parameter.name == "debug" for parameter in command.params):
        command.params.append(click.Option(["--debug"], is_flag=True, expose_value=False, help="Show tracebacks."))


def _debug(arguments: list[str]) -> bool:
    """Whether `--debug` is among the options (not after `--`): known even when parsing them failed."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    return "--debug" in arguments[:end]


def _usage_line(error: click.ClickException) -> str:
    context = error.ctx if isinstance(error, click.UsageError) else None
    where = f" (see {context.command_path} --help)" if context is not None else ""
    return " ".join(error.format_message().split()) + where


def _report(message: str, code: int, *, debug: bool = False, hint: bool = False) -> int:
    if debug:
        traceback.print_exc()
    lines = message.splitlines() or ["failed"]
    lines[-1] += " (--debug shows the traceback)" if hint and not debug else ""
    for line in lines:
        click.echo(f"{PROGRAM}: {line}", err=True)
    return code


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(__version__, prog_name=PROGRAM)
@click.option("--debug", is_flag=True, expose_value=False, help="Show tracebacks instead of one line.")
def main() -> None:
    """An LLM inference engine in which every decision and every kernel is a plugin."""
