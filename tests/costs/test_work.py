"""The work of a step and of a model, counted by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from paged_core.api.batch import RowStart, StepPlan
from paged_core.api.model import MoeSpec
from paged_core.api.params import SamplingParams
from paged_core.costs.models import MODELS
from paged_core.costs.work import StepWork, model_work, work_of
from paged_core.model.weights import expected_shapes, num_parameters


def plan(*sequences: tuple[int, int], draws: int) -> StepPlan:
    """Sequences as (tokens computed before, tokens computed now)."""

    def ints(values: object) -> np.ndarray:
        return np.array(values, dtype=np.int32)

    counts = [now for _, now in sequences]
    positions = [before + i for before, now in sequences for i in range(now)]
    ends = [before + now for before, now in sequences]
    rows = ints(range(len(sequences)))
    nothing = ints([0] * draws)
    return StepPlan(
        0, ints(positions), ints(positions), ints(np.cumsum([0, *counts])), rows, ints(ends), *[nothing] * 3, rows
    )


def test_decodes_alone() -> None:
    assert work_of(plan((9, 1), (19, 1), draws=2)) == StepWork(num_decodes=2, decode_context=30, num_draws=2)


def test_prompts_whole_in_chunks_and_beside_decodes() -> None:
    """A decode of 10, a whole prompt of 6, a chunk of 4 from 16 on, and a prompt of one token, which is no decode."""
    work = work_of(plan((9, 1), (0, 6), (16, 4), (0, 1), draws=3))
    assert work == StepWork(
        prefill_tokens=11,
        prefill_squares=36 + (400 - 256) + 1,
        prefill_context=6 + 20 + 1,
        num_prefills=3,
        num_decodes=1,
        decode_context=10,
        num_draws=3,
    )
    assert work.mixed
    assert work.num_tokens == 12


def test_a_lone_prompt_of_one_token_is_a_prefill() -> None:
    nothing = np.zeros(0, dtype=np.int32)
    begins = replace(plan((0, 1), draws=1), started=[RowStart(0, SamplingParams(), 0, 0, nothing, nothing)])
    assert work_of(begins) == StepWork(1, 1, 1, 1, num_draws=1)


def test_a_step_of_nothing_is_no_work() -> None:
    assert work_of(plan(draws=0)) == StepWork()


def test_long_contexts_do_not_overflow() -> None:
    assert work_of(plan((0, 60_000), draws=0)).prefill_squares == 3_600_000_000


def test_parts_of_a_mixed_step() -> None:
    work = StepWork(11, 181, 27, 3, 2, 30, 4)
    assert work.without_decodes() == StepWork(11, 181, 27, 3, num_draws=2)
    assert work.without_prefills() == StepWork(num_decodes=2, decode_context=30, num_draws=2)


@pytest.mark.parametrize("name", MODELS)
def test_matrices_are_those_of_the_real_decoder(name: str) -> None:
    """Against the shapes that the decoder loads, norms and biases left out."""
    spec = MODELS[name]
    shapes = {key: math.prod(shape) for key, shape in expected_shapes(spec).items() if len(shape) == 2}
    work = model_work(spec)
    assert work.layer_elements == sum(size for key, size in shapes.items() if key.startswith("layers."))
    assert work.stored_elements == sum(shapes.values())
    assert work.stored_elements == pytest.approx(num_parameters(spec), rel=0.02)
    assert work.token_ops == 2 * work.layer_elements


@pytest.mark.parametrize(
    ("name", "token_bytes"),
    [("opt-13b", 819_200), ("opt-66b", 2_359_296), ("opt-175b", 4_718_592), ("llama-13b", 819_200)],
)
def test_a_tokens_keys_and_values_are_as_large_as_the_paper_says(name: str, token_bytes: int) -> None:
    assert 2 * model_work(MODELS[name]).kv_elements == token_bytes


def test_of_many_experts_a_token_uses_few_and_a_batch_most() -> None:
    spec = replace(MODELS["tiny"], moe=MoeSpec(num_experts=8, num_experts_per_token=2, intermediate_size=128))
    work = model_work(spec)
    experts = 2 * 8 * 3 * 64 * 128
    assert work.expert_elements == experts
    assert work.token_ops == 2 * (work.layer_elements - experts * 3 / 4)
    assert work.read_elements(1) == pytest.approx(work.layer_elements - experts * 3 / 4)
    assert work.read_elements(2) == pytest.approx(work.layer_elements - experts * 9 / 16)
    assert work.read_elements(100) == pytest.approx(work.layer_elements, rel=1e-6)
