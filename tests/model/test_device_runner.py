"""Law 15 for a device with a queue of its own: the tokens are those of the plain runner, whatever is captured, under
way, padded or on its way to the host."""

from __future__ import annotations

import dataclasses
import logging

import paged_exec_local
import pytest
import torch
from paged_exec_local.local import LocalExecutor

from paged_core.api.params import SamplingParams
from paged_core.engine.llm import LLM
from paged_core.model.device_runner import DeviceRunner
from paged_core.model.runner import Runner
from paged_core.testing.accelerator import FakeAccelerator
from paged_core.testing.attention import DeviceAttention
from paged_core.testing.tiny import write_tiny_llama

PROMPTS = ["a", "the other one", "in the beginning there was nothing and", "xyz" * 9, "the other one again"]
GREEDY = SamplingParams(temperature=0, max_tokens=14, ignore_eos=True)
RANDOM = SamplingParams(temperature=0.9, top_p=0.9, top_k=40, seed=3, max_tokens=14, ignore_eos=True)
PENALISED = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True, repetition_penalty=1.5, logprobs=2)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(write_tiny_llama(tmp_path_factory.mktemp("tiny")))


class OnDevice:
    """What `exec_local` makes for a GPU, on a FakeAccelerator. `made` holds the executors."""

    def __init__(self, monkeypatch):
        self.made: list[LocalExecutor] = []
        self.refuses_capture = False
        self.required = frozenset({"graphs", "fused_rope"})
        self.eager = False
        monkeypatch.setattr(paged_exec_local.LocalExecutorProvider, "create", self.create)

    def create(self, need, settings, plugins):
        accelerator = FakeAccelerator(len(self.made), is_eager=True)
        accelerator.refuses_capture = self.refuses_capture
        executor = LocalExecutor(dataclasses.replace(need, attn_required=frozenset()), plugins, accelerator)
        executor._resident._need = dataclasses.replace(need, attn_required=self.required, enforce_eager=self.eager)
        attention_need = dataclasses.replace(executor._resident._attention_need, required=self.required)
        executor._resident._attention = DeviceAttention(attention_need, accelerator)
        self.made.append(executor)
        return executor

    @property
    def runner(self) -> DeviceRunner:
        return self.made[-1]._resident._runner

    @property
    def num_replays(self) -> int:
        return sum(graph.num_replays for graph in self.runner._graphs._graphs.values())


@pytest.fixture
def on_device(monkeypatch):
    return OnDevice(monkeypatch)


def answers(model, params=GREEDY, look=lambda: None, **settings):
    settings = {"num_blocks": 128, "attn": "attn_torch", "max_num_seqs": 8, "block_size": 4, **settings}
    with LLM(model, audit=True, **settings) as llm:
        outputs = llm.generate(PROMPTS, params, use_tqdm=False)
        llm.engine.check()
        seen = look()
        return [output.outputs[0] for output in outputs], llm.engine.stats(), seen


def tokens(outputs):
    return [output.token_ids for output in outputs]


@pytest.fixture(scope="module")
def plain(model):
    return {id(params): answers(model, params)[0] for params in (GREEDY, RANDOM, PENALISED)}


@pytest.mark.parametrize("params", [GREEDY, RANDOM, PENALISED], ids=["greedy", "random", "penalised"])
@pytest.mark.parametrize("required", [("graphs", "fused_rope"), ("graphs",), ("fused_rope",)], ids=str)
def test_tokens_are_those_of_the_plain_runner(model, plain, on_device, params, required):
    on_device.required = frozenset(required)
    got, _, replays = answers(model, params, lambda: on_device.num_replays)
    assert tokens(got) == tokens(plain[id(params)])
    assert (replays > 5) == ("graphs" in required)
    for ours, theirs in zip(got, plain[id(params)], strict=True):
        for mine, reference in zip(ours.logprobs or [], theirs.logprobs or [], strict=True):
            assert {t: round(p.logprob, 3) for t, p in mine.items()} == {
                t: round(p.logprob, 3) for t, p in reference.items()
            }


@pytest.mark.parametrize("preempt", ["swap", "recompute"])
@pytest.mark.parametrize("budget", [None, 16])
def test_chunks_preemption_and_swaps_change_nothing(model, plain, on_device, preempt, budget):
    got, stats, _ = answers(model, num_blocks=17, preempt=preempt, max_num_batched_tokens=budget, host_memory="1MiB")
    assert tokens(got) == tokens(plain[id(GREEDY)])
    assert sum(stats.preemptions.values()) > 0


def test_two_steps_are_under_way_at_a_time(model, on_device, monkeypatch):
    sources = []
    submit = DeviceRunner.submit

    def looking(self, plan):
        sources.append(plan.token_source is not None and bool((plan.token_source >= 0).any()))
        return submit(self, plan)

    monkeypatch.setattr(DeviceRunner, "submit", looking)
    answers(model)
    assert sum(sources) > 10


