"""What a sampler must do, in plain numpy: the edits of a row's logits in the contract's order, and what may be drawn.

The oracle knows no generator: samplers are free to turn (seed, branch, position) into draws as they like. It says which
token a greedy row takes and which distribution a random row's draws follow.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from paged_core.api.params import SamplingParams

ONE_IN_A_MILLION = 4.753  # standard deviations


def edited(
    logits: NDArray[np.float32],
    params: SamplingParams,
    prompt: Sequence[int],
    output: Sequence[int],
    eos: Sequence[int] = (),
) -> NDArray[np.float64]:
    """Logits [vocab] after allowed tokens, bad words, min_tokens, bias and penalties; masked tokens are -inf."""
    values = logits.astype(np.float64)
    values[_masked(params, output, eos, len(values))] = -np.inf
    for token, bias in (params.logit_bias or {}).items():
        values[token] += bias
    for token in set(prompt) | set(output):
        repetition = params.repetition_penalty
        values[token] = values[token] / repetition if values[token] > 0 else values[token] * repetition
    for token in set(output):
        values[token] -= params.frequency_penalty * list(output).count(token) + params.presence_penalty
    return values


def distribution(values: NDArray[np.float64], params: SamplingParams) -> NDArray[np.float64]:
    """Probabilities [vocab] of a random row's draw from edited logits: temperature, min-p, top-k, top-p.

    Logits must be distinct: what happens to equals at a cut is the sampler's own business.
    """
    scaled = (values - values.max()) / params.temperature
    alive = np.exp(scaled) >= params.min_p
    if 0 < params.top_k < len(values):
        alive &= scaled >= np.sort(scaled)[-params.top_k]
    weights = np.where(alive, np.exp(scaled), 0.0)
    best_first = np.argsort(-weights)
    shares = weights[best_first] / weights.sum()
    reached_before = np.cumsum(shares) - shares
    weights[best_first[reached_before >= params.top_p]] = 0.0
    return np.asarray(weights / weights.sum(), dtype=np.float64)


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """Log-probabilities along the last axis, in float64."""
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)), dtype=np.float64)


def chi_square(counts: NDArray[np.int64], expected: NDArray[np.float64]) -> tuple[float, float]:
    """Pearson's statistic of draws against probabilities, and the bound that one honest run in a million exceeds.

    The bound is Wilson and Hilferty's approximation of the quantile. Tokens expected fewer than ten times are taken
    together.
    """
    wanted = counts.sum() * expected
    rare = wanted < 10
    drawn = np.append(counts[~rare], counts[rare].sum()).astype(np.float64)
    wanted = np.append(wanted[~rare], wanted[rare].sum())
    drawn, wanted = drawn[wanted > 0], wanted[wanted > 0]
    statistic = float(((drawn - wanted) ** 2 / wanted).sum())
    degrees = max(1, len(wanted) - 1)
    spread = 2 / (9 * degrees)
    return statistic, degrees * (1 - spread + ONE_IN_A_MILLION * math.sqrt(spread)) ** 3


def _masked(params: SamplingParams, output: Sequence[int], eos: Sequence[int], vocab_size: int) -> NDArray[np.bool_]:
    masked = np.zeros(vocab_size, dtype=bool)
    if params.allowed_token_ids is not None:
        masked[:] = True
        masked[params.allowed_token_ids] = False
    for words in params.bad_words_token_ids:
        before = list(words[:-1])
        if list(output)[len(output) - len(before) :] == before or not before:
            masked[words[-1]] = True
    if len(output) < params.min_tokens:
        masked[[*eos, *(params.stop_token_ids or ())]] = True
    return masked
