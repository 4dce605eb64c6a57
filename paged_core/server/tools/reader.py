"""ToolReader: content and tool calls out of the text of a model, as it arrives."""

from __future__ import annotations

import uuid
from enum import Enum, auto
from typing import TYPE_CHECKING

from paged_core.server.tools.call_text import CallText
from paged_core.server.tools.json_value import NotJsonError
from paged_core.server.tools.turn import CallPart, Piece, Text

if TYPE_CHECKING:
    from collections.abc import Collection

    from paged_core.server.tools.formats import CallFormat


class _In(Enum):
    TEXT = auto()
    CALL = auto()
    GARBLED = auto()


class ToolReader:
    """Reads one choice, one character after the other, so that pieces joined are the same however the text was cut.

    What looks like a call and is none (broken JSON, a function that was not declared, no arguments) is text, marks and
    all. Once a call has begun it stays one: where the model then leaves JSON, the rest up to the closing mark goes to
    the arguments as it is, and the choice does not end with "tool_calls". Blanks around calls belong to the marks.
    `most`: calls beyond so many are left out.
    """

    def __init__(self, form: CallFormat, names: Collection[str], most: int | None = None) -> None:
        self._form = form
        self._names = names
        self._most = most
        self._in = _In.TEXT
        self._runs: list[_Run] = []
        self._blank = ""  # blanks that are content only if content follows
        self._mark = ""  # the beginning of what may become a mark
        self._raw: list[str] = []  # a call that has not begun, marks included
        self._call = CallText(names)
        self._num_calls = 0
        self._num_whole = 0
        self._is_fresh = True  # no content since the beginning or the last call
        self._may_close = False

    def feed(self, text: str) -> list[Piece]:
        """New text of the model; pieces that are now certain."""
        i = 0
        while i < len(text):
            end = max(self._plain_end(text, i), i + 1)
            self._take(text[i:end])
            i = end
        return self._taken()

    def end(self) -> list[Piece]:
        """The answer ended: what was held back."""
        if self._in is _In.GARBLED:
            self._emit_arguments(self._mark)
        elif self._in is _In.CALL:
            if not self._call.begun:
                self._emit_text("".join(self._raw))
            self._num_whole += self._call.begun and self._call.whole
        elif self._mark or not (self._is_fresh and self._num_calls):
            self._emit_text(self._blank + self._mark)
        self._in, self._blank, self._mark = _In.TEXT, "", ""
        return self._taken()

    def finish_reason(self, reason: str) -> str:
        """ "tool_calls" when the model stopped by itself after calls that are whole."""
        done = self._num_calls and self._num_calls == self._num_whole
        return "tool_calls" if reason == "stop" and done else reason

    def _plain_end(self, text: str, start: int) -> int:
        """Up to where `text` is what it seems, so that `_take` may have it at once: most of an answer is."""
        if self._in is _In.CALL:
            return self._call.plain_end(text, start)
        if self._mark or (self._in is _In.TEXT and self._is_fresh):
            return start
        found = text.find(self._form.opens[0], start)
        return len(text) if found < 0 else found

    def _take(self, text: str) -> None:
        """One character, or several that mean nothing by themselves."""
        if self._in is _In.CALL:
            self._take_call(text)
        elif len(text) > 1:
            self._take_plain(text)
        elif self._in is _In.TEXT:
            self._take_text(text)
        else:
            self._take_garbled(text)

    def _take_text(self, char: str) -> None:
        marks = (self._form.opens, self._form.closes) if self._may_close else (self._form.opens,)
        self._mark += char
        while self._mark and not any(mark.startswith(self._mark) for mark in marks):
            first, self._mark = self._mark[0], self._mark[1:]
            if first == "{" and self._form.bare and self._is_fresh:
                self._open(first)
                return
            self._take_plain(first)
        if self._mark == self._form.opens:
            self._open(self._mark)
        elif self._mark and self._mark == self._form.closes and self._may_close:
            self._blank = self._mark = ""
            self._may_close = False

    def _take_plain(self, text: str) -> None:
        """What belongs to no mark."""
        if self._in is _In.GARBLED:
            self._emit_arguments(text)
            return
        separators = self._form.separator if self._is_fresh and self._num_calls else ""
        if text.isspace() or text in separators:
            self._blank += text
            return
        content = text.rstrip()
        self._emit_text(self._blank + content)
        self._blank, self._is_fresh = text[len(content) :], False

    def _open(self, mark: str) -> None:
        self._raw, self._blank, self._mark = [self._blank + mark], "", ""
        self._in, self._call = _In.CALL, CallText(self._names)
        if mark == "{":
            self._call.take(mark)

    def _take_call(self, char: str) -> None:
        call, had_begun = self._call, self._call.begun
        try:
            news = call.take(char)
        except NotJsonError:
            self._fail(char)
            return
        if not had_begun:
            self._raw.append(char)
        if news is not None:
            if news.name is not None:
                self._num_calls += 1
                self._emit(CallPart(self._num_calls - 1, _new_id(), news.name, news.arguments))
            else:
                self._emit_arguments(news.arguments)
        if call.done:
            self._close()

    def _close(self) -> None:
        self._num_whole += 1
        self._in = _In.TEXT
        self._is_fresh, self._may_close = True, bool(self._form.closes)

    def _fail(self, char: str) -> None:
        """`char` cannot go on with the call."""
        if not self._call.begun:
            self._emit_text("".join(self._raw))
            self._in, self._is_fresh = _In.TEXT, False
        elif self._call.whole:  # the arguments are there; what is missing is a brace
            self._close()
        else:
            self._in = _In.GARBLED
        self._take(char)

    def _take_garbled(self, char: str) -> None:
        closes = self._form.closes
        self._mark += char
        while self._mark and not (closes and closes.startswith(self._mark)):
            first, self._mark = self._mark[0], self._mark[1:]
            self._emit_arguments(first)
        if closes and self._mark == closes:
            self._in, self._mark, self._is_fresh = _In.TEXT, "", True

    def _emit_text(self, text: str) -> None:
        if text:
            self._emit(Text(text))

    def _emit_arguments(self, text: str) -> None:
        if text:
            self._emit(CallPart(self._num_calls - 1, arguments=text))

    def _emit(self, piece: Piece) -> None:
        """Joined with the piece before where both are of one text or one call."""
        if isinstance(piece, CallPart) and self._most is not None and piece.index >= self._most:
            return
        if not self._runs or not self._runs[-1].joins(piece):
            self._runs.append(_Run(piece))
        else:
            self._runs[-1].add(piece)

    def _taken(self) -> list[Piece]:
        runs, self._runs = self._runs, []
        return [run.piece() for run in runs]


class _Run:
    """Pieces that become one; appended to in constant time, since whole answers are read by the character, too."""

    def __init__(self, first: Piece) -> None:
        self._first = first
        self._parts: list[str] = []
        self.add(first)

    def joins(self, piece: Piece) -> bool:
        if isinstance(piece, Text) or isinstance(self._first, Text):
            return isinstance(piece, Text) and isinstance(self._first, Text)
        return piece.index == self._first.index

    def add(self, piece: Piece) -> None:
        self._parts.append(piece.text if isinstance(piece, Text) else piece.arguments)

    def piece(self) -> Piece:
        joined = "".join(self._parts)
        first = self._first
        return Text(joined) if isinstance(first, Text) else CallPart(first.index, first.id, first.name, joined)


def _new_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"
