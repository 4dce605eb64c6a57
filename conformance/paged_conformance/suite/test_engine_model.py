"""The engine on a small random model: greedy float32 tokens equal plain mathematics in every setting (law 15), and
seeded draws belong to the request alone (law 16)."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from paged_conformance.benches.model import SMALL, answers, expected, write_small_llama
from paged_conformance.benches.traffic import preempting_by
from paged_conformance.cases import CACHE_TYPES, DRIFTS, ELEMENT_TYPES, ElementType
from paged_conformance.marks import layer, requires
from paged_conformance.oracles.llama import PlainLlama
from paged_core.api.attention import AttentionNeed
from paged_core.api.params import SamplingParams

if TYPE_CHECKING:
    from pathlib import Path

    from paged_conformance.candidate import Candidate
    from paged_conformance.oracles.llama import Continuation
    from paged_core.api.output import RequestOutput

pytestmark = layer("engine")

PROMPTS = [
    list(b"a"),
    list(b"the other one"),
    list(b"in the beginning there was nothing and"),
    list(b"xyz" * 9),
    list(b"the other one again"),
]
NUM_TOKENS = 14
GREEDY = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True, detokenize=False)
MODES = (None, "recompute", "swap")
"""How requests are preempted; None: the pool is ample and nobody is."""


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model on disk."""
    return write_small_llama(tmp_path_factory.mktemp("small-llama"))


@pytest.fixture(scope="session")
def reference(folder: Path) -> list[Continuation]:
    """What plain mathematics continues each prompt with; none of its choices is close."""
    return expected(folder, PROMPTS, NUM_TOKENS)


def sizes(candidate: Candidate, mode: str | None, block_size: int, num_slots: int = 80) -> dict[str, Any]:
    """An ample pool, or one of `num_slots` and the registry's best plugin for `mode`."""
    slots = 512 if mode is None else num_slots
    preempt = "auto" if mode is None else preempting_by(candidate.plugins, mode)
    num_blocks = max(3, slots // block_size)
    return {"block_size": block_size, "num_blocks": num_blocks, "host_memory": "4MiB", "preempt": preempt}


def assert_equal_tokens(candidate: Candidate, folder: Path, reference: list[Continuation], **settings: Any) -> int:
    """One engine, all prompts together; returns how many were preempted."""
    outputs, stats = answers(
        candidate.plugins, folder, PROMPTS, [GREEDY] * len(PROMPTS), device=candidate.device, **settings
    )
    for prompt, output, want in zip(PROMPTS, outputs, reference, strict=True):
        got = output.outputs[0].token_ids
        assert got == want.tokens, f"law 15: {settings}: prompt of {len(prompt)} gives {got}, not {want.tokens}"
    return sum(stats.preemptions.values())


@requires("fp32")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("budget", [None, 16])
def test_this_backend_gives_the_tokens_of_plain_mathematics(
    attn: Candidate, folder: Path, reference: list[Continuation], mode: str | None, budget: int | None
) -> None:
    num_preempted = 0
    for block_size in (16, 32) if attn.quick else (1, 4, 16, 32):
        choice = {"attn": attn.name, "max_num_batched_tokens": budget}
        if block_size < 16 and not fits(attn, block_size):
            continue
        num_preempted += assert_equal_tokens(attn, folder, reference, **sizes(attn, mode, block_size), **choice)
    assert (num_preempted > 0) == (mode is not None), f"{num_preempted} preemptions, wanted by {mode}"


@pytest.mark.parametrize("element", CACHE_TYPES[1:], ids=lambda element: element.capability)
def test_other_types_drift_no_further_than_documented(attn: Candidate, folder: Path, element: ElementType) -> None:
    """Log-probabilities of what the engine writes, prefills and decodes, against plain mathematics on the same text."""
    dtypes = {"dtype": element.dtype if element in ELEMENT_TYPES else "bfloat16", "kv_dtype": element.dtype}
    if not attn.has(element.capability):
        assert not attn.fit(AttentionNeed(attn.device, dtypes["dtype"], element.dtype, 4, 2, 64, 16)).ok
        return
    wanted = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True, detokenize=False, logprobs=0)
    choice = {"attn": attn.name, "device": attn.device, "max_num_batched_tokens": 16, **sizes(attn, None, 16), **dtypes}
    outputs, _ = answers(attn.plugins, folder, PROMPTS, [wanted] * len(PROMPTS), **choice)
    errors = np.array(
        [error for prompt, out in zip(PROMPTS, outputs, strict=True) for error in off(folder, prompt, out)]
    )
    mean, most = DRIFTS[element.capability]
    assert errors.mean() <= mean, f"{element.dtype}: log-probabilities are off by {errors.mean():.4f} on average"
    assert errors.max() <= most, f"{element.dtype}: a log-probability is off by {errors.max():.4f}"


