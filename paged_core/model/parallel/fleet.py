"""Fleet: the workers of a group as the engine's side sees them. Who fails, dies or hangs ends the whole group, within a
bound and with one line that names the first cause.

One rank's end makes others fail that wait for it. What they say (`Failure.is_echo`) is not the cause, so the fleet
listens a moment longer before it speaks.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paged_core import errors
from paged_core.api.batch import StepResult
from paged_core.errors import ConfigError, EngineDeadError, PagedError
from paged_core.model.parallel.message import ORDER, RESULT, kind_of, pack, read_result, unpack
from paged_core.model.parallel.orders import Failure, Said

if TYPE_CHECKING:
    from collections.abc import Mapping

    from paged_core.model.parallel.transport import Transport

_SETTLE_S = 2.0
"""After a first piece of bad news, so long for the cause and for what other ranks have to say."""
_ANSWER_S = 2.0
_WARM_STEPS = 16
_MEMORY = "lower --kv-memory, --max-num-batched-tokens or --max-num-seqs, or end what else uses the memory"


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds until a rank that does not answer counts as hanging: at start-up and in the first steps, in which kernels
    may be compiled, and in every later step. `grace_s`: for leaving at the end."""

    start_s: float = 600.0
    step_s: float = 60.0
    grace_s: float = 3.0


class WorkerError(EngineDeadError):
    """What a worker's process raised, with its traceback; the cause of the error that the engine sees."""


