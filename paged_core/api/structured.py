"""StructuredOutputsParams: the form that a request's text must have. Names and meanings are vLLM's.

All that can be told without a compiler is refused here, on construction: types, sizes, JSON that is none, a schema
whose parts are no schemas, a regular expression whose brackets do not close. What only the grammar's compiler can find
(an unsupported look-ahead, an undefined rule, a schema that explodes) ends the request later, finish reason "error".
"""

from __future__ import annotations

import json as json_module
from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any

from paged_core.api.json_schema import check_schema
from paged_core.errors import RequestError

FIELD = "structured_outputs"
KINDS = ("json", "regex", "choice", "grammar", "json_object")
BACKENDS = ("auto", "xgrammar", "llguidance")
MAX_CHARS = 1 << 20
MAX_CHOICES = 10_000
MAX_REGEX_CHARS = 1 << 16


@dataclass(slots=True)
class StructuredOutputsParams:
    """Exactly one of the first five. RequestError (a ValueError) names `structured_outputs` and says what is wrong.

    json                     a JSON Schema, as text or as a dict: the answer is a JSON value that obeys it
    regex                    the whole answer matches it
    choice                   the answer is one of these strings
    grammar                  the answer is a sentence of this grammar: EBNF (rules `name ::= ...`, the first symbol is
                             `root`), or Lark (`start: ...`)
    json_object              True: the answer is any JSON object
    disable_any_whitespace   JSON without spaces and line breaks between its parts
    backend                  "auto" (the engine's choice, docs/structured_outputs.md), "xgrammar" or "llguidance"

    An object of a schema may hold properties that the schema does not name unless it says
    `"additionalProperties": false`, as JSON Schema has it.
    """

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool = False
    backend: str = "auto"

    def __post_init__(self) -> None:
        if not isinstance(self.disable_any_whitespace, bool):
            raise _refuse("disable_any_whitespace must be true or false")
        if self.json_object is not None and not isinstance(self.json_object, bool):
            raise _refuse("json_object must be true or false")
        if self.backend not in BACKENDS:
            raise _refuse(f"backend must be one of {', '.join(BACKENDS)}, not {str(self.backend)[:100]!r}")
        given = [kind for kind in KINDS if getattr(self, kind) not in (None, False)]
        if len(given) != 1:
            names = ", ".join(given) if given else "none"
            raise _refuse(f"exactly one of {', '.join(KINDS)} is needed; given: {names}")
        _CHECKS[given[0]](self)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> StructuredOutputsParams:
        """Build from names and values that came from outside. RequestError for a name that is none."""
        names = [item.name for item in fields(cls)]
        for name in values:
            if name not in names:
                close = get_close_matches(str(name), names, 1)
                hint = f"; did you mean {close[0]!r}?" if close else f"; there are {', '.join(names)}"
                raise _refuse(f"there is no field {str(name)[:100]!r}{hint}")
        return cls(**values)

    @classmethod
    def of(cls, value: Any) -> StructuredOutputsParams | None:
        """What `SamplingParams.structured_outputs` may be: None, such an object, or a mapping of its fields."""
        if value is None or isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            raise _refuse(f"an object with one of {', '.join(KINDS)} is needed, not {_kind_of(value)}")
        return cls.from_mapping(value)

    @property
    def kind(self) -> str:
        """Which of the five was given."""
        return next(kind for kind in KINDS if getattr(self, kind) not in (None, False))

    @property
    def text(self) -> str:
        """What was given as text, equal for equal wishes: schemas and choices as JSON."""
        value = getattr(self, self.kind)
        return value if isinstance(value, str) else json_module.dumps(value)

    def _check_json(self) -> None:
        schema = self.json
        if isinstance(schema, str):
            _sized("json", schema, MAX_CHARS)
            schema = _parsed(schema)
        if not isinstance(schema, dict):
            raise _refuse(f"json must be a JSON Schema, an object or its text, not {_kind_of(schema)}")
        try:
            text = json_module.dumps(schema, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise _refuse(f"json is not a JSON Schema: {_short(error)}") from error
        _sized("json", text, MAX_CHARS)
        fault = check_schema(schema)
        if fault:
            raise _refuse(f"json is not a JSON Schema: {fault}")
        self.json = text

    def _check_regex(self) -> None:
        _sized("regex", self.regex, MAX_REGEX_CHARS)
        assert self.regex is not None
        fault = _bracket_fault(self.regex)
        if fault:
            raise _refuse(f"regex {self.regex[:100]!r} is not a regular expression: {fault}")

    def _check_choice(self) -> None:
        if not isinstance(self.choice, list | tuple) or not 0 < len(self.choice) <= MAX_CHOICES:
            raise _refuse(f"choice must be a list of 1 to {MAX_CHOICES} strings")
        for one in self.choice:
            if not isinstance(one, str) or not one:
                raise _refuse(f"choice must hold strings that are not empty, not {_kind_of(one)}")
        self.choice = list(dict.fromkeys(self.choice))
        _sized("choice", json_module.dumps(self.choice), MAX_CHARS)
        for one in self.choice:
            _sized("choice", one, MAX_CHARS)

    def _check_grammar(self) -> None:
        _sized("grammar", self.grammar, MAX_CHARS)
        assert self.grammar is not None
        if "::=" not in self.grammar and ":" not in self.grammar:
            raise _refuse("grammar has no rule: write EBNF (root ::= ...) or Lark (start: ...)")

    def _check_json_object(self) -> None:
        """True is all there is to say."""


_CHECKS = {
    "json": StructuredOutputsParams._check_json,
    "regex": StructuredOutputsParams._check_regex,
    "choice": StructuredOutputsParams._check_choice,
    "grammar": StructuredOutputsParams._check_grammar,
    "json_object": StructuredOutputsParams._check_json_object,
}


def _refuse(message: str) -> RequestError:
    return RequestError(f"structured_outputs: {message}", FIELD)


def _short(error: BaseException) -> str:
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)[:200]


