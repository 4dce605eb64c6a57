"""A group of residents behind the engine, a thread each: tokens are those of one process, whatever the engine does."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import paged_exec_local
import pytest
import torch

from paged_core.api.executor import Executor, ExecutorNeed, KVCapacity, Ticket
from paged_core.api.params import SamplingParams
from paged_core.engine.llm import LLM
from paged_core.errors import ConfigError, EngineDeadError
from paged_core.model.device_runner import DeviceRunner
from paged_core.model.parallel.shard import Shard
from paged_core.model.resident import Resident
from paged_core.model.spec import spec_from_hf
from paged_core.testing.accelerator import FakeAccelerator
from paged_core.testing.attention import DeviceAttention
from paged_core.testing.build import default_plugins, executor_need
from paged_core.testing.ranks import LockStep
from paged_core.testing.tiny import CONFIG, write_tiny_llama

if TYPE_CHECKING:
    from paged_core.api.batch import StepPlan, StepResult

PROMPTS = ["a", "the other one", "in the beginning there was nothing and", "xyz" * 9, "the other one again"]
HEADS = {"num_attention_heads": 12, "num_key_value_heads": 4}
TOKENS = torch.tensor([1, 2, 300])
GREEDY = SamplingParams(temperature=0, max_tokens=14, ignore_eos=True)
KINDS = {
    "greedy": GREEDY,
    "drawn": SamplingParams(temperature=0.9, top_p=0.9, seed=3, n=2, max_tokens=14, ignore_eos=True),
    "penalised": SamplingParams(temperature=0, max_tokens=10, ignore_eos=True, repetition_penalty=1.5, logprobs=2),
    "beams": SamplingParams(use_beam_search=True, beam_width=3, n=2, max_tokens=6),
    "prompt": SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, prompt_logprobs=2),
}


class Answered(Ticket):
    """Rank 0's result."""

    __slots__ = ("result",)

    def __init__(self, plan: StepPlan, result: StepResult) -> None:
        super().__init__(plan)
        self.result = result


class Group(Executor):
    """A resident for every rank; on accelerators, steps of decodes are captured."""

    def __init__(self, need: ExecutorNeed, plugins, size: int, accelerated: bool = False) -> None:
        self.ranks = LockStep(size)
        self.residents: list[Resident] = []
        self.num_replays: list[int] = []
        for rank in range(size):
            device = FakeAccelerator(rank, is_eager=True) if accelerated else None
            resident = Resident(need, plugins, Shard(rank, size), accelerator=device)
            if device is not None:
                required = frozenset({"graphs", "fused_rope"})
                resident._need = dataclasses.replace(need, attn_required=required)
                attention_need = dataclasses.replace(resident._attention_need, required=required)
                resident._attention = DeviceAttention(attention_need, device)
            self.residents.append(resident)

    def capacity(self) -> KVCapacity:
        return self.residents[0].capacity()

    def start(self, num_blocks, num_host_blocks, tables) -> None:
        self.ranks.run(lambda end: self.residents[end.rank].start(num_blocks, num_host_blocks, tables, end))

    def submit(self, plan: StepPlan) -> Ticket:
        def step(end):
            resident = self.residents[end.rank]
            return resident.collect(resident.submit(plan))

        mine, *others = self.ranks.run(step)
        assert not any(len(other.tokens) or other.prompt_logprobs for other in others), "only rank 0 draws"
        return Answered(plan, mine)

    def collect(self, ticket: Ticket) -> StepResult:
        assert isinstance(ticket, Answered)
        return ticket.result

    def close(self) -> None:
        for resident in self.residents:
            if isinstance(resident._runner, DeviceRunner):
                graphs = resident._runner._graphs._graphs.values()
                self.num_replays.append(sum(graph.num_replays for graph in graphs))
            resident.close()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(write_tiny_llama(tmp_path_factory.mktemp("tiny")))


@pytest.fixture
def in_group(monkeypatch):
    """From now on `exec_local` makes groups; returns those made."""

    def begin(size, accelerated=False):
        made = []

        def create(self, need, settings, plugins):
            required = frozenset() if accelerated else need.attn_required
            made.append(Group(dataclasses.replace(need, attn_required=required), plugins, size, accelerated))
            return made[-1]

        monkeypatch.setattr(paged_exec_local.LocalExecutorProvider, "create", create)
        return made

    return begin


