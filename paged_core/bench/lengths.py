"""Lengths: how long prompts and answers are. Generators fitted to the moments of the paper's traces, or a file."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from paged_core.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.random import Generator
    from numpy.typing import NDArray


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


def sharegpt_like(count: int, random: Generator) -> Lengths:
    """Means 161 / 344 as the paper's ShareGPT (161 / 338), 4 to 1,024 prompt tokens, at most 2,048 in all.

    Prompts are lognormal, outputs gamma; the output's variance was solved from the paper's own memory figures.
    """
    pairs = np.zeros((0, 2), dtype=np.int64)
    while len(pairs) < count:
        prompt = random.lognormal(4.55, 1.30, count).astype(np.int64)
        output = random.gamma(1.32, 263.0, count).astype(np.int64)
        keep = (prompt >= 4) & (prompt <= 1024) & (output >= 4) & (prompt + output <= 2048)
        pairs = np.concatenate([pairs, np.stack([prompt, output], axis=1)[keep]])
    return Lengths("ShareGPT-like", pairs[:count])


def alpaca_like(count: int, random: Generator) -> Lengths:
    """Means 19 / 58 as the paper's Alpaca (19.3 / 58.5)."""
    prompt = np.rint(random.lognormal(2.88, 0.40, count)).astype(np.int64)
    output = np.rint(random.gamma(0.92, 63.5, count)).astype(np.int64)
    return Lengths("Alpaca-like", np.maximum(np.stack([prompt, output], axis=1), 1))


def read_lengths(path: Path, name: str, most: int = 2048) -> Lengths:
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
