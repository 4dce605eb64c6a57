"""Law 15 on a real (tiny, random) model: greedy fp32 tokens are the same whatever the engine does."""

from __future__ import annotations

import itertools

import pytest

from paged_core.api.params import SamplingParams
from paged_core.engine.llm import LLM
from paged_core.testing.tiny import write_tiny_llama

PROMPTS = ["a", "the other one", "in the beginning there was nothing and", "xyz" * 9, "the other one again"]
GREEDY = SamplingParams(temperature=0, max_tokens=14, ignore_eos=True, logprobs=1)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(write_tiny_llama(tmp_path_factory.mktemp("tiny")))


def answers(model, prompts=PROMPTS, params=GREEDY, **settings):
    settings = {"num_blocks": 128, "attn": "attn_torch", "max_num_seqs": 8, **settings}
    with LLM(model, audit=True, **settings) as llm:
        outputs = llm.generate(prompts, params, use_tqdm=False)
        llm.engine.check()
        return [output.outputs[0] for output in outputs], llm.engine.stats()


@pytest.fixture(scope="module")
def reference(model):
    """Each prompt alone, prefix cache off, whole prefill; seeded so that no two best logits tie."""
    found = []
    for prompt in PROMPTS:
        (output,), _ = answers(model, [prompt], prefix_cache=False, block_size=16)
        assert output.logprobs is not None
        found.append(output.token_ids)
    return found


SETTINGS = list(
    itertools.product(
        ["attn_torch", "attn_cpu"], [1, 4, 16], [None, 16], [(128, "recompute"), (17, "recompute"), (17, "swap")]
    )
)


@pytest.mark.parametrize("attn", ["attn_torch", "attn_cpu"])
def test_codes_give_the_same_tokens_alone_in_chunks_and_preempted(model, attn):
    """A row's codes depend on that row alone, and travel with its block."""
    codes = {"attn": attn, "kv_dtype": "uint8", "block_size": 16}
    alone = [answers(model, [prompt], prefix_cache=False, **codes)[0][0].token_ids for prompt in PROMPTS]
    for company in (
        {},
        {"max_num_batched_tokens": 16},
        {"block_size": 32},
        {"num_blocks": 4, "preempt": "recompute"},
        {"num_blocks": 4, "preempt": "swap", "host_memory": "1MiB"},
    ):
        got, stats = answers(model, **(codes | company))
        assert [output.token_ids for output in got] == alone, company
        assert ("preempt" in company) == (sum(stats.preemptions.values()) > 0), company


