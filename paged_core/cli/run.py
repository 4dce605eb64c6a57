"""`paged-core run`: answer one prompt, a file of prompts, or hold a conversation."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paged_core.cli.command import Command, Option
from paged_core.cli.options import engine_flags, engine_options, sampling_options, sampling_params, sampling_values
from paged_core.cli.report import answer_rows, note, process_age_s, stats_rows, table, timing_rows
from paged_core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from paged_core.engine.llm import LLM

_INTERRUPTED = 130
_SOME_FAILED = 2
_INPUT = "Input and output"

HELP = """Answer PROMPT (- reads it from standard input), a file of prompts (--input and --output), or, with neither,
hold a conversation.

The answer goes to standard output, everything else to standard error.
"""


def open_llm(settings: Mapping[str, Any]) -> LLM:
    """The model, loaded. Tests replace this function."""
    from paged_core.engine.llm import LLM

    return LLM(**settings)


def run(parameters: Mapping[str, Any]) -> int:
    """Dispatch on what was given."""
    logging.getLogger("paged_core").setLevel(logging.INFO if parameters["verbose"] else logging.WARNING)
    _refuse_nonsense(parameters)
    if parameters["input"] is not None:
        return _batch(parameters, Path(parameters["input"]), Path(parameters["output"]))
    return _chat(parameters) if parameters["prompt"] is None else _answer(parameters)


def _refuse_nonsense(parameters: Mapping[str, Any]) -> None:
    """Raise for all that can be refused without loading a model."""
    prompt, source, target = parameters["prompt"], parameters["input"], parameters["output"]
    if (source is None) != (target is None):
        raise ConfigError("--input and --output belong together: one file of prompts, one of answers")
    if source is not None and prompt is not None:
        raise ConfigError("give a PROMPT or --input, not both")
    if parameters["logprobs"] is not None and source is None:
        raise ConfigError("--logprobs goes into the records of a batch: it needs --input and --output")
    bare = not parameters["chat"] if source is not None else parameters["chat"] is False
    if parameters["system"] is not None and bare:
        raise ConfigError(
            "--system is part of a conversation: give --chat with it (--raw prompts have no system message)"
        )
    sampling_params(parameters)


def _answer(parameters: Mapping[str, Any]) -> int:
    from paged_core.cli.answer import chat_messages, stream_answer

    prompt = sys.stdin.read() if parameters["prompt"] == "-" else parameters["prompt"]
    before_s = process_age_s()
    with _open(parameters) as llm:
        if _uses_template(llm, parameters):
            prompt = llm.chat_prompt(chat_messages(prompt, parameters["system"]))
        output, stopped = stream_answer(llm, prompt, sampling_params(parameters))
        if output is not None:
            table(answer_rows(output, llm.engine.facts, llm.engine.stats()))
            if output.error:
                note(f"note: {output.error}")
        metrics = output.metrics if output is not None else None
        first = metrics.first_token_time if metrics is not None else None
        first_s = None if metrics is None or first is None else first - metrics.arrival_time
        _closing_tables(llm, parameters, before_s, first_s)
    if stopped:
        return _INTERRUPTED
    failed = output is not None and any(branch.finish_reason == "error" for branch in output.outputs)
    return _SOME_FAILED if failed else 0


def _chat(parameters: Mapping[str, Any]) -> int:
    from paged_core.cli.chat import Chat

    before_s = process_age_s()
    with _open(parameters) as llm:
        template = _uses_template(llm, parameters)
        Chat(llm, sampling_params(parameters), system=parameters["system"], template=template).loop()
        _closing_tables(llm, parameters, before_s, None)
    return 0


def _batch(parameters: Mapping[str, Any], source: Path, target: Path) -> int:
    from paged_core.cli.batch import PromptStyle, check_paths, run_batch
    from paged_core.cli.records import Records

    check_paths(source, target)
    before_s = process_age_s()
    with Records(target) as records:
        num_before = len(records.done)
        if num_before:
            note(f"{target}: {num_before:,} records are there already; going on with the rest")
        with _open(parameters) as llm:
            chat = parameters["chat"] is True
            style = PromptStyle(sampling_values(parameters), chat, parameters["system"])
            stopped = run_batch(llm, source, records, style)
            _closing_tables(llm, parameters, before_s, None)
        note(f"{len(records.done) - num_before:,} answered now, {len(records.done):,} in {target}")
        if stopped:
            note("stopped; the same command goes on from here")
            return _INTERRUPTED
        if records.num_errors:
            note(f'{records.num_errors:,} of them are errors: look for "error" in {target}')
            return _SOME_FAILED
    return 0


def _open(parameters: Mapping[str, Any]) -> LLM:
    llm = open_llm(engine_flags(parameters))
    for line in llm.engine.facts.describe():
        note(line)
    return llm


def _uses_template(llm: LLM, parameters: Mapping[str, Any]) -> bool:
    """--chat and --raw decide; else the model's having a template does, and its lack is told."""
    from paged_core.cli.answer import has_chat_template

    if parameters["chat"] is not None:
        return bool(parameters["chat"])
    if has_chat_template(llm):
        return True
    if parameters["system"] is not None:
        raise ConfigError("--system needs a chat template, and this model has none; put the text into the prompt")
    note("this model has no chat template: the prompt is completed as it is")
    return False


def _closing_tables(llm: LLM, parameters: Mapping[str, Any], before_s: float, first_token_s: float | None) -> None:
    if parameters["timing"]:
        note("start-up:")
        table(timing_rows(before_s, llm.timings, first_token_s))
    if parameters["stats"]:
        note("engine:")
        table(stats_rows(llm.engine.stats()))


def _own_options() -> list[click.Parameter]:
    stats = "Show speed, latencies, KV use and blocks saved by sharing."
    chat = "Use the model's chat template, or the bare text. [default: the template if there is one; bare in a batch]"
    return [
        click.Argument(["prompt"], required=False),
        Option(["--input"], section=_INPUT, metavar="FILE", help="JSON lines: prompt, messages or prompt_token_ids."),
        Option(["--output"], section=_INPUT, metavar="FILE", help="Answers, appended; a killed run goes on from them."),
        Option(["--chat/--raw"], section=_INPUT, default=None, help=chat),
        Option(["--system"], section=_INPUT, metavar="TEXT", help="System message of the conversation."),
        Option(["--timing"], section=_INPUT, is_flag=True, help="Show the time of every start-up phase."),
        Option(["--stats"], section=_INPUT, is_flag=True, help=stats),
        Option(["--verbose", "-v"], section=_INPUT, is_flag=True, help="Log why each plugin was chosen."),
    ]


run_command = Command("run", run, [*_own_options(), *sampling_options(), *engine_options()], HELP)
