"""Structured output through the engine, on a random model that would never write any of this by itself."""

from __future__ import annotations

import json
import re

import pytest

from paged_core.api.logits import LogitsProcessor
from paged_core.api.params import SamplingParams
from paged_core.engine.llm import LLM
from paged_core.errors import RequestError
from paged_core.structured.processor import GrammarProcessor
from paged_core.testing.seams import PreemptNow
from paged_core.testing.tiny import write_tiny_llama

BOTH = ("xgrammar", "llguidance")
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"enum": ["Ann", "Bé"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["red", "blue"]}, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
WISHES = {
    "json": {"json": SCHEMA, "disable_any_whitespace": True},
    "regex": {"regex": "[a-c]{3,5}-(x|yz){2}"},
    "choice": {"choice": ["the", "then", "é😀", "other"]},
    "grammar": {"grammar": 'root ::= "(" root ")" | [0-9] | [0-9] "+" root'},
}
WIDE = {"type": "object", "properties": {f"k{i}": {"type": "string"} for i in range(3000)}}


def obeys(kind, text):
    """Judged without any grammar library."""
    if kind == "json":
        value = json.loads(text)
        return (
            list(value) == ["name", "age", "tags"]
            and value["name"] in ("Ann", "Bé")
            and type(value["age"]) is int
            and 0 <= value["age"] <= 120
            and len(value["tags"]) <= 2
            and set(value["tags"]) <= {"red", "blue"}
        )
    if kind == "regex":
        return re.fullmatch(WISHES["regex"]["regex"], text) is not None
    if kind == "choice":
        return text in WISHES["choice"]["choice"]
    flat = text.replace("(", "").replace(")", "")
    return re.fullmatch(r"\d(\+\d)*", flat) is not None and text.count("(") == text.count(")")


def params(wish, **more):
    return SamplingParams(**{"max_tokens": 90, "temperature": 1.0, "seed": 1, "structured_outputs": wish, **more})


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(write_tiny_llama(tmp_path_factory.mktemp("tiny")))


@pytest.fixture(scope="module")
def llm(model):
    with LLM(model, attn="attn_torch", num_blocks=256, max_num_seqs=16, audit=True, seed=0) as made:
        yield made
        made.engine.check()


def run(llm, requests):
    """Answers of (prompt, params), in order."""
    prompts, wishes = zip(*requests, strict=True)
    outputs = llm.generate(list(prompts), list(wishes), use_tqdm=False)
    llm.engine.check()
    return outputs


@pytest.mark.parametrize("backend", BOTH)
@pytest.mark.parametrize("kind", WISHES)
def test_whatever_is_drawn_obeys(llm, kind, backend):
    wish = WISHES[kind] | {"backend": backend}
    outputs = run(llm, [("in the", params(wish, seed=seed)) for seed in range(8)])
    ended = [one.outputs[0] for one in outputs if one.outputs[0].finish_reason == "stop"]
    assert all(one.error is None for one in outputs)
    assert len(ended) >= 4  # the grammar is recursive: a few draws may nest until max_tokens
    assert [one.text for one in ended if not obeys(kind, one.text)] == []


def test_strings_of_limited_length_are_strings_of_json(llm):
    schema = {"type": "array", "items": {"type": "string", "maxLength": 4}, "minItems": 2, "maxItems": 2}
    wish = {"json": schema, "disable_any_whitespace": True}
    for output in run(llm, [("in the", params(wish, seed=seed)) for seed in range(8)]):
        assert [len(one) <= 4 for one in json.loads(output.outputs[0].text)] == [True, True]