class Fleet:
    """Talks to all ranks over `transport`. Used by one thread. After the first error every call raises it again."""

    def __init__(self, transport: Transport, limits: Limits) -> None:
        self._transport, self._limits = transport, limits
        self._error: PagedError | None = None
        self._said: set[tuple[str, str]] = set()
        self._num_steps = 0

    def ask(self, order: object, doing: str) -> list[Any]:
        """Every rank's answer to an order, by rank. `doing`: what they are at, for errors: "while starting".

        Raises what the first failing rank raised if that is one of `paged_core.errors`, ConfigError where memory ran
        out, EngineDeadError for everything else.
        """
        limit = self._limits.start_s
        self._post(pack(ORDER, order), doing, limit)
        answers: dict[int, Any] = {}
        deadline = time.monotonic() + limit
        while len(answers) < self._transport.size:
            taken = self._take(deadline, doing, limit)
            # an interrupted step's result may come first, and belongs to nobody
            answers |= {rank: each for rank, each in taken.items() if not isinstance(each, StepResult)}
        return [answers[rank] for rank in range(self._transport.size)]

    def step(self, message: bytes, step: int) -> None:
        """Give every rank a step. Raises EngineDeadError."""
        self._post(message, f"in step {step}", self._limit)

    def result(self, step: int) -> StepResult:
        """Rank 0's result of the oldest step that has none yet, `step`. Raises EngineDeadError."""
        self._raise_again()
        doing = f"in step {step}"
        limit = self._limit
        deadline = time.monotonic() + limit
        while 0 not in (taken := self._take(deadline, doing, limit)):
            pass
        self._num_steps += 1
        result: StepResult = taken[0]
        return result

    def look(self) -> None:
        """Hear what workers say that have nothing to do. Raises EngineDeadError when one is gone."""
        self._raise_again()
        self._heed(self._sorted(time.monotonic())[1], "between two steps")

    def close(self) -> None:
        """End all workers. Idempotent."""
        if self._error is None:
            self._error = EngineDeadError("the executor was closed")
        self._transport.close(self._limits.grace_s)

    def processes(self) -> tuple[int, ...]:
        """Of workers on this machine."""
        return self._transport.processes()

    @property
    def is_alive(self) -> bool:
        """Whether it answers."""
        return self._error is None

    @property
    def _limit(self) -> float:
        return self._limits.step_s if self._num_steps >= _WARM_STEPS else self._limits.start_s

    def _raise_again(self) -> None:
        if self._error is not None:
            raise EngineDeadError(str(self._error)) from self._error

    def _post(self, message: bytes, doing: str, limit_s: float) -> None:
        self._raise_again()
        try:
            self._transport.post(message, limit_s)
        except TimeoutError:
            self._end(self._overdue(doing, limit_s))
        except BaseException:  # half of the ranks may have it: they can never meet again
            self._error = EngineDeadError(f"sending to the workers was interrupted {doing}")
            raise

    def _take(self, deadline: float, doing: str, limit_s: float) -> dict[int, Any]:
        """Answers and results that came in, by rank; log records are passed on. Raises when a rank is in trouble."""
        taken, troubles = self._sorted(deadline)
        self._heed(troubles, doing)
        if not taken and time.monotonic() >= deadline:
            self._end(self._overdue(doing, limit_s))
        return taken

    def _heed(self, troubles: dict[int, Failure | None], doing: str) -> None:
        """Raise if there are any, once it is clear what they come from."""
        if not troubles:
            return
        settled = time.monotonic() + _SETTLE_S
        while len(troubles) < self._transport.size and time.monotonic() < settled and not _is_told(troubles, doing):
            troubles |= {rank: each for rank, each in self._sorted(settled)[1].items() if rank not in troubles}
        self._end(self._told(troubles, doing))

    def _sorted(self, deadline: float) -> tuple[dict[int, Any], dict[int, Failure | None]]:
        """The next arrivals: good news, and bad news (None: the rank is gone)."""
        taken: dict[int, Any] = {}
        troubles: dict[int, Failure | None] = {}
        for rank, message in self._transport.wait(max(0.0, deadline - time.monotonic())):
            value = None if message is None else read_result(message) if kind_of(message) == RESULT else unpack(message)
            if isinstance(value, Said):
                self._pass_on(rank, value)
            elif value is None or isinstance(value, Failure):
                troubles.setdefault(rank, value)
            else:
                taken[rank] = value
        return taken, troubles

    def _pass_on(self, rank: int, said: Said) -> None:
        """What every rank says is logged once."""
        if rank and (said.logger, said.text) in self._said:
            return
        self._said.add((said.logger, said.text))
        text = said.text if rank == 0 else f"rank {rank}: {said.text}"
        logging.getLogger(said.logger).log(said.level, "%s", text)

    def _end(self, error: PagedError) -> None:
        """Nothing can go on: end all workers now, and raise `error`, now and ever after."""
        self._error = error
        self._transport.close(0.0)
        raise error

    def _told(self, troubles: Mapping[int, Failure | None], doing: str) -> PagedError:
        """The error for what went wrong."""
        rank = min(troubles, key=lambda rank: _severity(troubles[rank]))
        failure, name = troubles[rank], self._transport.name(rank)
        if failure is None:
            return EngineDeadError(f"{name} {self._transport.end(rank)} {doing}")
        cause = WorkerError(f"{name} {doing}\n{failure.trace}")
        same = [other for other, each in troubles.items() if each is not None and each.text == failure.text]
        who = "all ranks" if len(same) == self._transport.size > 1 else name
        if failure.no_memory:
            kind: type[PagedError] = EngineDeadError if "step" in doing else ConfigError
            error = kind(f"{who} ran out of memory {doing} ({failure.kind}: {failure.text}): {_MEMORY}")
        elif failure.is_paged and "step" not in doing:
            known = getattr(errors, failure.kind)
            error = known(failure.text if who == "all ranks" else f"{who}: {failure.text}")
        else:
            error = EngineDeadError(f"{who} failed {doing}: {failure.kind}: {failure.text}")
        error.__cause__ = cause
        return error

    def _overdue(self, doing: str, limit_s: float) -> EngineDeadError:
        """The error for a group that does not answer: who is stuck, as far as can be told."""
        places = self._transport.places(_ANSWER_S)
        silent = [rank for rank in range(self._transport.size) if rank not in places]
        if not silent:
            behind = min(places, key=lambda rank: (places[rank].step, places[rank].num_meetings))
            silent = [behind]
        names = " and ".join(map(self._transport.name, silent))
        return EngineDeadError(
            f"{names} {'is' if len(silent) == 1 else 'are'} stopped or stuck {doing}: nothing came for {limit_s:g} s; "
            "all workers were ended, start again"
        )


def _is_told(troubles: Mapping[int, Failure | None], doing: str) -> bool:
    """Whether the cause is among the troubles. At start-up the others' causes are waited for, too."""
    return "step" in doing and any(_severity(each) == 0 for each in troubles.values())


def _severity(failure: Failure | None) -> int:
    """0 for a cause, 1 for what follows from another rank's end."""
    return 1 if failure is not None and failure.is_echo else 0
