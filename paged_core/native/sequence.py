"""Sequence: many native functions one after the other in one call, all of them on all threads of a team.

Every function is void(int64*) and shares its work among whoever calls it by claiming items from counters; it returns
when nothing is left to claim. Between two functions nobody waits for threads, only for claimed items: a thread that the
system has taken off its core in between holds nobody up, and finds, when it is back, that the work is done.

    enter += 1 -> function -> leave += 1 -> wait until leave == enter         (per function, per worker)

Whoever sees both equal after it found nothing to claim knows that all items are finished: their claimers entered before
they claimed and had not left while they worked.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numba import carray

from paged_core.native.elements import call_native, claim, cycles, kernel, observe, pause, pointer, yield_core

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from paged_core.native.team import Team

SYNC, NUM_CALLS, FUNCTIONS, PARAMETERS, STAMPS, YIELD = range(6)
SYNC_WORDS = 8  # int64 per function: one cache line
_POLLS = 2000  # before a waiting thread offers its core to others: about 40 us

EVERYTHING = 1 << 40


@kernel
def _wait(entered: Any, left: Any, give_way: Any) -> Any:
    """Until as many have left as entered."""
    polls = 0
    while observe(left) != observe(entered):
        polls += 1
        if polls < _POLLS:
            pause()
        else:
            yield_core(give_way)


def sequence_function(sources: str) -> Any:
    """Run the functions. The first worker leaves a time stamp before the first and after every one, if STAMPS is set.

    `sources` is not used; being in the closure it is part of numba's cache key.
    """

    def sequence(parameters: Any) -> None:
        sources  # noqa: B018
        p = carray(parameters, (6,), np.int64)
        functions = carray(pointer(p[FUNCTIONS]), (EVERYTHING,), np.int64)
        arguments = carray(pointer(p[PARAMETERS]), (EVERYTHING,), np.int64)
        stamps = carray(pointer(p[STAMPS]), (EVERYTHING,), np.int64)
        is_first = False
        for i in range(p[NUM_CALLS]):
            entered = p[SYNC] + i * SYNC_WORDS * 8
            turn = claim(entered, 1)
            if i == 0:
                is_first = turn == 0 and p[STAMPS] != 0
                if is_first:
                    stamps[0] = cycles()
            call_native(functions[i], arguments[i])
            claim(entered + 8, 1)
            _wait(entered, entered + 8, p[YIELD])
            if is_first:
                stamps[i + 1] = cycles()

    return sequence


class Sequence:
    """Runs sequences on a team. Used by one thread at a time."""

    def __init__(self, team: Team) -> None:
        import ctypes

        from paged_core.native.team import native_function

        self._team = team
        self._compiled = _compiled()
        self._function = native_function(self._compiled.address)
        self._sync = np.zeros(0, dtype=np.int64)
        self.stamps: NDArray[np.int64] | None = None
        give_way = getattr(ctypes.CDLL(None), "sched_yield", None)
        self._parameters = np.zeros(6, dtype=np.int64)
        if give_way is not None:
            self._parameters[YIELD] = ctypes.cast(give_way, ctypes.c_void_p).value or 0

    def run(self, functions: NDArray[np.int64], arguments: NDArray[np.int64]) -> None:
        """Call functions[i](arguments[i]), addresses both, in order.

        With `stamps`, an array of one number more than there are functions, processor cycles are entered.
        """
        num_calls = len(functions)
        if len(self._sync) < num_calls * SYNC_WORDS:
            self._sync = np.zeros(num_calls * SYNC_WORDS, dtype=np.int64)
        self._sync[:] = 0
        p = self._parameters
        p[:YIELD] = (
            self._sync.ctypes.data,
            num_calls,
            functions.ctypes.data,
            arguments.ctypes.data,
            0 if self.stamps is None else self.stamps.ctypes.data,
        )
        self._team.run(self._function, int(p.ctypes.data), self._team.num_threads)


@cache
def _compiled() -> Any:
    from paged_core.native.compile import compile_native, source_digest

    return compile_native(sequence_function(source_digest([])))
