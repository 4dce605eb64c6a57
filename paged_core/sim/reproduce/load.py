"""Loads: the requests of a trace, by the name of their lengths. Two rates see the same requests, closer together."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from paged_core.workload.arrivals import POISSON, arrival_times
from paged_core.workload.lengths import alpaca, arrivals_of, constant, sharegpt
from paged_core.workload.traces import Arrival

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.random import Generator
    from numpy.typing import NDArray

    from paged_core.workload.lengths import Lengths

PREFIXES: Mapping[str, int] = {"translation-1": 80, "translation-5": 341}
"""Tokens of instruction and examples before every sentence, by the number of examples."""
EQUAL: Mapping[str, tuple[int, int]] = {"equal-512": (480, 32), "equal-513": (480, 33)}
"""Loads without spread: all prompts and outputs alike, one token below and above a power of two in sum."""
_DRAWN = 1 << 16
"""Requests drawn whatever the rate: a shorter trace is the beginning of a longer one."""


def arrivals(lengths: str, rate: float, seconds: float, seed: int) -> list[Arrival]:
    """A Poisson process of `rate` requests a second, for `seconds`. ValueError for more requests than are drawn."""
    times = arrival_times(_DRAWN, rate, POISSON, np.random.default_rng([seed, 0]))
    if times[-1] < seconds:
        raise ValueError(f"{rate:g} requests/s for {seconds:g} s are more than {_DRAWN:,} requests")
    count = int(np.searchsorted(times, seconds))
    random = np.random.default_rng([seed, 1])
    if lengths in PREFIXES:
        return _translations(PREFIXES[lengths], times[:count], random)
    drawn = _lengths(lengths, random)
    return arrivals_of(replace(drawn, pairs=drawn.pairs[:count]), times[:count])


def _lengths(name: str, random: Generator) -> Lengths:
    if name in EQUAL:
        return constant(_DRAWN, *EQUAL[name])
    return {"sharegpt": sharegpt, "alpaca": alpaca}[name](_DRAWN, random)


def _translations(prefix: int, times: NDArray[np.float64], random: Generator) -> list[Arrival]:
    """English sentences of 26 tokens on average behind a common prefix, answered by half as many tokens again.

    The mean is that of the news tests of the shared task, the spread (a coefficient of variation of 0.55) what
    sentences of 4 to 60 words have; German words take more tokens of an English vocabulary.
    """
    spread = np.sqrt(np.log(1 + 0.55**2))
    sentence = np.clip(np.rint(random.lognormal(np.log(26) - spread**2 / 2, spread, _DRAWN)), 4, 120).astype(int)
    answer = np.maximum(1, np.rint(1.5 * sentence * random.lognormal(-0.02, 0.2, _DRAWN))).astype(int)
    made = []
    for i, at_s in enumerate(times.tolist()):
        own = range(1 + 32 * i, 1 + 32 * i + -(-int(sentence[i]) // prefix))
        made.append(Arrival(at_s, prefix + int(sentence[i]), int(answer[i]), "", (0, *own), prefix))
    return made
