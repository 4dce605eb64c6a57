"""`paged-core leaderboard`: all schedulers on the same loads, trace by trace, and the page that shows them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paged_core.cli.command import Command, Option
from paged_core.cli.simulate_options import plugin_option, texts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from paged_core.bench.report import Table
    from paged_core.sim.leaderboard import Board

HELP = """Serve the same loads with every scheduler there is, installed or named by --plugin, in virtual time.

Boards and their systems are fixed, so that figures can be compared. Traces are read from a folder that holds the files
of Azure 2023 and Mooncake under the names that the page lists.
"""
_SECTION = "Leaderboard"
_INTRO = """# Leaderboard of schedulers

Written by `{command}`; do not edit.

Every scheduler of this repository and one of a third party (`examples/paged-sched-sjf`), each around the real engine on
a virtual clock ([simulate.md](simulate.md)): what a step takes is a roofline model's estimate, everything else is what
serves real models. All get the same requests. Times are in seconds; the first tenth of the arrivals is not measured.
Best goodput first: requests answered within the SLO, a second.

* Loads are near the saturation of `fcfs`. Another load or another SLO gives another order: try yours with
  `paged-core simulate`.
* `sjf` reads the true output lengths, which nobody knows outside a simulation: it is an **oracle**, a bound, no rival.
* All requests have one priority here, so that `priority` decides as `fcfs` does; so does `prefix` where there is no
  prefix cache.
* What schedulers do when memory is short makes no difference where it is not: most have the same figures on two boards.
* Schedulers that do not cut prompts have a token budget for whole ones.
* To see your own scheduler here: `paged-core leaderboard --traces FOLDER --plugin your_module.py`.
"""
_SOURCES = """## Traces

| file in the folder | from |
| --- | --- |
| `azure2023_code.csv` | Azure/AzurePublicDataset, `AzureLLMInferenceTrace_code.csv` (CC-BY 4.0) |
| `azure2023_conv.csv` | Azure/AzurePublicDataset, `AzureLLMInferenceTrace_conv.csv` (CC-BY 4.0) |
| `mooncake_conversation.jsonl` | kvcache-ai/Mooncake, FAST25 release, `conversation_trace.jsonl` (Apache-2.0) |
"""


def leaderboard(parameters: Mapping[str, Any]) -> int:
    """Play the boards; show the tables, and write the page when one is asked for."""
    from rich.console import Console

    from paged_core.bench.report import Report
    from paged_core.cli.bench_options import output_file
    from paged_core.cli.simulate import progress
    from paged_core.sim.leaderboard import boards_named, conditions, entrants, play

    output = None if parameters["output"] is None else output_file(parameters["output"])
    modules = tuple(parameters["plugin_modules"])
    boards = boards_named(texts(parameters["board"]))
    all_entrants = entrants(modules, texts(parameters["sched"]))
    folder = None if parameters["traces"] is None else Path(parameters["traces"])
    loads = [board.load_from(folder) for board in boards]  # a missing trace is found before an hour of work
    with progress(len(boards) * len(all_entrants)) as tell:
        tables = []
        for i in range(len(loads)):
            base = i * len(all_entrants)
            tell(base)
            told = lambda done, base=base: tell(base + done)  # noqa: E731
            tables.append(play(boards[i], all_entrants, folder, modules, parameters["jobs"], told))
    console = Console()
    report = Report("leaderboard", {board.title: conditions(board) for board in boards}, tables)
    report.show(console if console.is_terminal else Console(width=160))
    if output is not None:
        output.write_text(page(boards, tables, modules))
    return 0


def page(boards: Sequence[Board], tables: Sequence[Table], modules: Sequence[str]) -> str:
    """The page in Markdown."""
    from paged_core.bench.report import markdown
    from paged_core.sim.leaderboard import conditions

    plugins = "".join(f" --plugin {module}" for module in modules)
    command = f"paged-core leaderboard --traces FOLDER{plugins} --output docs/leaderboard.md"
    parts = [_INTRO.format(command=command)]
    for board, table in zip(boards, tables, strict=True):
        parts.append(f"## {board.title}\n\n{conditions(board)}\n\n{markdown(table)}\n")
        parts += [f"{' '.join(table.notes)}\n"] * bool(table.notes)
    return "\n".join([*parts, _SOURCES])


def _options() -> list[click.Option]:
    return [
        Option(["--traces"], section=_SECTION, metavar="FOLDER", help="Where the trace files are."),
        Option(["--board"], section=_SECTION, multiple=True, metavar="NAMES", help="Only these. Default: all."),
        Option(["--sched"], section=_SECTION, multiple=True, metavar="NAMES", help="Only these. Default: every one."),
        plugin_option(_SECTION),
        Option(["--output"], section=_SECTION, metavar="FILE", help="Write the page in Markdown."),
        Option(["--jobs"], section=_SECTION, type=click.IntRange(1), default=1, help="Processes. Default: 1."),
    ]


leaderboard_command = Command("leaderboard", leaderboard, _options(), HELP)
