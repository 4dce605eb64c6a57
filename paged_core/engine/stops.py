"""StopChecker: finds stop strings in text that arrives in pieces, and shows no character that may yet belong to one."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class StopChecker:
    """One branch's stop strings.

    Which stop wins: the one that completes first, in order of characters, however the text was cut into pieces. If
    several complete with the same character, the longest, which began first.

    What is held back: the longest end of the text that is a proper beginning of some stop, no more.

    How: for each stop the length of its beginning that the text ends with (Knuth, Morris, Pratt 1977), so that a
    character costs a few operations per stop, whatever the lengths.
    """

    def __init__(self, stops: Sequence[str], include: bool) -> None:
        """`include`: the shown text ends after the stop instead of before it."""
        self._stops = [(stop, _borders(stop)) for stop in dict.fromkeys(stops)]
        self._include = include
        self._matched = [0] * len(self._stops)
        self._held = ""

    def fork(self) -> StopChecker:
        """A checker of its own that has seen what this one has."""
        twin = copy.copy(self)
        twin._matched = list(self._matched)
        return twin

    def feed(self, text: str, enabled: bool = True) -> tuple[str, str | None]:
        """Take new text; return what may be shown now, and the stop that completed in it.

        While not `enabled` (before min_tokens) a stop that completes is ordinary text, also later on; one that began
        then and completes once enabled counts. After a stop, feed no more.
        """
        if not self._stops:
            return text, None
        buffer = self._held + text
        for end in range(len(self._held) + 1, len(buffer) + 1):
            stop = self._advance(buffer[end - 1])
            if stop and enabled:
                self._held = ""
                return buffer[: end if self._include else end - len(stop)], stop
        shown = len(buffer) - max(self._matched)
        self._held = buffer[shown:]
        return buffer[:shown], None

    def flush(self) -> str:
        """The text still held back: the sequence ended, so no stop can complete any more."""
        held, self._held = self._held, ""
        self._matched = [0] * len(self._stops)
        return held

    def _advance(self, character: str) -> str:
        """Take one character; the longest stop it completes, or "" ."""
        longest = ""
        for i, (stop, borders) in enumerate(self._stops):
            length = self._matched[i]
            while length and stop[length] != character:
                length = borders[length - 1]
            if stop[length] == character:
                length += 1
            if length == len(stop):
                length = borders[-1]
                if len(stop) > len(longest):
                    longest = stop
            self._matched[i] = length
        return longest


def _borders(stop: str) -> list[int]:
    """For each prefix of `stop`, the length of its longest proper prefix that is also its suffix."""
    borders = [0] * len(stop)
    length = 0
    for i in range(1, len(stop)):
        while length and stop[i] != stop[length]:
            length = borders[length - 1]
        length += stop[i] == stop[length]
        borders[i] = length
    return borders