def test_greedy_text_of_a_request_is_the_same_alone_and_among_others(llm, model):
    requests = [(prompt, params(WISHES["json"], temperature=0)) for prompt in ("the", "an", "xyz", "in")]
    requests += [("a", params(wish, temperature=0)) for wish in WISHES.values()]
    requests += [
        ("the other", params(WISHES["json"], temperature=0)),
        ("xyz", params(None, temperature=0, max_tokens=40)),
    ]
    together = [one.outputs[0].token_ids for one in run(llm, requests)]
    assert [run(llm, [request])[0].outputs[0].token_ids for request in requests] == together
    small = {"num_blocks": 16, "block_size": 4, "max_num_batched_tokens": 16, "max_num_seqs": 4}
    with LLM(model, attn="attn_cpu", preempt="recompute", audit=True, **small) as other:
        for _ in range(2):  # the second time all grammars are there, and everything runs at once
            assert [one.outputs[0].token_ids for one in run(other, requests)] == together
        assert sum(other.engine.stats().preemptions.values()) > 0  # four of 30 tokens in a pool of 64


@pytest.mark.parametrize("preempt", ["swap", "recompute"])
def test_preemption_does_not_touch_the_grammar(llm, model, preempt):
    request = ("the", params(WISHES["json"], n=3))
    (expected,) = run(llm, [request])
    with LLM(model, attn="attn_torch", num_blocks=256, preempt=preempt, host_memory="1MiB", audit=True) as other:
        scheduler = PreemptNow(other.engine._scheduler, lambda step, group: step % 5 == 3)
        other.engine._scheduler = scheduler
        (got,) = run(other, [request])
    assert scheduler.num_forced > 2
    assert [one.token_ids for one in got.outputs] == [one.token_ids for one in expected.outputs]


def test_every_branch_follows_the_grammar_by_itself(llm):
    (output,) = run(llm, [("an", params(WISHES["json"], n=4))])
    texts = [one.text for one in output.outputs]
    assert len(set(texts)) == 4
    assert all(obeys("json", text) for text in texts)
    (best,) = run(llm, [("an", params(WISHES["json"], n=1, best_of=4))])
    assert best.outputs[0].text in texts


def test_beams_follow_the_grammar(llm):
    wish = WISHES["choice"]
    (output,) = run(llm, [("an", params(wish, temperature=0, seed=None, use_beam_search=True, n=3))])
    assert sorted(one.text for one in output.outputs) != []
    assert [one.text for one in output.outputs if not obeys("choice", one.text)] == []
    assert len({tuple(one.token_ids) for one in output.outputs}) == 3  # one text may be cut into tokens in many ways


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        ({"regex": "(?=a)b", "backend": "xgrammar"}, "Lookahead is not supported"),
        ({"regex": "(?=a)b"}, "look-around"),
        ({"grammar": "root ::="}, "EBNF parser error"),
        ({"json": {"uniqueItems": True}}, "Unimplemented keys"),
        ({"json": {"type": "integer", "minimum": 5, "maximum": 3}}, "greater than maximum"),
    ],
)
def test_t01_what_cannot_be_compiled_ends_its_request_only(llm, wish, said):
    bad, good = run(llm, [("a", params(wish)), ("a", params(WISHES["choice"]))])
    assert bad.outputs[0].finish_reason == "error"
    assert said in bad.error
    assert bad.error.startswith("structured_outputs: the ")
    assert bad.outputs[0].token_ids == []
    assert obeys("choice", good.outputs[0].text)


def test_t01_what_is_wrong_at_sight_is_refused_at_once(llm):
    with pytest.raises(RequestError):
        params({"regex": "("})
    assert not llm.engine.has_unfinished
    assert obeys("choice", run(llm, [("a", params(WISHES["choice"]))])[0].outputs[0].text)


class RejectsTheThird(LogitsProcessor):
    """A grammar that changes its mind."""

    def __init__(self):
        self.num = 0

    def apply(self, logits):
        """Allows everything."""

    def accept(self, tokens):
        self.num += len(tokens)
        if self.num == 3:
            raise ValueError("the grammar rejects the third token")