@pytest.mark.parametrize("params", [GREEDY, RANDOM, PENALISED], ids=["greedy", "random", "penalised"])
def test_the_plain_runner_takes_two_steps_as_well(model, plain, monkeypatch, params):
    create, token_ids, open_tokens = paged_exec_local.LocalExecutorProvider.create, Runner._token_ids, []

    def two_at_a_time(self, need, settings, plugins):
        executor = create(self, need, settings, plugins)
        executor.max_in_flight = 2
        return executor

    def looking(self, plan):
        open_tokens.append(0 if plan.token_source is None else int((plan.token_source >= 0).sum()))
        return token_ids(self, plan)

    monkeypatch.setattr(paged_exec_local.LocalExecutorProvider, "create", two_at_a_time)
    monkeypatch.setattr(Runner, "_token_ids", looking)
    got, _, _ = answers(model, params)
    assert tokens(got) == tokens(plain[id(params)])
    assert sum(open_tokens) > 20


def test_attention_plans_every_step_also_those_that_are_replayed(model, on_device):
    def look():
        return on_device.made[-1]._resident._attention.num_plans, len(on_device.runner._graphs)

    _, stats, (plans, graphs) = answers(model, look=look)
    assert plans == stats.num_steps + graphs


def test_attention_is_told_of_prefixes_that_sequences_share(model, on_device):
    on_device.eager = True
    with LLM(model, attn="attn_torch", num_blocks=128, block_size=4, max_num_seqs=8) as llm:
        branches = SamplingParams(n=4, temperature=1.0, seed=1, max_tokens=12, ignore_eos=True)
        llm.generate(["in the beginning there was nothing and"], branches, use_tqdm=False)
        assert on_device.made[-1]._resident._attention.num_shared > 5


def test_branches_and_beams_and_prompt_logprobs_are_the_same(model, on_device, monkeypatch):
    several = SamplingParams(n=3, temperature=1.0, seed=5, max_tokens=6, ignore_eos=True, prompt_logprobs=2)
    beams = SamplingParams(use_beam_search=True, beam_width=3, n=2, temperature=0, max_tokens=6)

    def everything():
        with LLM(model, attn="attn_torch", num_blocks=128, block_size=4, max_num_seqs=8, audit=True) as llm:
            outputs = llm.generate(PROMPTS[:3], several, use_tqdm=False) + llm.generate(
                PROMPTS[:2], beams, use_tqdm=False
            )
            prompt = [None if at is None else sorted(at) for at in outputs[0].prompt_logprobs]
            return [[branch.token_ids for branch in output.outputs] for output in outputs], prompt

    ours = everything()
    assert on_device.made
    monkeypatch.undo()
    assert ours == everything()


def test_without_graphs_the_reason_is_told_once(model, monkeypatch, caplog, plain):
    cases = (
        ("eager", True, "enforce_eager is set"),
        ("required", frozenset(), "attn_torch does not offer graphs"),
    )
    for name, value, reason in cases:
        caplog.clear()
        on_device = OnDevice(monkeypatch)
        setattr(on_device, name, value)
        with caplog.at_level(logging.INFO):
            got, _, replays = answers(model, look=lambda made=on_device: made.num_replays)
        assert tokens(got) == tokens(plain[id(GREEDY)])
        assert replays == 0
        told = [record.message for record in caplog.records if "CUDA graphs" in record.message]
        assert told == [f"steps run without CUDA graphs: {reason}"]


def test_a_device_that_refuses_to_capture_runs_eagerly(model, on_device, caplog, plain):
    on_device.refuses_capture = True
    with caplog.at_level(logging.WARNING):
        got, _, replays = answers(model, look=lambda: on_device.num_replays)
    assert tokens(got) == tokens(plain[id(GREEDY)])
    assert replays == 0
    assert "operation not permitted when stream is capturing" in caplog.text


def test_a_failed_sequence_fails_alone_and_only_when_the_host_is_told(model, on_device):
    """NaN in one row of the logits: what the next step makes of its token is dropped."""
    with LLM(model, attn="attn_torch", num_blocks=128, block_size=4, max_num_seqs=8) as llm:
        logits = on_device.runner._decoder.logits
        calls = []

        def spoiled(hidden, *out):
            calls.append(len(hidden))
            made = logits(hidden, *out)
            if len(calls) > 10 and len(made) > 1:
                made[1] = torch.nan
            return made

        on_device.runner._decoder.logits = spoiled
        outputs = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
        llm.engine.check()
    reasons = [output.outputs[0].finish_reason for output in outputs]
    assert "error" in reasons
    assert "length" in reasons