@pytest.mark.parametrize(("attn", "block_size", "budget", "pool"), SETTINGS)
def test_the_matrix_of_law_15(model, reference, attn, block_size, budget, pool):
    blocks, preempt = pool
    got, stats = answers(
        model,
        attn=attn,
        block_size=block_size,
        max_num_batched_tokens=budget,
        num_blocks=max(3, blocks * 4 // block_size),
        preempt=preempt,
        host_memory="1MiB",
    )
    assert [output.token_ids for output in got] == reference
    if blocks == 17:
        assert sum(stats.preemptions.values()) > 0


def test_a_quarter_of_the_pool_finishes_with_the_tokens_of_an_ample_one(model):
    prompts = [f"{i} the other one and {i * i}" for i in range(24)]
    ample, stats = answers(model, prompts, num_blocks=512, max_num_seqs=32)
    assert sum(stats.preemptions.values()) == 0
    for preempt in ("recompute", "swap"):
        quarter = -(-stats.peak_blocks // 4)
        got, tight = answers(model, prompts, num_blocks=quarter, preempt=preempt, max_num_seqs=32, host_memory="4MiB")
        assert sum(tight.preemptions.values()) > 0
        assert [output.token_ids for output in got] == [output.token_ids for output in ample]


@pytest.mark.parametrize("budget", [None, 8])
@pytest.mark.parametrize("cache", [True, False])
def test_prompt_logprobs_are_complete_under_chunking_cache_and_preemption(model, budget, cache):
    """Cases M20, P12, S13 and museum 14, 15: one row per prompt token but the first, whatever happened."""
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, prompt_logprobs=2)
    prompts = ["in the beginning there was nothing and"] * 3 + ["the other"]
    with LLM(model, attn="attn_torch", num_blocks=256, prefix_cache=False) as llm:
        expected = [one.prompt_logprobs for one in llm.generate(prompts, params, use_tqdm=False)]
    with LLM(
        model,
        attn="attn_torch",
        num_blocks=6,
        block_size=8,
        prefix_cache=cache,
        max_num_batched_tokens=budget,
        max_num_seqs=8,
    ) as llm:
        short = SamplingParams(temperature=0, max_tokens=2)
        llm.generate(prompts[0], short, use_tqdm=False)
        outputs = llm.generate(prompts, params, use_tqdm=False)
        published = llm.generate(prompts[0], params, use_tqdm=False)
        plain = llm.generate(prompts[0], short, use_tqdm=False)
    assert published[0].num_cached_tokens == 0
    for output, want in zip(outputs, expected, strict=True):
        rows = output.prompt_logprobs
        assert rows[0] is None
        assert len(rows) == len(output.prompt_token_ids) == len(want)
        for row, wanted, token in zip(rows[1:], want[1:], output.prompt_token_ids[1:], strict=True):
            assert token in row
            assert {key: value.rank for key, value in row.items()} == {key: value.rank for key, value in wanted.items()}
            for key, value in row.items():
                assert value.logprob == pytest.approx(wanted[key].logprob, abs=1e-4)
        assert output.num_cached_tokens == 0
    assert (plain[0].num_cached_tokens > 0) == cache


def test_seeded_draws_do_not_depend_on_neighbours_order_or_preemption(model):
    """Law 16, museum 29 and 31, case M11."""
    wanted = [
        SamplingParams(temperature=1.2, seed=7, max_tokens=12, ignore_eos=True),
        SamplingParams(temperature=0.8, seed=8, top_k=5, repetition_penalty=1.5, max_tokens=12, ignore_eos=True),
        SamplingParams(temperature=1.0, seed=9, top_p=0.7, frequency_penalty=1.0, max_tokens=12, ignore_eos=True),
        SamplingParams(temperature=0, presence_penalty=2.0, max_tokens=12, ignore_eos=True),
    ]
    alone = [answers(model, [prompt], params)[0][0].token_ids for prompt, params in zip(PROMPTS, wanted, strict=False)]
    with LLM(model, attn="attn_torch", num_blocks=64, block_size=4) as llm:
        for order in itertools.permutations(range(4)):
            outputs = llm.generate([PROMPTS[i] for i in order], [wanted[i] for i in order], use_tqdm=False)
            assert [output.outputs[0].token_ids for output in outputs] == [alone[i] for i in order]
    for preempt in ("recompute", "swap"):
        with LLM(model, attn="attn_torch", num_blocks=16, block_size=4, preempt=preempt, host_memory="1MiB") as llm:
            outputs = llm.generate(PROMPTS[:4], wanted, use_tqdm=False)
            assert [output.outputs[0].token_ids for output in outputs] == alone
            assert sum(llm.engine.stats().preemptions.values()) > 0


@pytest.mark.parametrize("chunked", [True, False])
@pytest.mark.parametrize("sched", ["prefix", "prefill_first", "no_evict", "max_utilization", "peak", "priority"])
def test_who_runs_when_changes_no_token(model, reference, sched, chunked):
    """Every scheduler of this repository around the real model, on a pool for two of the five."""
    sizes = {"block_size": 4, "num_blocks": 24, "chunked_prefill": chunked, "max_model_len": 64}
    outputs, stats = answers(model, sched=sched, max_num_batched_tokens=16 if chunked else 64, **sizes)
    assert [output.token_ids for output in outputs] == reference
    keeps_promises = sched in ("no_evict", "peak")  # the latter without a past
    assert keeps_promises == (sum(stats.preemptions.values()) == 0)
