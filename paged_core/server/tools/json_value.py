"""JsonValue: one JSON value, followed character by character as a model writes it."""

from __future__ import annotations

import json
import re
from enum import Enum, auto

_BLANKS = " \t\n\r"
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?", re.ASCII)
_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_NUMERIC = frozenset("0123456789+-.eE")
_LITERALS = {"t": "rue", "f": "alse", "n": "ull"}
_ESCAPES = frozenset('"\\/bfnrt')
_HEX = frozenset("0123456789abcdefABCDEF")
_CLOSER = {"{": "}", "[": "]"}


class NotJsonError(ValueError):
    """What was written cannot be, or become, what is being read."""


class _Expect(Enum):
    VALUE = auto()
    VALUE_OR_END = auto()
    KEY = auto()
    KEY_OR_END = auto()
    COLON = auto()
    COMMA_OR_END = auto()
    STRING = auto()
    ESCAPE = auto()
    HEX = auto()
    NUMBER = auto()
    LITERAL = auto()
    NOTHING = auto()


class JsonValue:
    """`take` its characters one by one, from the first that is not blank, until `done`.

    A stack and no recursion: models write `[[[[` for as long as they may. `text` is what was taken so far. The one
    thing that is forgiven are raw control characters inside strings (line breaks of code): they come out as escapes.
    """

    def __init__(self) -> None:
        self.done = False
        self._parts: list[str] = []
        self._open: list[str] = []
        self._expect = _Expect.VALUE
        self._is_key = False
        self._number = ""
        self._rest = ""
        self._num_hex = 0

    @property
    def text(self) -> str:
        """The JSON so far."""
        return "".join(self._parts)

    @property
    def has_begun(self) -> bool:
        """Whether anything was taken."""
        return bool(self._parts)

    def plain_end(self, text: str, start: int) -> int:
        """Up to where characters of `text` go on with a string and mean nothing else; `take` takes them all at once."""
        if self._expect is not _Expect.STRING:
            return start
        found = _PLAIN.match(text, start)
        assert found is not None, "it matches nothing, too"
        return found.end()

    def take(self, char: str) -> str | None:
        """What `char` adds to the text; None when the value (a number) was complete before it.

        NotJsonError when it cannot follow; the text is then as it was.
        """
        if self._expect is _Expect.NUMBER and char not in _NUMERIC:
            self._end_number()
            if self.done:
                return None
        added = _STEPS[self._expect](self, char) or char
        self._parts.append(added)
        return added

    def _end_number(self) -> None:
        if not _NUMBER.fullmatch(self._number):
            raise NotJsonError(f"{self._number[:40]} is no number")
        self._number = ""
        self._value_ended()

    def _value_ended(self) -> None:
        self._expect = _Expect.COMMA_OR_END if self._open else _Expect.NOTHING
        self.done = not self._open

    def _close(self, char: str) -> None:
        if char != _CLOSER[self._open[-1]]:
            raise NotJsonError(f"{char} closes what is not open")
        self._open.pop()
        self._value_ended()

    def _value(self, char: str) -> None:
        if char in _BLANKS and self._open:
            return
        if char in _CLOSER:
            self._open.append(char)
            self._expect = _Expect.KEY_OR_END if char == "{" else _Expect.VALUE_OR_END
        elif char == '"':
            self._expect, self._is_key = _Expect.STRING, False
        elif char in _LITERALS:
            self._expect, self._rest = _Expect.LITERAL, _LITERALS[char]
        elif char == "-" or (char.isascii() and char.isdigit()):
            self._expect, self._number = _Expect.NUMBER, char
        else:
            raise NotJsonError(f"no value begins with {char!r}")

    def _value_or_end(self, char: str) -> None:
        if char == "]":
            self._close(char)
        else:
            self._value(char)

    def _key(self, char: str) -> None:
        if char == '"':
            self._expect, self._is_key = _Expect.STRING, True
        elif char not in _BLANKS:
            raise NotJsonError(f"no name begins with {char!r}")

    def _key_or_end(self, char: str) -> None:
        if char == "}":
            self._close(char)
        else:
            self._key(char)

    def _colon(self, char: str) -> None:
        if char == ":":
            self._expect = _Expect.VALUE
        elif char not in _BLANKS:
            raise NotJsonError(f"{char!r} stands where a colon must")

    def _comma_or_end(self, char: str) -> None:
        if char == ",":
            self._expect = _Expect.KEY if self._open[-1] == "{" else _Expect.VALUE
        elif char in "]}":
            self._close(char)
        elif char not in _BLANKS:
            raise NotJsonError(f"{char!r} stands where a comma must")

    def _string(self, char: str) -> str | None:
        if char == '"':
            if self._is_key:
                self._expect = _Expect.COLON
            else:
                self._value_ended()
        elif char == "\\":
            self._expect = _Expect.ESCAPE
        elif char < " ":
            return json.dumps(char)[1:-1]
        return None

    def _escape(self, char: str) -> None:
        if char == "u":
            self._expect, self._num_hex = _Expect.HEX, 0
        elif char in _ESCAPES:
            self._expect = _Expect.STRING
        else:
            raise NotJsonError(f"there is no escape \\{char}")

    def _hex(self, char: str) -> None:
        if char not in _HEX:
            raise NotJsonError(f"{char!r} is no hexadecimal digit")
        self._num_hex += 1
        if self._num_hex == 4:
            self._expect = _Expect.STRING

    def _digits(self, char: str) -> None:
        self._number += char

    def _literal(self, char: str) -> None:
        if char != self._rest[0]:
            raise NotJsonError(f"{char!r} does not go on with a literal")
        self._rest = self._rest[1:]
        if not self._rest:
            self._value_ended()

    def _nothing(self, char: str) -> None:
        raise NotJsonError(f"{char!r} follows a complete value")


_STEPS = {
    _Expect.VALUE: JsonValue._value,
    _Expect.VALUE_OR_END: JsonValue._value_or_end,
    _Expect.KEY: JsonValue._key,
    _Expect.KEY_OR_END: JsonValue._key_or_end,
    _Expect.COLON: JsonValue._colon,
    _Expect.COMMA_OR_END: JsonValue._comma_or_end,
    _Expect.STRING: JsonValue._string,
    _Expect.ESCAPE: JsonValue._escape,
    _Expect.HEX: JsonValue._hex,
    _Expect.NUMBER: JsonValue._digits,
    _Expect.LITERAL: JsonValue._literal,
    _Expect.NOTHING: JsonValue._nothing,
}
