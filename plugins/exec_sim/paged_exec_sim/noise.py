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


def numbers_at(seeds: Words, positions: NDArray[np.int32], count: int) -> NDArray[np.int32]:
    """int32 [draws] in [0, count): much of what `words_at` gives, for a third of the time."""
    words = (seeds ^ (positions.astype(np.uint64) * _GOLDEN)) * _FIRST
    numbers: NDArray[np.int32] = ((words >> np.uint64(32)) % np.uint64(count)).astype(np.int32)
    return numbers


def uniforms(words: Words, count: int) -> NDArray[np.float64]:
    """float64 [draws, count] in (0, 1), independent streams of every word."""
    streams = mixed(words[:, None] + np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN)
    return ((streams >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


MEDIAN_EXPONENT, SPREAD = 2.5, 0.73
"""Of the exponents of `log_probabilities`: a log-normal variable, fitted to 1,152 positions of greedy answers of
SmolLM2-135M-Instruct, whose best tokens have probabilities of 0.21, 0.62 and 1.00 at the 10th, 50th and 90th
percentile."""
_SUMMED = 64
"""Ranks whose weights are summed one by one; those behind are an integral."""


def log_probabilities(words: Words, count: int, num_tokens: int) -> NDArray[np.float32]:
    """float32 [draws, count]: of the best tokens among `num_tokens`, best first. Rank r weighs r ** -exponent (Zipf's
    law), with one exponent a draw: some positions have one likely token, others have many."""
    pair = uniforms(words, 2)
    normal = np.sqrt(-2 * np.log(pair[:, 0])) * np.cos(2 * np.pi * pair[:, 1])
    exponents = np.maximum(MEDIAN_EXPONENT * np.exp(SPREAD * normal), 1.01)[:, None]
    summed = min(_SUMMED, num_tokens)
    weights = np.arange(1, summed + 1, dtype=np.float64) ** -exponents
    tail = ((summed + 0.5) ** (1 - exponents) - (num_tokens + 0.5) ** (1 - exponents)) / (exponents - 1)
    total = np.log(weights.sum(axis=1, keepdims=True) + tail)
    logs: NDArray[np.float32] = (-exponents * np.log(np.arange(1, count + 1)) - total).astype(np.float32)
    return logs
