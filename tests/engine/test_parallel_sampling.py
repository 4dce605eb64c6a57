"""Several sequences per request: one prefill, fork, copy-on-write, and branches that depend on their own seed only.

The shadow executor's tokens hash everything a branch reads through its block table together with its seed, so a branch
equals the same seed run alone exactly when sharing, copying, swapping and recomputing are right.
"""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paged_core import LLM
from paged_core.api.params import SamplingParams, branch_seed
from paged_core.api.sampler import SamplerNeed
from paged_core.errors import RequestError
from paged_core.testing.build import EngineShape, build_engine
from paged_core.testing.scripted import TableExecutor
from paged_core.testing.seams import PreemptNow
from paged_core.testing.tiny import write_tiny_llama
from paged_core.testing.tokenizer import ByteTokenizer


def sampled(n, max_tokens=12, seed=1, **more):
    return SamplingParams(n=n, temperature=1.0, seed=seed, max_tokens=max_tokens, ignore_eos=True, **more)


@pytest.fixture
def alone(shadow, drain):
    """Tokens of branch `i` of seed 1, run as a request of its own on an ample engine without prefix cache."""

    def run(prompt, branch, max_tokens):
        engine = shadow(prefix_cache=False, num_blocks=256)
        engine.add_request("r", prompt, sampled(1, max_tokens, branch_seed(1, branch)))
        return drain(engine)["r"].outputs[0].token_ids

    return run


def test_m01_branches_differ_repeat_in_order_and_equal_their_seed_alone(shadow, drain, alone):
    prompt = list(b"half full")
    answers = []
    for _ in range(2):
        engine = shadow()
        engine.add_request("r", prompt, sampled(4))
        answers.append([one.token_ids for one in drain(engine)["r"].outputs])
    assert answers[0] == answers[1]
    assert len({tuple(tokens) for tokens in answers[0]}) == 4
    assert answers[0] == [alone(prompt, branch, 12) for branch in range(4)]


@pytest.mark.parametrize(("length", "copies"), [(6, 2), (8, 0), (5, 2), (9, 2)])
def test_a03_the_shared_last_block_is_copied_n_minus_1_times_and_a_full_one_never(shadow, drain, length, copies):
    engine = shadow()
    engine.add_request("r", list(range(1, length + 1)), sampled(3))
    drain(engine)
    assert engine.stats().blocks.num_copies == copies


@pytest.mark.parametrize("alloc", ["alloc_cow", "alloc_radix"])
@pytest.mark.parametrize("attn", ["attn_torch", "attn_cpu"])
def test_a01_branches_of_a_model_with_a_sliding_window_end_well(tmp_path, alloc, attn):
    """Window 8, prompt 6, n=2, 24 tokens: the window leaves all that was shared behind."""
    folder = write_tiny_llama(tmp_path / "windowed")
    config = json.loads((folder / "config.json").read_text())
    config |= {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 8}
    (folder / "config.json").write_text(json.dumps(config))
    prompt = {"prompt_token_ids": list(b"window")}
    with LLM(str(folder), alloc=alloc, attn=attn, block_size=4, num_blocks=32, max_num_seqs=4, audit=True) as llm:
        (output,) = llm.generate([prompt], sampled(2, 24), use_tqdm=False)
        llm.engine.check()
        blocks = llm.engine.stats().blocks
        assert (blocks.free, sum(blocks.ref_counts)) == (blocks.total, 0)
        ones = [sampled(1, 24, branch_seed(1, branch)) for branch in range(2)]
        lone = [llm.generate([prompt], one, use_tqdm=False)[0].outputs[0].token_ids for one in ones]
    assert [one.finish_reason for one in output.outputs] == ["length", "length"]
    assert [one.token_ids for one in output.outputs] == lone
    assert lone[0] != lone[1]


def test_one_prefill_serves_all_branches(shadow, drain):
    engine = shadow(num_blocks=256)
    engine.add_request("r", list(range(1, 41)), sampled(6, 2))
    drain(engine)
    assert engine.stats().num_computed == 40 + 6


def test_branches_end_on_their_own_and_the_stream_carries_each(shadow, drain, alone):
    """The stop id is a token that only one branch draws; the others go on to their length."""
    prompt = list(b"streams")
    expected = [alone(prompt, branch, 12) for branch in range(4)]
    stop = next(token for token in expected[0] if all(token not in other for other in expected[1:]))
    engine = shadow()
    engine.add_request("r", prompt, sampled(4, stop_token_ids=[stop]), stream=True)
    seen = []
    while engine.has_unfinished:
        seen += engine.step()
    assert [one.index for one in seen[-1].outputs] == [0, 1, 2, 3]
    assert [one.finish_reason for one in seen[-1].outputs] == ["stop", "length", "length", "length"]
    assert seen[-1].outputs[0].token_ids == expected[0][: expected[0].index(stop) + 1]
    assert [one.token_ids for one in seen[-1].outputs[1:]] == expected[1:]
    assert [output.finished for output in seen].count(True) == 1


