"""A model's chat template: messages to prompt text, in a sandbox that lets the template read data and nothing else."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

from paged_core.errors import ModelFormatError, RequestError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

RESERVED = frozenset({"messages", "tools"})


class ChatTemplate:
    """The template called "default" and any named variants, compiled once. Rendering is safe from several threads.

    `special_tokens` maps the names templates use (`bos_token`, `eos_token`, ...) to their text.
    Raises ModelFormatError when a template does not compile.
    """

    def __init__(self, sources: Mapping[str, str], special_tokens: Mapping[str, str]) -> None:
        self.sources = dict(sources)
        self._special_tokens = dict(special_tokens)
        environment = _environment()
        try:
            self._templates = {name: environment.from_string(source) for name, source in sources.items()}
        except jinja2.TemplateError as error:
            raise ModelFormatError(f"the model's chat template does not compile: {error}") from error

    def render(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]] | None,
        variables: Mapping[str, Any],
    ) -> str:
        """Prompt text for `messages`, the generation prompt appended unless `variables` switches it off.

        A variant called "tool_use" is taken when tools are given. A null field of a message counts as absent: templates
        would print it as "None". `variables` are handed to the template (`enable_thinking` and the like).
        Raises RequestError with the template's own words when it refuses the messages, and when there is no template.
        """
        name = "tool_use" if tools and "tool_use" in self._templates else "default"
        if name not in self._templates:
            message = "this model has no chat template; send a plain prompt (completions) instead of messages"
            raise RequestError(message, field="messages")
        clash = sorted(RESERVED & set(variables))
        if clash:
            raise RequestError(f"{', '.join(clash)} cannot be set as a chat template variable", field=clash[0])
        context: dict[str, Any] = {"add_generation_prompt": True, "documents": None}
        context |= {**self._special_tokens, **variables}
        context["messages"] = [_without_nulls(message) for message in messages]
        context["tools"] = list(tools) if tools else None
        try:
            return self._templates[name].render(context)
        except jinja2.TemplateError as error:
            raise RequestError(f"the model's chat template refuses these messages: {error}", "messages") from error
        except Exception as error:
            # A template is a program that came with the model: whatever it raises, on a message that is not what it
            # takes it for, is this request's failure and nobody else's.
            message = f"the model's chat template fails on these messages: {error}"
            raise RequestError(message, field="messages") from error


def _without_nulls(message: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise RequestError(f"a message must be an object with role and content, not {message!r}", field="messages")
    return {key: value for key, value in message.items() if value is not None}


class _GenerationBlock(jinja2.ext.Extension):
    """Lets templates mark the assistant's words for training (`{% generation %}`); here the body is simply rendered."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares a plain set

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    """What Hugging Face templates are written for: trimmed blocks, `break`, and four helpers."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON: Jinja's own filter escapes HTML characters, which models were not trained on."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
