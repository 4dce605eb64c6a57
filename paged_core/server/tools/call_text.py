"""CallText: one tool call in JSON, `{"name": ..., "arguments": {...}}`, read as it is written."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

from paged_core.server.tools.json_value import JsonValue, NotJsonError

if TYPE_CHECKING:
    from collections.abc import Collection

ARGUMENT_KEYS = ("arguments", "parameters")
_BLANKS = " \t\n\r"


@dataclass(frozen=True, slots=True)
class CallNews:
    """What is new of the call: its name (once, in the first news) and text of its arguments."""

    name: str | None
    arguments: str


class _At(Enum):
    START = auto()
    FIRST_KEY = auto()
    KEY = auto()
    KEY_TEXT = auto()
    COLON = auto()
    VALUE = auto()
    COMMA = auto()
    END = auto()


class CallText:
    """Feed it characters from the opening brace on. A call has `begun` when a declared name and the beginning of its
    arguments (an object) have been read, in whichever order; from then on its arguments come out as they are written.

    Arguments may be called "parameters", may be an object as JSON text in a string, and may be null or missing, which
    is an empty object. Other fields are skipped. `whole`: the arguments are complete; `done`: so is the call.
    """

    def __init__(self, names: Collection[str]) -> None:
        self.begun = self.whole = self.done = False
        self._names = names
        self._at = _At.START
        self._value = JsonValue()
        self._key = ""
        self._name: str | None = None
        self._held: list[str] = []
        self._streams = False

    def plain_end(self, text: str, start: int) -> int:
        """Up to where characters of `text` are a string's; `take` takes them all at once."""
        return self._value.plain_end(text, start) if self._at in (_At.VALUE, _At.KEY_TEXT) else start

    def take(self, char: str) -> CallNews | None:
        """What the character reveals. NotJsonError when this is no call of a declared function, or no longer one."""
        if self._at is _At.VALUE:
            return self._take_value(char)
        if self._at is _At.KEY_TEXT:
            self._value.take(char)
            if self._value.done:
                self._key, self._at = json.loads(self._value.text), _At.COLON
            return None
        if char in _BLANKS:
            return None
        return self._take_mark(char)

    def _take_mark(self, char: str) -> CallNews | None:
        """A character between the parts of the object."""
        if char == '"' and self._at in (_At.FIRST_KEY, _At.KEY):
            self._value, self._at = JsonValue(), _At.KEY_TEXT
            self._value.take(char)
        elif char == "}" and self._at in (_At.FIRST_KEY, _At.COMMA):
            return self._end()
        elif (self._at, char) in _MARKS:
            self._at = _MARKS[self._at, char]
            self._value, self._streams = JsonValue(), False
        else:
            raise NotJsonError(f"{char!r} does not go on with a call")
        return None

    def _take_value(self, char: str) -> CallNews | None:
        if not self._value.has_begun:
            return self._start_value(char)
        text = self._value.take(char)
        if text is None:  # a number, which its successor ended
            self._at = _At.COMMA
            return self.take(char)
        news = self._add(text) if self._streams else None
        return self._value_ended() or news if self._value.done else news

    def _start_value(self, char: str) -> CallNews | None:
        if char in _BLANKS:
            return None
        if self._key == "name" and self._name is None and char != '"':
            raise NotJsonError("a name is text")
        if self._is_arguments() and char not in '{"n':
            raise NotJsonError("arguments are an object")
        self._streams = char == "{" and self._is_arguments()
        self._value.take(char)
        return self._add(char) if self._streams else None

    def _value_ended(self) -> CallNews | None:
        """Draw the conclusions from a complete value."""
        self._at = _At.COMMA
        if self._streams:
            self.whole = True
        elif self._key == "name" and self._name is None:
            return self._named(json.loads(self._value.text))
        elif self._is_arguments():
            self.whole = True
            return self._add(_object_text(json.loads(self._value.text)))
        return None

    def _is_arguments(self) -> bool:
        """Whether the value at hand is the call's arguments: the first of them, if there are several."""
        return self._key in ARGUMENT_KEYS and not self._held

    def _named(self, name: str) -> CallNews | None:
        if name not in self._names:
            raise NotJsonError("no such function was declared")
        self._name = name
        return self._begin() if self._held else None

    def _add(self, text: str) -> CallNews | None:
        """More of the arguments."""
        if self.begun:
            return CallNews(None, text)
        self._held.append(text)
        return None if self._name is None else self._begin()

    def _begin(self) -> CallNews:
        self.begun = True
        return CallNews(self._name, "".join(self._held))

    def _end(self) -> CallNews | None:
        if self._name is None:
            raise NotJsonError("the call has no name")
        self._at, self.whole, self.done = _At.END, True, True
        return None if self.begun else self._add("{}")


_MARKS = {
    (_At.START, "{"): _At.FIRST_KEY,
    (_At.COLON, ":"): _At.VALUE,
    (_At.COMMA, ","): _At.KEY,
}


def _object_text(value: str | None) -> str:
    """Arguments that are not written as an object."""
    if not value:
        return "{}"
    try:
        value.encode()  # escapes can spell halves of surrogate pairs, which no answer can carry
        is_object = isinstance(json.loads(value), dict)
    except (ValueError, RecursionError) as error:
        raise NotJsonError("arguments must be an object") from error
    if not is_object:
        raise NotJsonError("arguments must be an object")
    return value
