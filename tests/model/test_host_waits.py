"""Between submit and collect the host reads nothing of the device: shown on torch's device without numbers."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from paged_sample_torch.sampler import TorchSampler

from paged_core.api.attention import Attention, KVLayout
from paged_core.api.batch import PromptRows, RowStart, StepPlan
from paged_core.api.model import MoeSpec, RopeSpec
from paged_core.api.params import SamplingParams
from paged_core.api.sampler import SamplerNeed
from paged_core.device.staging import BatchSizes, Staging
from paged_core.model.decoder import Decoder
from paged_core.model.device_runner import DeviceRunner
from paged_core.model.parallel.collective import TorchCollective
from paged_core.model.place import Place
from paged_core.model.spec import spec_from_hf
from paged_core.model.weights import expected_shapes
from paged_core.testing.meta import META, MetaAccelerator, would_wait
from paged_core.testing.tiny import CONFIG

ROWS, BLOCK = 8, 4
LLAMA = spec_from_hf(dict(CONFIG))
GEMMA = dataclasses.replace(
    LLAMA,
    norm_in_float32=True,
    norm_placement="sandwich",
    qk_norm=True,
    attention_softcap=50.0,
    logits_softcap=30.0,
    windows=(8, None),
    ropes=(RopeSpec(10000.0, 16), RopeSpec(1e6, 8)),
    layer_ropes=(0, 1),
    activation="gelu_tanh",
    embedding_scale=8.0,
    tie_embeddings=True,
)
OPT = dataclasses.replace(
    LLAMA,
    norm="layer",
    norm_bias=True,
    qkv_bias=True,
    output_bias=True,
    position="learned",
    position_offset=2,
    ropes=(),
    activation="relu",
    gated_mlp=False,
    mlp_bias=True,
    tie_embeddings=True,
)
MIXTURE = dataclasses.replace(LLAMA, moe=MoeSpec(4, 2, 32))


class Silent(Attention):
    """Launches one copy; its moves are not what is looked at here."""

    def __init__(self):
        self.plans = []

    def layout(self, num_blocks):
        return KVLayout((num_blocks, 2), "float32", 0, 8)

    def plan(self, batch):
        assert batch.on_device.tables.device.type == "meta"
        self.plans.append(batch)
        return batch

    def forward(self, layer, q, k, v, kv, plan, out):
        out.copy_(q)

    def copy_blocks(self, caches, copies):
        pass

    def swap_blocks(self, sources, targets, pairs):
        pass


class SilentGroup:
    """A process group whose members do nothing; `num_calls`: how often they met."""

    def __init__(self, rank, size):
        self.place, self.num_calls = (rank, size), 0

    def rank(self):
        return self.place[0]

    def size(self):
        return self.place[1]

    def meet(self, *tensors):
        self.num_calls += 1
        return self

    allreduce = gather = meet

    def wait(self):
        """On a GPU the stream waits, not the host."""


def decoder_of(spec, attention, fused_rope=True, group=None) -> Decoder:
    collective = None if group is None else TorchCollective(group)
    weights = ((name, torch.empty(shape, device="meta")) for name, shape in expected_shapes(spec).items())
    with torch.inference_mode():
        place = Place(META, torch.bfloat16)
        return Decoder.load(spec, weights, place, attention, fused_rope, collective=collective)


def runner_of(spec=LLAMA, fused_rope=True, group=None) -> tuple[DeviceRunner, TorchSampler]:
    attention, device = Silent(), MetaAccelerator()
    sampler = TorchSampler(SamplerNeed("meta", spec.vocab_size, ROWS))
    tables = np.arange(ROWS * 16, dtype=np.int32).reshape(ROWS, 16)
    staging = Staging(device, tables, BLOCK, BatchSizes(64, ROWS, ROWS))
    caches = [torch.empty(128, 2, device=META) for _ in range(spec.num_layers)], []
    decoder = decoder_of(spec, attention, fused_rope, group)
    draws = sampler if group is None or group.rank() == 0 else None
    return DeviceRunner(decoder, attention, draws, caches, staging, device), sampler


def start(sampler, params: SamplingParams) -> None:
    empty = np.zeros(0, dtype=np.int32)
    for row in range(ROWS):
        sampler.start(RowStart(row, params, 1, row, np.array([1, 2], dtype=np.int32), empty))


def plan_of(counts, sources=None) -> StepPlan:
    """Row i computes counts[i] tokens from position 3 on, and draws."""
    query_start = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    rows = np.arange(len(counts), dtype=np.int32)
    lengths = (3 + np.array(counts)).astype(np.int32)
    return StepPlan(
        step=0,
        token_ids=np.ones(query_start[-1], dtype=np.int32),
        positions=np.concatenate([np.arange(3, 3 + n) for n in counts]).astype(np.int32),
        query_start=query_start,
        rows=rows,
        seq_lens=lengths,
        sample_index=(query_start[1:] - 1).astype(np.int32),
        sample_rows=rows,
        sample_positions=lengths,
        changed_rows=rows,
        token_source=sources,
    )


DRAWS = {
    "greedy": SamplingParams(temperature=0),
    "plain": SamplingParams(temperature=0.7),
    "top_k": SamplingParams(temperature=0.7, top_k=20, top_p=0.9),
    "top_p": SamplingParams(temperature=0.7, top_p=0.9, min_p=0.01),
}


@pytest.mark.parametrize("counts", [[1, 1, 1], [1, 1, 7, 1]], ids=["decode", "mixed"])
@pytest.mark.parametrize("draws", DRAWS)
@pytest.mark.parametrize("captured", [True, False])
def test_a_step_is_submitted_without_waiting(counts, draws, captured):
    runner, sampler = runner_of()
    start(sampler, DRAWS[draws])
    if captured:
        assert would_wait(lambda: runner.capture(4)) == ""
    sources = np.array([1, *[-1] * (sum(counts) - 1)], dtype=np.int32)
    for plan in (plan_of(counts), plan_of(counts, sources)):
        assert would_wait(lambda plan=plan: runner.submit(plan)) == ""
    replays = sum(graph.num_replays for graph in runner._graphs._graphs.values())
    assert replays == (2 if captured and sum(counts) == len(counts) else 0)


def test_only_steps_of_decodes_whose_draws_fit_are_replayed():
    """A chunk of one token is a decode to attention; not if it has prompt log-probabilities or feeds several draws."""
    runner, _ = runner_of()
    assert would_wait(lambda: runner.capture(4)) == ""
    decode, asked, forking = plan_of([1, 1, 1]), plan_of([1, 1, 1]), plan_of([1])
    asked.prompt_rows = [PromptRows(1, 4, np.array([1], dtype=np.int32), np.array([5], dtype=np.int32), 1)]
    forking.sample_index = forking.sample_rows = np.zeros(2, dtype=np.int32)
    assert [runner._graph_size(plan) for plan in (decode, asked, forking, plan_of([1, 2]), plan_of([1] * 5))] == [
        4,
        *[None] * 4,
    ]


@pytest.mark.parametrize("spec", [GEMMA, OPT], ids=["gemma", "opt"])
@pytest.mark.parametrize("fused_rope", [True, False])
def test_no_family_waits_or_takes_what_only_a_cpu_has(spec, fused_rope):
    runner, sampler = runner_of(spec, fused_rope)
    start(sampler, DRAWS["greedy"])
    assert would_wait(lambda: runner.submit(plan_of([1, 5]))) == ""


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("spec", [LLAMA, GEMMA, OPT], ids=["llama", "gemma", "opt"])
@pytest.mark.parametrize("captured", [True, False])
def test_a_rank_of_a_group_waits_no_more_than_one_process(spec, rank, captured):
    group = SilentGroup(rank, 2)
    runner, sampler = runner_of(spec, group=group)
    start(sampler, DRAWS["greedy"])
    if captured:
        assert would_wait(lambda: runner.capture(4)) == ""
    before = group.num_calls
    for counts in ([1, 1, 1], [1, 5]):
        assert would_wait(lambda counts=counts: runner.submit(plan_of(counts))) == ""
    assert group.num_calls - before == 2 * (1 + 2 * spec.num_layers + 1)
    assert sum(graph.num_replays for graph in runner._graphs._graphs.values()) == captured


def test_a_mixture_waits_and_says_so():
    runner, sampler = runner_of(MIXTURE)
    start(sampler, DRAWS["greedy"])
    assert runner._decoder.waits_for_device
    assert "_unique2" in would_wait(lambda: runner.submit(plan_of([1, 1])))


@pytest.mark.parametrize(
    "waiting",
    [
        lambda x: x.sum().item(),
        lambda x: x.argmax(-1).tolist(),
        lambda x: x[x > 0],
        lambda x: (x > 0).nonzero(),
        lambda x: x.cpu(),
        lambda x: bool(x.isnan().any()),
        lambda x: torch.tensor([1, 2], device=x.device),
        lambda x: torch.from_numpy(np.arange(3)).to(x.device),
        lambda x: x.add_(torch.ones(x.shape[-1])),
        lambda x: x.numpy(),
    ],
)
def test_whatever_would_wait_is_seen(waiting):
    """In the place where a step's logits are made."""
    runner, sampler = runner_of()
    start(sampler, DRAWS["greedy"])
    logits = runner._decoder.logits

    def slow(hidden):
        made = logits(hidden)
        waiting(made)
        return made

    runner._decoder.logits = slow
    assert would_wait(lambda: runner.submit(plan_of([1, 1]))) != ""


@pytest.mark.parametrize("error", [TypeError("missing 1 argument"), RuntimeError("shapes"), AssertionError("shapes")])
def test_what_goes_wrong_otherwise_is_not_taken_for_waiting(error):
    def broken():
        raise error

    with pytest.raises(type(error), match=str(error)):
        would_wait(broken)