@pytest.mark.parametrize("preempt", ["preempt_recompute", "preempt_swap"])
@pytest.mark.parametrize("at", range(1, 12))
def test_museum_24_a_gang_preempted_at_any_step_draws_the_same_tokens(shadow, drain, alone, preempt, at):
    prompt = list(b"prompt of a gang")
    engine = shadow(
        wrap=lambda inner: PreemptNow(inner, lambda step, group: step in (at, at + 3) and group.num_preemptions < 2),
        preempt=preempt,
        token_budget=16,
        max_num_seqs=8,
    )
    engine.add_request("r", prompt, sampled(3, 10))
    outputs = drain(engine)["r"].outputs
    assert [one.token_ids for one in outputs] == [alone(prompt, branch, 10) for branch in range(3)]


@pytest.mark.parametrize("preempt", ["preempt_recompute", "preempt_swap"])
def test_a_gang_whose_first_branch_ended_comes_back_right(shadow, drain, alone, preempt):
    prompt = list(b"the first one leaves")
    expected = [alone(prompt, branch, 12) for branch in range(3)]
    stop = next(token for token in expected[0][:9] if all(token not in other for other in expected[1:]))
    engine = shadow(
        wrap=lambda inner: PreemptNow(inner, lambda step, group: len(group.live) == 2 and group.num_preemptions == 0),
        preempt=preempt,
    )
    engine.add_request("r", prompt, sampled(3, stop_token_ids=[stop]))
    output = drain(engine)["r"]
    assert output.metrics.num_preemptions == 1
    assert [one.token_ids for one in output.outputs[1:]] == expected[1:]


@pytest.mark.parametrize(("num_blocks", "host", "mode"), [(40, 8, "recompute"), (40, 80, "swap")])
def test_p10_two_gangs_on_a_pool_for_one_both_finish(shadow, drain, alone, num_blocks, host, mode):
    """Each gang ends at 38 blocks of 4: 2 shared and 6 for each of 6 branches."""
    engine = shadow(num_blocks=num_blocks, num_host_blocks=host, preempt="preempt_swap")
    prompts = [[i + 1] * 10 for i in range(2)]
    for i, prompt in enumerate(prompts):
        engine.add_request(str(i), prompt, sampled(6, 20))
    outputs = drain(engine)
    for i, prompt in enumerate(prompts):
        assert [one.token_ids for one in outputs[str(i)].outputs] == [alone(prompt, b, 20) for b in range(6)]
    assert engine.stats().preemptions[mode] > 0


def test_p10_c_a_gang_that_outgrows_the_pool_ends_alone_and_the_next_request_is_fine(shadow, cold, drain):
    engine = shadow(num_blocks=12)
    engine.add_request("gang", [1] * 10, sampled(6, 20))
    engine.add_request("next", [2, 3], SamplingParams(temperature=0, max_tokens=4, ignore_eos=True))
    outputs = drain(engine)
    assert {one.finish_reason for one in outputs["gang"].outputs} == {"length"}
    assert "KV pool" in outputs["gang"].error
    assert outputs["next"].outputs[0].token_ids == cold([2, 3], 4)
    with pytest.raises(RequestError, match=r"needs 17 blocks of 4 for 15 sequences"):
        engine.add_request("never", [1] * 10, sampled(15))


def test_museum_1_aborting_a_gang_frees_every_branch_at_any_moment(shadow, drain):
    for steps in range(6):
        engine = shadow()
        engine.add_request("r", list(range(1, 20)), sampled(5))
        for _ in range(steps):
            engine.step()
        (output,) = engine.abort(["r"])
        assert {one.finish_reason for one in output.outputs} == {"abort"}
        engine.check()


def test_museum_27_the_cap_counts_the_fan_out(shadow, drain):
    engine = shadow(max_num_seqs=8, num_blocks=256, token_budget=64)
    for i in range(4):
        engine.add_request(str(i), [i + 1] * 5, sampled(3))
    most = 0
    while engine.has_unfinished:
        engine.step()
        most = max(most, engine.stats().num_running)
    assert most == 2
    with pytest.raises(RequestError, match="9 sequences were asked for; this engine runs at most 8"):
        engine.add_request("many", [1], sampled(9))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), block_size=st.sampled_from([1, 3, 4]), preempt=st.sampled_from(["recompute", "swap"]))
