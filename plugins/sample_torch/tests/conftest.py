"""A sampler with a short way to start rows and to sample, and a plain oracle of the whole order of operations."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from paged_sample_torch.sampler import TorchSampler
from paged_sample_torch.uniform import stream_key, uniforms

from paged_core.api.batch import RowStart
from paged_core.api.params import SamplingParams
from paged_core.api.sampler import SamplerNeed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from paged_core.api.sampler import Samples

EOS = 7


def int32(values: Sequence[int]) -> np.ndarray:
    return np.array(list(values), dtype=np.int32)


class Bench:
    """One sampler. `start(row, prompt=..., output=..., **params)`, then `sample({row: logits})`."""

    def __init__(self, vocab_size: int, eos: Sequence[int] = (), device: str = "cpu") -> None:
        self.sampler = TorchSampler(SamplerNeed(device, vocab_size, 64, tuple(eos)))
        self.length: dict[int, int] = {}

    def start(
        self,
        row: int,
        prompt: Sequence[int] = (0,),
        output: Sequence[int] = (),
        seed: int = 0,
        branch: int = 0,
        bad_words_token_ids: Sequence[Sequence[int]] = (),
        **params: Any,
    ) -> None:
        sampling = SamplingParams(**params)
        sampling.bad_words_token_ids = [list(words) for words in bad_words_token_ids]
        self.sampler.start(RowStart(row, sampling, seed, branch, int32(prompt), int32(output)))
        self.length[row] = len(prompt) + len(output)

    def sample(self, logits: dict[int, Any], candidates: dict[int, int] | None = None) -> Samples:
        """Sample the rows in the order given; each row's next position follows from what it has."""
        rows = list(logits)
        table = torch.stack([torch.as_tensor(logits[row], dtype=torch.float32) for row in rows])
        before = table.clone()
        wanted = None if candidates is None else int32([candidates.get(row, 0) for row in rows])
        result = self.sampler.sample(table, int32(rows), int32([self.length[row] for row in rows]), wanted)
        assert torch.equal(before.nan_to_num(nan=123.0), table.nan_to_num(nan=123.0)), "logits were changed"
        for i, row in enumerate(rows):
            self.length[row] += i not in result.failed
        return result

    def run(self, row: int, logits: Any, steps: int) -> list[int]:
        """`steps` tokens of one row from the same logits."""
        return [int(self.sample({row: logits}).tokens[0]) for _ in range(steps)]


def oracle(
    logits: Any, params: SamplingParams, seed: int, branch: int, prompt: Sequence[int], output: Sequence[int], eos: Any
) -> int | None:
    """The order of operations of the contract, token by token in plain Python; None when nothing is left."""
    x = [np.float32(value) for value in logits]
    vocab = range(len(x))
    if params.allowed_token_ids is not None:
        x = [x[t] if t in params.allowed_token_ids else np.float32(-np.inf) for t in vocab]
    for words in params.bad_words_token_ids:
        before = list(words[:-1])
        if len(output) >= len(before) and list(output)[len(output) - len(before) :] == before:
            x[words[-1]] = np.float32(-np.inf)
    if len(output) < params.min_tokens:
        for token in [*eos, *params.stop_token_ids]:
            x[token] = np.float32(-np.inf)
    for token, value in (params.logit_bias or {}).items():
        x[token] += np.float32(value)
    for token in set(prompt) | set(output):
        penalty = np.float32(params.repetition_penalty)
        x[token] = x[token] / penalty if x[token] > 0 else x[token] * penalty
    for token in set(output):
        x[token] -= np.float32(params.frequency_penalty) * np.float32(list(output).count(token))
        x[token] -= np.float32(params.presence_penalty)
    best = max(x)
    if best == -np.inf:
        return None
    if params.temperature < 1e-5:
        return x.index(best)
    z = [(float(value) - float(best)) / params.temperature for value in x]
    weight = [math.floor(float(np.exp(value)) * 2.0**40) for value in z]
    alive = [t for t in vocab if params.min_p == 0 or z[t] >= float(np.log(params.min_p))]
    if 0 < params.top_k < len(x):
        ranked = sorted((z[t] for t in vocab), reverse=True)
        alive = [t for t in alive if z[t] >= ranked[params.top_k - 1]]
    if params.top_p < 1:
        goal, kept = params.top_p * sum(weight[t] for t in alive), 0
        for token in sorted(alive, key=lambda t: -z[t]):
            last = z[token]
            kept += weight[token]
            if kept >= goal:
                break
        alive = [t for t in alive if z[t] >= last]
    u = uniforms(np.array([stream_key(seed, branch)], dtype=np.uint64), int32([len(prompt) + len(output)]))[0]
    target = min(int(float(u) * sum(weight[t] for t in alive)), sum(weight[t] for t in alive) - 1)
    for token in alive:
        target -= weight[token]
        if target < 0:
            return token
    raise AssertionError("the weights do not add up")


@pytest.fixture(scope="session")
def bench() -> Callable[..., Bench]:
    return Bench


@pytest.fixture(scope="session")
def plain_oracle() -> Callable[..., int | None]:
    return oracle
