"""The options that prescribe the form of the answer: schema, regular expression, choice, grammar."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from paged_core.cli.command import Option
from paged_core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import click

_SECTION = "Form of the answer (at most one; needs the extra `structured`)"
_FLAGS = {
    "json_schema": "--json-schema",
    "json_object": "--json-object",
    "regex": "--regex",
    "choice": "--choice",
    "grammar": "--grammar",
}


def form_options() -> list[click.Option]:
    """One option per kind of `StructuredOutputsParams`. None means "not given"."""
    schema = "JSON that obeys this JSON Schema, given as a file or as text that begins with {."
    grammar = "A sentence of the grammar in this file: EBNF (root ::= ...) or Lark (start: ...)."
    return [
        Option([_FLAGS["json_schema"]], section=_SECTION, metavar="FILE|JSON", help=schema),
        Option([_FLAGS["json_object"]], section=_SECTION, is_flag=True, default=None, help="Any JSON object."),
        Option([_FLAGS["regex"]], section=_SECTION, metavar="REGEX", help="Text that matches as a whole."),
        Option([_FLAGS["choice"]], section=_SECTION, multiple=True, metavar="TEXT", help="One of these. Repeatable."),
        Option([_FLAGS["grammar"]], section=_SECTION, metavar="FILE", help=grammar),
    ]


def form_values(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """`structured_outputs` for `SamplingParams`, or nothing. ConfigError for two forms at once or a file that cannot
    be read; what is inside is judged by SamplingParams."""
    given = {name: parameters[name] for name in _FLAGS if parameters.get(name) not in (None, ())}
    if not given:
        return {}
    if len(given) > 1:
        raise ConfigError(f"give one of {', '.join(_FLAGS[name] for name in given)}, not {len(given)}")
    ((name, value),) = given.items()
    if name == "choice":
        return {"structured_outputs": {"choice": list(value)}}
    if name == "grammar" or (name == "json_schema" and not value.lstrip().startswith("{")):
        value = _text(_FLAGS[name], value)
    return {"structured_outputs": {"json" if name == "json_schema" else name: value}}


def _text(flag: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise ConfigError(f"{flag} {path[:200]}: {reason}") from error
