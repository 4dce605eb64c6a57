"""The LogitsProcessors of the running rows: forked, told of every token, applied by class; one that raises fails alone.

Every row has its own forks in the order of its parameters. A step applies all first processors, then all second ones,
and so on, each turn grouped by class: a vectorised class sees its rows together and no row's order changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray
    from torch import Tensor

    from paged_core.api.batch import RowStart
    from paged_core.api.logits import LogitsProcessor

MAX_FORCED = 32
"""Forced tokens taken at a time; the next draw brings the rest. A step must be able to compute them."""


class RowProcessors:
    """Forks by row, and the reasons of rows whose processors are of no use any more."""

    def __init__(self, max_rows: int) -> None:
        self.active = np.zeros(max_rows, dtype=bool)
        self._forks: dict[int, list[LogitsProcessor]] = {}
        self._jumping: set[int] = set()
        self._broken: dict[int, str] = {}

    def start(self, start: RowStart) -> None:
        """Take a fork of each template of the row and tell it the output so far. What fails is told by `apply`."""
        row, templates = start.row, start.params.logits_processors
        self.end(row)
        if not templates:
            return
        self.active[row] = True
        if start.params.takes_forced:
            self._jumping.add(row)
        forks = self._forks[row] = []
        doing = templates[0]
        try:
            for doing in templates:
                forks.append(doing.fork())
                if len(start.output):
                    forks[-1].accept(start.output.tolist())
        except Exception as error:  # whatever a caller's object raises is its own request's failure
            self._broken[row] = _reason(doing, "starting", error)

    def end(self, row: int) -> None:
        """Forget `row`."""
        if self.active[row]:
            self.active[row] = False
            del self._forks[row]
            self._jumping.discard(row)
            self._broken.pop(row, None)

    def names(self, row: int) -> str:
        """The classes of a row's processors."""
        return ", ".join(type(fork).__name__ for fork in self._forks[row])

    def apply(
        self, work: Tensor, draws: NDArray[np.int64], rows: NDArray[np.int32], raw: Callable[[int], Tensor]
    ) -> dict[int, str]:
        """Change `work[draws]` [some, vocab] float32 in place; `rows[i]` owns draw `draws[i]`, whose logits `raw(i)`
        gives as they were. Returns draw -> reason for those that failed."""
        owners = dict(zip(draws.tolist(), rows.tolist(), strict=True))
        failed = {draw: self._broken[row] for draw, row in owners.items() if row in self._broken}
        sound = {draw: row for draw, row in owners.items() if draw not in failed}
        try:
            self._apply_together(work, sound)
        except Exception:
            for i, draw in enumerate(draws.tolist()):
                if draw in sound:
                    work[draw] = raw(i)
                    reason = self._apply_alone(work, draw, sound[draw])
                    if reason:
                        failed[draw] = reason
        return failed

    def accept(self, row: int, token: int) -> str:
        """Tell the row's processors of its new token; why that failed, or ""."""
        for fork in self._forks[row]:
            try:
                fork.accept([token])
            except Exception as error:
                self._broken[row] = _reason(fork, f"taking token {token}", error)
                return self._broken[row]
        return ""

    def forced(self, row: int) -> tuple[list[int], str]:
        """Tokens that follow without a draw, now accepted; and why that failed, or ""."""
        if row not in self._jumping:
            return [], ""
        (fork,) = self._forks[row]
        try:
            tokens = list(fork.forced())[:MAX_FORCED]
            if tokens:
                fork.accept(tokens)
        except Exception as error:
            self._broken[row] = _reason(fork, "taking forced tokens", error)
            return [], self._broken[row]
        return tokens, ""

    def _apply_together(self, work: Tensor, sound: dict[int, int]) -> None:
        for turn in range(max((len(self._forks[row]) for row in sound.values()), default=0)):
            groups: dict[type[LogitsProcessor], tuple[list[LogitsProcessor], list[int]]] = {}
            for draw, row in sound.items():
                forks = self._forks[row]
                if turn < len(forks):
                    members, draws = groups.setdefault(type(forks[turn]), ([], []))
                    members.append(forks[turn])
                    draws.append(draw)
            for kind, (members, draws) in groups.items():
                kind.apply_rows(members, work, draws)

    def _apply_alone(self, work: Tensor, draw: int, row: int) -> str:
        for fork in self._forks[row]:
            try:
                type(fork).apply_rows([fork], work, [draw])
            except Exception as error:
                return _reason(fork, "changing the logits", error)
        return ""


def _reason(processor: LogitsProcessor, doing: str, error: Exception) -> str:
    said = str(error).strip().splitlines()
    what = f"{type(error).__name__}: {said[0]}" if said else type(error).__name__
    return f"the logits processor {type(processor).__name__} failed while {doing}: {what}"
