"""Jump-forward: forced tokens arrive several at a time, and nothing else about a request changes."""

from __future__ import annotations

import pytest

from paged_core.api.logits import LogitsProcessor
from paged_core.api.params import SamplingParams
from paged_core.engine.llm import LLM
from paged_core.testing.seams import PreemptNow
from paged_core.testing.tiny import write_tiny_llama

LINE = "the answer is in the other one"
FORCED = {"choice": [LINE]}
HALF = {"regex": "[ab]" + LINE + "[0-9]{3}, and" + LINE}
BOTH = ("xgrammar", "llguidance")


def params(wish, **more):
    return SamplingParams(**{"max_tokens": 100, "temperature": 1.0, "seed": 1, "structured_outputs": wish, **more})


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(write_tiny_llama(tmp_path_factory.mktemp("tiny")))


def opened(model, **settings):
    return LLM(model, **{"attn": "attn_torch", "num_blocks": 256, "max_num_seqs": 8, "audit": True, **settings})


def answer(llm, wish, **more):
    """The only answer, and the steps it took."""
    before = llm.engine.stats().num_steps
    (output,) = llm.generate(["a"], params(wish, **more), use_tqdm=False)
    llm.engine.check()
    assert output.error is None
    return output.outputs[0], llm.engine.stats().num_steps - before


@pytest.fixture(scope="module")
def jumping(model):
    with opened(model) as llm:
        yield llm


@pytest.mark.parametrize("backend", BOTH)
def test_forced_text_takes_few_steps_and_its_end_is_drawn(jumping, model, backend):
    wish = FORCED | {"backend": backend}
    got, steps = answer(jumping, wish)
    with opened(model, jump_forward=False) as llm:
        drawn, all_steps = answer(llm, wish)
    assert got.text == drawn.text == LINE
    assert got.finish_reason == "stop"
    assert all_steps == len(drawn.token_ids)
    assert steps == (3 if backend == "xgrammar" else 2)  # first token and what follows; xgrammar's last token; the end
    assert jumping.tokenizer.decode(got.token_ids) == LINE


@pytest.mark.parametrize("backend", BOTH)
@pytest.mark.parametrize("preempt", ["swap", "recompute"])
@pytest.mark.parametrize("budget", [None, 8])
def test_tokens_are_the_same_whatever_the_engine_does(jumping, model, backend, preempt, budget):
    wish = HALF | {"backend": backend}
    expected, _ = answer(jumping, wish)
    assert expected.text.count(LINE) == 2
    shape = {"preempt": preempt, "host_memory": "1MiB", "max_num_batched_tokens": budget, "block_size": 4}
    with opened(model, **shape) as llm:
        scheduler = PreemptNow(llm.engine._scheduler, lambda step, group: step % 3 == 2)
        llm.engine._scheduler = scheduler
        prompts = ["the other", "a", "xyz"]
        plain = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
        outputs = llm.generate(prompts, [plain, params(wish), plain], use_tqdm=False)
        llm.engine.check()
    assert scheduler.num_forced > 2
    assert outputs[1].outputs[0].token_ids == expected.token_ids


def test_max_tokens_cuts_inside_forced_tokens(jumping):
    whole, _ = answer(jumping, FORCED)
    for limit in (1, 2, 5):
        got, _ = answer(jumping, FORCED, max_tokens=limit)
        assert got.token_ids == whole.token_ids[:limit]
        assert got.finish_reason == "length"


def test_a_stop_string_inside_forced_text_ends_it_there(jumping):
    got, _ = answer(jumping, FORCED, stop=["is in"])
    assert (got.text, got.finish_reason, got.stop_reason) == ("the answer ", "stop", "is in")
    whole, _ = answer(jumping, FORCED)
    assert len(got.token_ids) < len(whole.token_ids) - 5


def test_a_stop_id_inside_forced_text_ends_it_there(jumping):
    whole, _ = answer(jumping, FORCED)
    stop = whole.token_ids[7]
    got, _ = answer(jumping, FORCED, stop_token_ids=[stop])
    assert got.token_ids == whole.token_ids[: whole.token_ids.index(stop) + 1]
    assert (got.finish_reason, got.stop_reason) == ("stop", stop)


def test_the_model_limit_cuts_inside_forced_tokens(model):
    with opened(model, max_model_len=12) as llm:
        got, _ = answer(llm, FORCED, max_tokens=None)
        assert (len(got.token_ids), got.finish_reason) == (11, "length")


def test_a_stream_shows_every_forced_token(jumping):
    outputs = list(jumping.stream("a", params(FORCED)))
    assert len(outputs) == 3
    assert len(outputs[0].outputs[0].token_ids) > 1
    assert outputs[-1].outputs[0].text == LINE


def test_penalties_count_forced_tokens(jumping):
    """A branch that is as likely as the other loses when the forced text before it used its token."""
    wish = {"regex": "xyyyyyyyyy(y|z)w"}
    z = jumping.tokenizer.encode("z", add_special_tokens=False)[0]
    y = jumping.tokenizer.encode("y", add_special_tokens=False)[0]
    bias = {y: 100.0, z: 90.0}
    assert answer(jumping, wish, temperature=0, logit_bias=bias)[0].text.endswith("yw")
    assert answer(jumping, wish, temperature=0, logit_bias=bias, frequency_penalty=2.0)[0].text.endswith("zw")


@pytest.mark.parametrize(
    "more", [{"logprobs": 0}, {"n": 2}, {"bad_words": ["q"]}, {"allowed_token_ids": list(range(320))}, {"best_of": 2}]
)
def test_where_every_token_counts_every_token_is_drawn(jumping, more):
    got, steps = answer(jumping, FORCED, **more)
    assert got.text == LINE
    assert steps > 15


class Forces(LogitsProcessor):
    """A caller's processor that forces "hi" after every token."""

    def __init__(self):
        self.last = None

    def apply(self, logits):
        """Allows everything."""

    def accept(self, tokens):
        self.last = tokens[-1]

    def forced(self):
        return [1000] if self.last is None else [self.last]


def test_a_callers_processor_may_force_as_well(jumping):
    with_it = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True, logits_processors=[Forces()])
    (output,) = jumping.generate(["a"], with_it, use_tqdm=False)
    tokens = output.outputs[0].token_ids
    assert len(tokens) == 9
    assert tokens[0::2][:4] == tokens[1::2]