class FaultyMatcher:
    def __init__(self, inner):
        self.inner, self.num = inner, 0

    def fill(self, words):
        self.inner.fill(words)

    def accept(self, token):
        self.num += 1
        return self.num < 3 and self.inner.accept(token)


class FaultyGrammar:
    num_bytes = 1

    def __init__(self, inner):
        self.inner = inner

    def matcher(self):
        return FaultyMatcher(self.inner.matcher())


def grammar_that_rejects_the_third(llm):
    from paged_core.structured.spec import GrammarSpec

    compiler = llm.engine._compiling._opened()
    return GrammarProcessor(FaultyGrammar(compiler.submit(GrammarSpec("xgrammar", "regex", "[ab]{5}", False)).result()))


@pytest.mark.parametrize("make", [lambda llm: RejectsTheThird(), grammar_that_rejects_the_third])
def test_t03_a_rejected_token_ends_the_stream_with_an_error(llm, make):
    rejecting = params(None, ignore_eos=True, logits_processors=[make(llm)])
    outputs = list(llm.stream("a", rejecting))
    assert outputs[-1].finished
    assert outputs[-1].outputs[0].finish_reason == "error"
    assert re.search(r"rejects the third token|does not allow token \d+ as number 3", outputs[-1].error)
    assert len(outputs[-1].outputs[0].token_ids) == 2
    assert not llm.engine.has_unfinished
    llm.engine.check()


@pytest.mark.parametrize("maximum", [2**31, 2**53, 2**63, 1e30])
def test_t05_a_large_bound_is_obeyed(llm, maximum):
    wish = {"json": {"type": "integer", "minimum": 0, "maximum": maximum}}
    (output,) = run(llm, [("a", params(wish))])
    assert output.error is None
    assert 0 <= int(output.outputs[0].text) <= maximum


def test_an_explosive_schema_fails_alone_while_its_neighbour_runs(model):
    neighbour = ("the", SamplingParams(temperature=0, max_tokens=40, ignore_eos=True))
    with LLM(model, attn="attn_torch", num_blocks=256, structured_timeout=2.0, audit=True) as llm:
        engine = llm.engine
        engine.add_request("boom", "a", params({"json": WIDE, "backend": "xgrammar"}))
        engine.add_request("next", *neighbour)
        steps, ended = 0, {}
        while "next" not in ended:
            steps += 1
            ended |= {output.request_id: output for output in engine.step() if output.finished}
        assert steps < 60  # it never waited for the compiler
        assert "boom" not in ended
        assert engine.stats().num_waiting == 1
        while engine.has_unfinished:
            ended |= {output.request_id: output for output in engine.step() if output.finished}
        assert "takes more than" in ended["boom"].error
        engine.check()
        assert run(llm, [neighbour])[0].outputs[0].token_ids == ended["next"].outputs[0].token_ids
        assert obeys("choice", run(llm, [("a", params(WISHES["choice"]))])[0].outputs[0].text)


def test_a_waiting_request_can_be_aborted_and_its_id_is_taken(model):
    with LLM(model, attn="attn_torch", num_blocks=64, structured_timeout=60.0) as llm:
        engine = llm.engine
        wish = params({"json": WIDE, "backend": "xgrammar"})
        engine.add_request("slow", "a", wish, stream=True)
        with pytest.raises(RequestError, match="already in use"):
            engine.add_request("slow", "a", wish)
        assert engine.unfinished_ids == ["slow"]
        assert engine.step() == []
        (output,) = engine.abort(["slow"])
        assert (output.finished, output.outputs[0].finish_reason) == (True, "abort")
        assert not engine.has_unfinished
        engine.check()
        engine.add_request("late", "a", wish, deadline=0.0)
        (output,) = engine.step()
        assert (output.request_id, output.error) == ("late", "its deadline passed")
        engine.add_request("slow", "a", wish)  # and closing does not wait for the compiler