def answers(model, params, **settings):
    settings = {"num_blocks": 128, "attn": "attn_torch", "max_num_seqs": 8, "block_size": 4, "threads": 1, **settings}
    with LLM(model, audit=True, dtype="float32", **settings) as llm:
        outputs = llm.generate(PROMPTS, params, use_tqdm=False)
        llm.engine.check()
        return outputs, llm.engine.stats()


@pytest.fixture(scope="module")
def alone(model):
    return {kind: answers(model, params)[0] for kind, params in KINDS.items()}


def agree(got, expected):
    assert [[one.token_ids for one in output.outputs] for output in got] == [
        [one.token_ids for one in output.outputs] for output in expected
    ]
    for mine, other in zip(got, expected, strict=True):
        for ours, theirs in zip(mine.outputs, other.outputs, strict=True):
            same_logprobs(ours.logprobs, theirs.logprobs)
        same_logprobs(mine.prompt_logprobs, other.prompt_logprobs)


def same_logprobs(ours, theirs):
    assert (ours is None) == (theirs is None)
    for mine, reference in zip(ours or [], theirs or [], strict=True):
        assert (mine is None) == (reference is None)
        for token, entry in (mine or {}).items():
            assert entry.logprob == pytest.approx(reference[token].logprob, abs=1e-4)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_tokens_and_logprobs_are_those_of_one_process(model, alone, in_group, kind, size):
    made = in_group(size)
    got, _ = answers(model, KINDS[kind])
    agree(got, alone[kind])
    assert made[0].ranks.num_sums >= 5 * 4


@pytest.mark.parametrize("preempt", ["swap", "recompute"])
def test_chunks_preemption_and_swaps_change_nothing(model, alone, in_group, preempt):
    in_group(2)
    got, stats = answers(model, GREEDY, num_blocks=17, preempt=preempt, max_num_batched_tokens=16, host_memory="1MiB")
    agree(got, alone["greedy"])
    assert sum(stats.preemptions.values()) > 0


@pytest.mark.parametrize("kind", ["greedy", "drawn", "prompt"])
def test_ranks_with_devices_of_their_own_replay_the_same_steps(model, alone, in_group, kind):
    made = in_group(2, accelerated=True)
    got, _ = answers(model, KINDS[kind])
    agree(got, alone[kind])
    assert made[0].num_replays[0] == made[0].num_replays[1] >= 3


def need(**changes):
    return executor_need(**{"spec": spec_from_hf({**CONFIG, **HEADS}), **changes})


@pytest.mark.parametrize("attn", ["attn_torch", "attn_cpu"])
@pytest.mark.parametrize("size", [1, 2, 4, 12])
def test_kv_bytes_of_a_rank_are_those_of_its_heads(size, attn):
    whole = Resident(need(attn=attn), default_plugins()).capacity()
    for rank in (0, size - 1):
        part = Resident(need(attn=attn), default_plugins(), Shard(rank, size)).capacity()
        assert part.block_bytes * 4 == whole.block_bytes * -(-4 // size)
        assert part.num_blocks == (1 << 20) // part.block_bytes


def test_a_group_that_the_model_cannot_be_cut_for_is_refused():
    with pytest.raises(ConfigError, match="sizes that work: 1, 2, 4, 12"):
        Resident(need(), default_plugins(), Shard(0, 3))


def test_only_a_process_that_waits_for_nobody_judges_who_else_uses_the_cores(model):
    group = Group(executor_need(model=model), default_plugins(), 2)
    group.start(8, 4, np.zeros((8, 16), dtype=np.int32))
    assert all(resident._runner._pressure is None for resident in group.residents)


def test_a_profile_tells_how_long_a_rank_was_with_the_others(model):
    group = Group(executor_need(model=model, profile=True), default_plugins(), 2)
    group.start(8, 4, np.zeros((8, 16), dtype=np.int32))
    decoders = [resident._runner._decoder for resident in group.residents]
    group.ranks.run(lambda end: decoders[end.rank].logits(decoders[end.rank].embedded(TOKENS, TOKENS)))
    for resident in group.residents:
        assert [span.name for span in resident.spans()] == ["add up", "embed", "gather logits", "head"]


def test_a_resident_that_is_not_started_or_was_closed_says_so(model):
    resident = Resident(executor_need(model=model), default_plugins())
    with pytest.raises(EngineDeadError, match="not started or was closed"):
        resident.submit(None)
    resident.close()
