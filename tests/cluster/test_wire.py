"""Cut by one end and joined by the other, outputs are what they were; and no part of them travels twice."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paged_core.api.flat_logprobs import FlatLogprobs
from paged_core.api.output import CompletionOutput, Logprob, RequestOutput
from paged_core.cluster.wire import Cutter, Joiner

IDS = [[1, 2, 3], [4]]


@st.composite
def grown(draw):
    """The outputs of a call with two prompts of two branches each, in an order in which an engine could give them."""
    flat, logged = draw(st.booleans()), draw(st.booleans())
    kind = FlatLogprobs if flat else list
    branches = {
        (prompt, i): CompletionOutput(i, "", [], 0.0, kind([]) if logged else None) for prompt in (0, 1) for i in (0, 1)
    }
    found = []
    for _ in range(draw(st.integers(1, 8))):
        prompt = draw(st.integers(0, 1))
        for i in (0, 1):
            tokens = draw(st.lists(st.integers(0, 99), max_size=3))
            old = branches[prompt, i]
            more = [{token: Logprob(-1.0 - token, 1, str(token))} for token in tokens]
            branches[prompt, i] = replace(
                old,
                text=old.text + "".join(map(str, tokens[1:])),  # some characters are held back
                token_ids=old.token_ids + tokens,
                cumulative_logprob=old.cumulative_logprob - len(tokens),
                logprobs=kind([*old.logprobs, *more]) if logged else None,
                finish_reason=draw(st.sampled_from([None, "length"])),
            )
        prompt_logprobs = kind([None, {2: Logprob(-1.0)}]) if logged else None
        outputs = [branches[prompt, i] for i in (0, 1)]
        found.append((prompt, RequestOutput(f"r{prompt}", None, IDS[prompt], outputs, False, prompt_logprobs)))
    return found


@given(grown())
def test_what_is_joined_is_what_was_cut(outputs):
    cutter, joiner, seen = Cutter(), Joiner(IDS), []
    for index, output in outputs:
        answer = pickle.loads(pickle.dumps(cutter.cut(index, output)))
        assert answer.output.prompt_token_ids == []
        seen.append((answer.index, joiner.join(answer)))
    assert seen == outputs  # the earlier ones, too: a reader's output does not grow behind its back


@given(grown())
def test_every_token_travels_once(outputs):
    cutter = Cutter()
    answers = [cutter.cut(index, output) for index, output in outputs]
    sent = sum(len(branch.token_ids) for answer in answers for branch in answer.output.outputs)
    last = dict(outputs)
    assert sent == sum(len(branch.token_ids) for output in last.values() for branch in output.outputs)
    told = [answer.index for answer in answers if answer.output.prompt_logprobs is not None]
    assert len(told) == len(set(told))


def test_the_engine_s_output_is_left_alone():
    branch = CompletionOutput(0, "ab", [1, 2])
    output = RequestOutput("r", None, [1, 2, 3], [branch], False)
    cutter = Cutter()
    cutter.cut(0, output)
    assert cutter.cut(0, output).output.outputs == [CompletionOutput(0, "", [])]
    assert output == RequestOutput("r", None, [1, 2, 3], [CompletionOutput(0, "ab", [1, 2])], False)
    assert output.prompt_token_ids == [1, 2, 3]


@pytest.mark.parametrize("index", [0, 1])
def test_prompts_are_not_mixed_up(index):
    cutter, joiner = Cutter(), Joiner(IDS)
    for prompt in (0, 1):
        output = RequestOutput("r", None, IDS[prompt], [CompletionOutput(0, f"text {prompt}", [prompt])], False)
        assert joiner.join(cutter.cut(prompt, output)) == output