def off(folder: Path, prompt: list[int], output: RequestOutput) -> list[float]:
    """How far each log-probability of an answer is from that of plain mathematics after the same tokens."""
    (branch,) = output.outputs
    exact = PlainLlama(folder, SMALL).logits([*prompt, *branch.token_ids]).log_softmax(-1)[len(prompt) - 1 :]
    assert branch.logprobs is not None
    pairs = zip(branch.token_ids, branch.logprobs, exact, strict=False)
    return [abs(said[token].logprob - float(row[token])) for token, said, row in pairs]


def fits(attn: Candidate, block_size: int) -> bool:
    """Whether the backend takes blocks of this size; 16 and 32 are mandatory."""
    return attn.fit(AttentionNeed(attn.device, "float32", "float32", 4, 2, 64, block_size)).ok


@pytest.mark.parametrize("mode", MODES)
def test_this_sampler_gives_the_tokens_of_plain_mathematics(
    sampler: Candidate, folder: Path, reference: list[Continuation], mode: str | None
) -> None:
    assert_equal_tokens(sampler, folder, reference, **sizes(sampler, mode, 4), sampler=sampler.name)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("budget", [None, 16])
def test_this_executor_gives_the_tokens_of_plain_mathematics(
    executor: Candidate, folder: Path, reference: list[Continuation], mode: str | None, budget: int | None
) -> None:
    choice = {"executor": executor.name, "max_num_batched_tokens": budget, **sizes(executor, mode, 4)}
    if executor.has("simulated"):
        assert_as_many_tokens(executor, folder, **choice)
        return
    assert_equal_tokens(executor, folder, reference, **choice)


def assert_as_many_tokens(candidate: Candidate, folder: Path, **settings: Any) -> None:
    """A simulated executor's tokens mean nothing; that they come, and how many, does."""
    outputs, _ = answers(
        candidate.plugins, folder, PROMPTS, [GREEDY] * len(PROMPTS), device=candidate.device, **settings
    )
    assert [len(output.outputs[0].token_ids) for output in outputs] == [NUM_TOKENS] * len(PROMPTS)


@pytest.mark.parametrize("mode", MODES)
def test_this_combination_gives_the_tokens_of_plain_mathematics(
    attn: Candidate,
    sampler: Candidate,
    executor: Candidate,
    folder: Path,
    reference: list[Continuation],
    mode: str | None,
) -> None:
    names = {"attn": attn.name, "sampler": sampler.name, "executor": executor.name}
    if executor.has("simulated"):
        assert_as_many_tokens(attn, folder, **sizes(attn, mode, 16), **names)
        return
    assert_equal_tokens(attn, folder, reference, **sizes(attn, mode, 16), **names)


@requires("seed")
def test_seeded_draws_belong_to_the_request_alone(sampler: Candidate, folder: Path) -> None:
    """Law 16: alone, among neighbours in any order, and preempted in both ways."""
    drawn: dict[str, Any] = {"ignore_eos": True, "max_tokens": 12, "detokenize": False}
    wanted = [
        SamplingParams(temperature=1.2, seed=7, **drawn),
        SamplingParams(temperature=0.8, seed=8, **drawn),
        SamplingParams(temperature=1.0, seed=9, **drawn),
        SamplingParams(temperature=0, **drawn),
    ]

    def run(order: tuple[int, ...], **settings: Any) -> tuple[list[list[int]], int]:
        prompts, params = [PROMPTS[1 + i] for i in order], [wanted[i] for i in order]
        settings = {"sampler": sampler.name, "device": sampler.device, **sizes(sampler, None, 4), **settings}
        outputs, stats = answers(sampler.plugins, folder, prompts, params, **settings)
        return [output.outputs[0].token_ids for output in outputs], sum(stats.preemptions.values())

    alone = [run((i,))[0][0] for i in range(4)]
    for order in list(itertools.permutations(range(4)))[:: 8 if sampler.quick else 3]:
        assert run(order)[0] == [alone[i] for i in order], f"law 16: in the order {order}"
    for mode in ("recompute", "swap"):
        got, num_preempted = run((0, 1, 2, 3), **sizes(sampler, mode, 4, num_slots=64))
        assert num_preempted > 0, "the pool was meant to be short"
        assert got == alone, f"law 16: preempted by {mode}"
