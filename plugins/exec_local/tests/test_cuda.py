"""The whole engine on a GPU: fp32 tokens are those of the CPU, captured or not, swapped or not."""

from __future__ import annotations

import logging

import pytest
import torch

from paged_core.api.params import SamplingParams
from paged_core.engine.llm import LLM
from paged_core.model.device_runner import DeviceRunner
from paged_core.testing.build import default_plugins
from paged_core.testing.tiny import write_tiny_llama

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
PROMPTS = ["a", "the other one", "in the beginning there was nothing and", "xyz" * 9, "the other one again"]
GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
RANDOM = SamplingParams(temperature=0.9, top_p=0.9, top_k=40, seed=3, max_tokens=24, ignore_eos=True)
BACKENDS = ["attn_torch", "attn_triton", "attn_cuda"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(write_tiny_llama(tmp_path_factory.mktemp("tiny")))


def answers(model, params=GREEDY, **settings):
    settings = {"num_blocks": 64, "block_size": 16, "max_num_seqs": 8, "dtype": "float32", **settings}
    with LLM(model, audit=True, **settings) as llm:
        outputs = llm.generate(PROMPTS, params, use_tqdm=False)
        llm.engine.check()
        return [output.outputs[0].token_ids for output in outputs], sum(llm.engine.stats().preemptions.values())


@pytest.fixture(scope="module")
def on_cpu(model):
    return {id(params): answers(model, params, device="cpu", attn="attn_torch")[0] for params in (GREEDY, RANDOM)}


@pytest.mark.parametrize("attn", BACKENDS)
@pytest.mark.parametrize("params", [GREEDY, RANDOM], ids=["greedy", "random"])
@pytest.mark.parametrize("enforce_eager", [False, True], ids=["graphs", "eager"])
def test_tokens_are_those_of_the_cpu(model, on_cpu, attn, params, enforce_eager):
    got, _ = answers(model, params, device="cuda", attn=attn, enforce_eager=enforce_eager)
    assert got == on_cpu[id(params)]


@pytest.mark.parametrize("attn", BACKENDS)
@pytest.mark.parametrize("preempt", ["swap", "recompute"])
def test_preempted_sequences_come_back_as_they_left(model, on_cpu, attn, preempt):
    got, preemptions = answers(
        model, device="cuda", attn=attn, num_blocks=9, preempt=preempt, host_memory="1MiB", max_num_batched_tokens=16
    )
    assert got == on_cpu[id(GREEDY)]
    assert preemptions > 0


@pytest.mark.parametrize("attn", ["attn_triton", "attn_cuda"])
@pytest.mark.parametrize("params", [GREEDY, RANDOM], ids=["greedy", "random"])
def test_a_step_is_submitted_without_the_host_waiting(model, on_cpu, attn, params, monkeypatch):
    """torch raises where one of its operators would wait for the device. The first steps compile and allocate."""
    submit, num_steps = DeviceRunner.submit, []

    def strict(self, plan):
        num_steps.append(plan.step)
        torch.cuda.set_sync_debug_mode("error" if len(num_steps) > 5 else "default")
        try:
            return submit(self, plan)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(DeviceRunner, "submit", strict)
    assert answers(model, params, device="cuda", attn=attn)[0] == on_cpu[id(params)]
    assert len(num_steps) > 10


@pytest.mark.parametrize("attn", ["attn_triton", "attn_cuda"])
def test_decode_steps_are_captured(model, attn, caplog):
    if "graphs" not in default_plugins().records[attn].provider.capabilities:
        pytest.skip(f"{attn} offers no graphs")
    with caplog.at_level(logging.INFO):
        answers(model, device="cuda", attn=attn)
    assert "captured 4 steps in" in caplog.text  # 1, 2, 4 and 8 sequences
    assert "without CUDA graphs" not in caplog.text
