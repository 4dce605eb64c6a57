"""Noise: tokens and log-probabilities that depend on (seed, branch, position) alone, a batch at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Words = NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


def mixed(words: Words) -> Words:
    """The finaliser of SplitMix64: one bit changed changes half of the bits that come out."""
    words = (words ^ (words >> np.uint64(30))) * _FIRST
    words = (words ^ (words >> np.uint64(27))) * _SECOND
    return words ^ (words >> np.uint64(31))


def words_at(seeds: Words, positions: NDArray[np.int32]) -> Words:
    """uint64 [draws]: one word for each seed at its position."""
    return mixed(seeds + positions.astype(np.uint64) * _GOLDEN)


def uniforms(words: Words, count: int) -> NDArray[np.float64]:
    """float64 [draws, count] in (0, 1), independent streams of every word."""
    streams = mixed(words[:, None] + np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN)
    return ((streams >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
