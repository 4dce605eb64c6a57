"""Lengths: how long prompts and answers are. Generators fitted to the moments of the paper's traces, or a file.

             prompt                                      output                   means drawn     of the paper
sharegpt     lognormal(4.55, 1.30), only 4 ... 1,024     gamma(1.32, 258.7)       160.5 / 338.0   161.31 / 337.99
alpaca       lognormal(2.88, 0.40)                       gamma(0.92, 63.5)        19.3 / 58.3     19.31 / 58.45

Rounded to whole tokens, at least one; pairs of more than 2,048 tokens are drawn again. The paper gives the means
alone. The spread of ShareGPT's outputs (standard deviation 288) was solved from its memory figures, which leaves a
scale between 258 and 268 open; 258.7 is the one that gives the mean output. Nothing here may be tuned to what a
simulation finds.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from paged_core.errors import ConfigError
from paged_core.workload.traces import Arrival

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from numpy.random import Generator
    from numpy.typing import NDArray

MOST_TOKENS = 2048
"""Prompt and output together: the context of OPT, at which the paper's traces are cut."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Pairs of prompt and output tokens, int [requests, 2], under a name that says where they are from."""

    name: str
    pairs: NDArray[np.int64]

    @property
    def means(self) -> tuple[float, float]:
        """Mean prompt and mean output length."""
        prompt, output = self.pairs.mean(axis=0)
        return float(prompt), float(output)


def sharegpt(count: int, random: Generator) -> Lengths:
    """`count` pairs like those of the paper's ShareGPT: conversations, of very uneven lengths."""

    def draw(many: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return random.lognormal(4.55, 1.30, many), random.gamma(1.32, 258.7, many)

    return Lengths("ShareGPT-like", _cut(draw, count, (4, 1024)))


def alpaca(count: int, random: Generator) -> Lengths:
    """`count` pairs like those of the paper's Alpaca: short instructions with short answers."""

    def draw(many: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return random.lognormal(2.88, 0.40, many), random.gamma(0.92, 63.5, many)

    return Lengths("Alpaca-like", _cut(draw, count, (1, MOST_TOKENS)))


def constant(count: int, prompt_tokens: int, output_tokens: int) -> Lengths:
    """The same pair `count` times: what a result looks like without any spread of lengths."""
    return Lengths("fixed", np.tile(np.array((prompt_tokens, output_tokens), dtype=np.int64), (count, 1)))


def arrivals_of(lengths: Lengths, times_s: Sequence[float] | NDArray[np.float64]) -> list[Arrival]:
    """One request a time: the i-th pair arrives at the i-th of `times_s`, seconds (`arrival_times` draws them).

    ValueError when there are more of the ones than of the others.
    """
    rows = zip(lengths.pairs.tolist(), np.asarray(times_s, dtype=np.float64).tolist(), strict=True)
    return [Arrival(at_s, prompt, output) for (prompt, output), at_s in rows]


def read_lengths(path: Path, name: str, most: int = MOST_TOKENS) -> Lengths:
    """Columns `prompt_tokens` and `output_tokens` of a CSV file; rows of more than `most` tokens are left out.

    ConfigError when the file is missing or has no such columns.
    """
    try:
        with path.open(newline="") as lines:
            pairs = [(int(row["prompt_tokens"]), int(row["output_tokens"])) for row in csv.DictReader(lines)]
    except (OSError, KeyError, ValueError) as error:
        raise ConfigError(f"{path} is no file of prompt_tokens and output_tokens: {error}") from error
    kept = [pair for pair in pairs if min(pair) > 0 and sum(pair) <= most]
    if not kept:
        raise ConfigError(f"{path} holds no request of at most {most} tokens")
    return Lengths(name, np.array(kept, dtype=np.int64))


def _cut(
    draw: Callable[[int], tuple[NDArray[np.float64], NDArray[np.float64]]], count: int, prompts: tuple[int, int]
) -> NDArray[np.int64]:
    """`count` rounded pairs, int64 [count, 2], of those drawn whose prompt lies within `prompts`, ends included."""
    pairs = np.zeros((0, 2), dtype=np.int64)
    while len(pairs) < count:
        prompt, output = (np.rint(one).astype(np.int64) for one in draw(count))
        drawn = np.stack([prompt, np.maximum(output, 1)], axis=1)
        fits = (drawn[:, 0] >= prompts[0]) & (drawn[:, 0] <= prompts[1]) & (drawn.sum(axis=1) <= MOST_TOKENS)
        pairs = np.concatenate([pairs, drawn[fits]])
    return pairs[:count]