def test_the_second_request_for_a_grammar_does_not_wait(llm):
    wish = params(WISHES["regex"])
    run(llm, [("a", wish)])
    before = llm.engine._compiling._opened().num_compiled
    llm.engine.add_request("again", "a", wish)
    assert len(llm.engine._compiling) == 0
    while llm.engine.has_unfinished:
        llm.engine.step()
    assert llm.engine._compiling._opened().num_compiled == before


def test_min_tokens_and_allowed_tokens_that_leave_nothing_end_the_request(llm):
    too_short = params({"choice": ["the"]}, min_tokens=50)
    never = params({"choice": ["the"]}, allowed_token_ids=[ord("x"), 256])
    biased = params({"choice": ["the", "x"]}, logit_bias={87: 100.0}, temperature=0)
    first, second, third = run(llm, [("a", too_short), ("a", never), ("a", biased)])
    assert "no token can be sampled" in first.error
    assert "no token can be sampled" in second.error
    assert third.error is None


@pytest.mark.parametrize("backend", BOTH)
@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logprobs"])
def test_m09_log_probabilities_beside_a_grammar_can_be_written_as_json(model, backend, mode):
    """All but a handful of tokens are masked; the drawn one is always listed."""
    wish = {"choice": ["the", "é"], "backend": backend}
    with LLM(model, attn="attn_torch", num_blocks=64, logprobs_mode=mode) as llm:
        (output,) = run(llm, [("a", params(wish, logprobs=5))])
    (one,) = output.outputs
    assert one.text in ("the", "é")
    assert len(one.logprobs) == len(one.token_ids) > 1
    for entry, token in zip(one.logprobs, one.token_ids, strict=True):
        assert token in entry
        assert len(entry) in (5, 6)
        values = [each.logprob for each in entry.values()]
        json.dumps(values, allow_nan=False)
        assert (min(values) == -9999.0) == (mode == "processed_logprobs")


def test_a_user_processor_runs_after_the_grammar(llm):
    seen = []

    class Looks(LogitsProcessor):
        def apply(self, logits):
            seen.append(int((logits > float("-inf")).sum()))

    run(llm, [("a", params({"choice": ["q"]}, logits_processors=[Looks()]))])
    assert seen == [1, 1]


def test_a_sampler_without_processors_refuses(llm):
    from dataclasses import replace

    from paged_core.engine.intake import Intake

    facts = replace(llm.engine.facts, sampler_capabilities=frozenset())
    with pytest.raises(RequestError, match="structured_outputs needs a sampler"):
        Intake(llm.tokenizer, facts).request("r", "a", params({"choice": ["q"]}, seed=None), 0.0)


def test_a_tokenizer_without_an_end_refuses(llm, monkeypatch):
    monkeypatch.setattr(llm.engine._compiling, "_compiler", None)
    monkeypatch.setattr(llm.tokenizer, "eos_token_ids", ())
    with pytest.raises(RequestError, match="has none"):
        llm.engine.add_request("r", "a", params({"choice": ["q"]}))
    assert not llm.engine.has_unfinished


async def _all(llm, wishes):
    import asyncio

    async def one(wish):
        last = None
        async for output in llm.generate("a", wish):
            last = output
        return last

    return await asyncio.gather(*map(one, wishes))


def test_async_requests_of_every_kind_at_once(model):
    from paged_core.engine.aio import AsyncLLM
    from paged_core.engine.aio import run as run_async

    llm = AsyncLLM(model, attn="attn_torch", num_blocks=256, max_num_seqs=16)
    try:
        wishes = [params(wish, seed=seed) for wish in (WISHES["json"], WISHES["choice"]) for seed in range(4)]
        outputs = run_async(_all(llm, wishes))
    finally:
        llm.shutdown()
    assert [one.error for one in outputs] == [None] * 8
    assert all(obeys("json", one.outputs[0].text) for one in outputs[:4])
    assert all(obeys("choice", one.outputs[0].text) for one in outputs[4:])