def test_gangs_on_a_tight_pool_with_aborts_keep_their_tokens(shadow, drain, alone, data, block_size, preempt):
    engine = shadow(
        block_size=block_size,
        num_blocks=data.draw(st.integers(-(-72 // block_size), -(-120 // block_size))),
        num_host_blocks=data.draw(st.sampled_from([0, 10, 100])),
        preempt=preempt,
        prefix_cache=data.draw(st.booleans()),
        token_budget=data.draw(st.integers(12, 40)),
        max_num_seqs=12,
    )
    wanted = {}
    for i in range(data.draw(st.integers(1, 5))):
        prompt = data.draw(st.sampled_from([[7], list(b"hello wor"), list(b"hello world, a"), list(b"abcdefgh")]))
        wanted[str(i)] = prompt, data.draw(st.integers(1, 4)), data.draw(st.integers(1, 8))
        engine.add_request(str(i), prompt, sampled(*wanted[str(i)][1:]))
    finished = {}
    for _ in range(data.draw(st.integers(0, 8))):
        finished |= {output.request_id: output for output in engine.step() if output.finished}
        if wanted and data.draw(st.integers(0, 5)) == 0:
            victim = data.draw(st.sampled_from(sorted(wanted)))
            if engine.abort([victim]):
                wanted.pop(victim)
    finished |= drain(engine)
    for request_id, (prompt, n, length) in wanted.items():
        got = [one.token_ids for one in finished[request_id].outputs]
        assert got == [alone(prompt, branch, length) for branch in range(n)]


def test_best_of_returns_the_most_probable_and_hides_the_rest(tmp_path):
    with LLM(str(write_tiny_llama(tmp_path / "t")), num_blocks=128, attn="attn_torch") as llm:
        every = llm.generate("the one", sampled(5, logprobs=0), use_tqdm=False)[0].outputs
        params = sampled(2, best_of=5)
        best = llm.generate("the one", params, use_tqdm=False)[0].outputs
        streamed = list(llm.stream("the one", params))
    order = sorted(every, key=lambda one: -one.cumulative_logprob)
    assert [one.token_ids for one in best] == [one.token_ids for one in order[:2]]
    assert [one.index for one in best] == [0, 1]
    assert best[0].logprobs is None
    assert len(streamed) == 1
    assert [one.token_ids for one in streamed[0].outputs] == [one.token_ids for one in best]


def test_branches_of_a_real_model_equal_their_seeds_alone(tmp_path):
    model = str(write_tiny_llama(tmp_path / "t"))
    for attn in ("attn_torch", "attn_cpu"):
        with LLM(model, num_blocks=128, attn=attn, block_size=4, audit=True) as llm:
            gang = llm.generate("in the beginning", sampled(4), use_tqdm=False)[0].outputs
            singles = [sampled(1, seed=branch_seed(1, branch)) for branch in range(4)]
            lone = llm.generate(["in the beginning"] * 4, singles, use_tqdm=False)
        assert [one.token_ids for one in gang] == [one.outputs[0].token_ids for one in lone]
        assert len({tuple(one.token_ids) for one in gang}) == 4


def test_a_gang_whose_logits_are_nan_fails_alone_and_once(plugins, drain):
    """All branches read one row, so all fail at once; and one branch that fails takes its gang, not its neighbour."""
    vocab = ByteTokenizer().vocab_size
    for broken_at in (0, 2):

        def table(index, broken_at=broken_at):
            row = torch.zeros(vocab)
            row[65] = 5.0
            return torch.full((vocab,), float("nan")) if index == broken_at else row

        sampler = plugins.create("sampler", "sample_torch", SamplerNeed("cpu", vocab, 32, (256,)))
        engine = build_engine(TableExecutor(table, sampler), EngineShape(), plugins=plugins)
        short = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
        engine.add_request("gang", [1, 2, 3], sampled(3, 6, stop_token_ids=[65]) if broken_at == 0 else sampled(3, 6))
        if broken_at:
            engine.add_request("mate", [4, 5], short, stream=True)
        outputs = drain(engine)
        assert {one.finish_reason for one in outputs["gang"].outputs} == {"error"}
        assert "NaN" in outputs["gang"].error
        if broken_at:
            assert outputs["mate"].outputs[0].finish_reason == "length"


def test_branches_that_end_together_give_one_output_a_step(shadow):
    engine = shadow()
    engine.add_request("r", [1, 2, 3], sampled(4, 3), stream=True)
    counts = []
    while engine.has_unfinished:
        counts.append(len(engine.step()))
    assert max(counts) == 1