def _kind_of(value: Any) -> str:
    return "nothing" if value is None else f"{type(value).__name__} {str(value)[:60]!r}"


def _sized(name: str, text: Any, limit: int) -> None:
    """Raise unless `text` is a string of 1 .. limit characters that can be UTF-8."""
    if not isinstance(text, str):
        raise _refuse(f"{name} must be text, not {_kind_of(text)}")
    if not text or len(text) > limit:
        raise _refuse(f"{name} has {len(text)} characters; 1 to {limit} are allowed")
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise _refuse(f"{name} holds half of a surrogate pair, which is not text")


def _parsed(text: str) -> Any:
    try:
        return json_module.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise _refuse(f"json is not JSON: {_short(error)}") from error


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _bracket_fault(regex: str) -> str:
    """What no dialect accepts: an open or stray parenthesis, an open set, a lone backslash, nothing to repeat; else "".

    Deliberately no more: dialects differ, and the compiler has the last word.
    """
    depth, i, can_repeat = 0, 0, False
    while i < len(regex):
        character = regex[i]
        if character == "\\":
            if i + 1 == len(regex):
                return "it ends with a lone backslash"
            i += 1
        elif character == "[":
            first = i + 2 if regex[i + 1 : i + 2] == "^" else i + 1
            end = _set_end(regex, first)
            if end < 0:
                return f"the set opened at position {i} is never closed"
            i = end
        elif character == "(":
            depth += 1
        elif character == ")":
            depth -= 1
            if depth < 0:
                return f"the parenthesis at position {i} was never opened"
        elif character in "*+" and not can_repeat:
            return f"there is nothing to repeat at position {i}"
        can_repeat = character not in "(|"
        i += 1
    return f"{depth} parenthes{'i' if depth == 1 else 'e'}s never closed" if depth else ""


def _set_end(regex: str, first: int) -> int:
    """Index of the bracket that closes a set whose content starts at `first`, or -1. A bracket that comes first is
    part of the set in some dialects; it closes the set only where no other could."""
    i = first + 1 if regex[first : first + 1] == "]" else first
    while i < len(regex):
        if regex[i] == "\\":
            i += 1
        elif regex[i] == "]":
            return i
        i += 1
    return first if regex[first : first + 1] == "]" else -1
