"""The options of the command line: the engine's from `Settings`, so that flags, environment, paged.toml and `LLM`
keywords are one list; the sampling ones by the names of `SamplingParams`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

import click
from pydantic import BeforeValidator

from paged_core.api.params import SamplingParams
from paged_core.cli.command import Option
from paged_core.cli.form import form_options, form_values
from paged_core.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic.fields import FieldInfo

ENGINE = "Engine (also PAGED_NAME in the environment, or a line of paged.toml)"
SAMPLING = "Sampling"

# Not flags: `plugins` is a table, `seed` would shadow the one of sampling, `plugin_modules` is --plugin.
_NO_FLAG = frozenset({"plugins", "seed", "plugin_modules"})

# What `paged-core run` does unless told otherwise: the same answer every time, of readable length.
RUN_DEFAULTS: Mapping[str, Any] = {"temperature": 0.0, "max_tokens": 512}

_SAMPLING: tuple[tuple[str, click.ParamType[Any], str], ...] = (
    ("max_tokens", click.INT, f"Most tokens to generate. [default: {RUN_DEFAULTS['max_tokens']}]"),
    ("min_tokens", click.INT, "No ending before so many tokens. [default: 0]"),
    ("temperature", click.FLOAT, "0 takes the most probable token. [default: 0]"),
    ("top_p", click.FLOAT, "Draw from the smallest set of tokens with this much probability. [default: 1]"),
    ("top_k", click.INT, "Draw from the k most probable tokens; 0 is off. [default: 0]"),
    ("min_p", click.FLOAT, "Drop tokens less probable than this share of the best one's. [default: 0]"),
    ("seed", click.INT, "Makes the draws repeatable."),
    ("n", click.INT, "Answers per prompt. [default: 1]"),
    ("best_of", click.INT, "Draw so many answers and keep the n most probable. [default: n]"),
    ("beam_width", click.INT, "Search with so many beams instead of drawing; the best n are the answers."),
    ("length_penalty", click.FLOAT, "Beams are ranked by log-probability / length ** this. [default: 1]"),
    ("presence_penalty", click.FLOAT, "Subtracted once from tokens already in the output. [default: 0]"),
    ("frequency_penalty", click.FLOAT, "Subtracted per occurrence in the output. [default: 0]"),
    ("repetition_penalty", click.FLOAT, "Above 1 disfavours tokens of prompt and output. [default: 1]"),
    ("logprobs", click.INT, "Record log-probabilities: of the token, and of the k best. Needs --output."),
)


def engine_options(without: frozenset[str] = frozenset()) -> list[click.Option]:
    """One option per field of `Settings`, plus --plugin. None means "not given"."""
    fields = Settings.model_fields.items()
    skipped = _NO_FLAG | without
    options: list[click.Option] = [setting_option(name, field) for name, field in fields if name not in skipped]
    text = "Load one more plugin: a module name, a .py file or a package folder. Repeatable."
    options.append(
        Option(["--plugin", "plugin_modules"], section=ENGINE, multiple=True, metavar="MODULE", help=text),
    )
    return options


def engine_flags(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The settings among parsed parameters that were given."""
    names = (name for name in Settings.model_fields if name not in _NO_FLAG or name == "plugin_modules")
    return {name: parameters[name] for name in names if parameters.get(name) not in (None, ())}


def sampling_options() -> list[click.Option]:
    """The options that make up `SamplingParams`. None means "not given"."""
    options: list[click.Option] = [
        Option([_flag(name)], section=SAMPLING, type=kind, help=text) for name, kind, text in _SAMPLING
    ]
    stop = "Stop before this text. Repeatable."
    options.append(Option(["--stop"], section=SAMPLING, multiple=True, metavar="TEXT", help=stop))
    ignore = "Go on after the model's end-of-sequence token."
    options.append(Option(["--ignore-eos"], section=SAMPLING, is_flag=True, default=None, help=ignore))
    return [*options, *form_options()]


def sampling_values(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments of `SamplingParams`: what was given, over this command's defaults."""
    values = dict(RUN_DEFAULTS)
    names = [*(name for name, _, _ in _SAMPLING), "ignore_eos"]
    values |= {name: parameters[name] for name in names if parameters.get(name) is not None}
    if parameters["beam_width"] is not None:
        values["use_beam_search"] = True
    if parameters["stop"]:
        values["stop"] = list(parameters["stop"])
    return values | form_values(parameters)


def sampling_params(parameters: Mapping[str, Any]) -> SamplingParams:
    """SamplingParams of parsed parameters. RequestError names what is out of range."""
    return SamplingParams(**sampling_values(parameters))


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def setting_option(name: str, field: FieldInfo, section: str = ENGINE) -> click.Option:
    """The option of one field of a settings class. None means "not given"."""
    text = field.description or ""
    if field.annotation is bool:
        declaration = f"{_flag(name)}/{_flag('no_' + name)}"
        shown = _flag(name if field.default else "no_" + name)
        return Option([declaration, name], section=section, default=None, help=f"{text} [default: {shown}]")
    if field.default not in (None, (), "auto"):
        text += f" [default: {_shown(name, field.default)}]"
    return Option([_flag(name), name], section=section, type=_type(field), metavar=_metavar(name, field), help=text)


def _shown(name: str, value: object) -> str:
    whole_gib = name.endswith("_memory") and isinstance(value, int) and value % 2**30 == 0
    return f"{value // 2**30}GiB" if whole_gib and isinstance(value, int) else str(value)


def _type(field: FieldInfo) -> click.ParamType[Any]:
    if get_origin(field.annotation) is Literal:
        return click.Choice(get_args(field.annotation))
    parsed = any(isinstance(item, BeforeValidator) for item in field.metadata)
    if field.annotation in (int, int | None) and not parsed:
        return click.INT
    return click.FLOAT if field.annotation is float else click.STRING


def _metavar(name: str, field: FieldInfo) -> str | None:
    if name.endswith("_memory"):
        return "SIZE"
    return "NAME" if field.default == "auto" and field.annotation is str else None
