"""Law 15 over the shadow executor: tokens depend on nothing but the prompt, whatever the engine does.

The matrix runs with the real sampler and real grammars over logits that hash what a draw reads (ShadowLogits).
"""

from __future__ import annotations

import json
import random
import re
from functools import cache

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paged_core.api.params import SamplingParams
from paged_core.testing.seams import PreemptNow
from paged_core.testing.tokenizer import ByteTokenizer

PROMPTS = [
    [65],
    list(b"hello"),
    list(b"hello world"),
    list(b"hello world, again"),
    list(b"abcdefgh"),
    list(b"abcdefghi"),
    list(b"0123456789abcdef0123456789"),
]
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)

XGRAMMAR = {"regex": "[ab]the answer is [0-9]{2}", "backend": "xgrammar"}  # of 18 letters 15 are forced
LLGUIDANCE = {"regex": "(yes|no), (on )?[x-z]{2}", "backend": "llguidance"}
SCHEMA = {"type": "array", "items": {"enum": [1, "re", None]}, "minItems": 2, "maxItems": 2}
JSON = {"json": SCHEMA, "disable_any_whitespace": True}

KINDS = {  # every kind of request goes through the whole matrix: enter a new one here
    "greedy": SamplingParams(temperature=0, max_tokens=9, ignore_eos=True),
    "drawn": SamplingParams(temperature=1, seed=5, max_tokens=9, ignore_eos=True),
    "three": SamplingParams(temperature=1, seed=7, n=3, max_tokens=7, ignore_eos=True),
    "ends": SamplingParams(temperature=1, seed=17, n=3, stop_token_ids=list(range(40)), max_tokens=14),
    "stops": SamplingParams(temperature=1, seed=19, stop=["e", "4", "Q", "zz", "\x01"], max_tokens=16),
    "beams": SamplingParams(temperature=0, use_beam_search=True, beam_width=3, n=2, max_tokens=6),
    "edited": SamplingParams(
        temperature=0.7, seed=3, n=2, top_k=40, min_p=0.02, repetition_penalty=1.3, frequency_penalty=0.5,
        logit_bias={101: 3.0}, bad_words=["e e"], max_tokens=8,
    ),
    "form": SamplingParams(temperature=0, max_tokens=22, structured_outputs=XGRAMMAR),
    "form drawn": SamplingParams(temperature=1, seed=11, max_tokens=22, structured_outputs=LLGUIDANCE),
    "form cut": SamplingParams(temperature=1, seed=2, max_tokens=9, structured_outputs=XGRAMMAR),
    "three forms": SamplingParams(temperature=1, seed=13, n=3, max_tokens=14, structured_outputs=JSON),
    "form beams": SamplingParams(
        temperature=0, use_beam_search=True, beam_width=3, n=2, max_tokens=12, structured_outputs=LLGUIDANCE
    ),
}  # fmt: skip
WAITING = {kind for kind in KINDS if "form" in kind or "beams" in kind}  # the next step needs their tokens
STREAMED = set(KINDS) - {"beams", "form beams"}
SCHEDULERS = ["fcfs", "prefix", "prefill_first", "no_evict", "max_utilization", "peak", "priority"]
MIXES = {  # batch mate by batch mate: (kind, prompt)
    "alone": [("three", PROMPTS[6])],
    "one prompt": [(kind, PROMPTS[5]) for kind in KINDS],
    "parting": [
        ("greedy", list(b"one two three four")),
        ("three", list(b"one two three five!")),
        ("beams", list(b"one two seven")),
        ("drawn", list(b"one two three")),
        ("form drawn", list(b"one two three six")),
        ("three forms", list(b"one two three five?")),
    ],
    "lengths": [
        ("form", PROMPTS[0]), ("three forms", PROMPTS[6]), ("greedy", PROMPTS[0]), ("three", PROMPTS[1]),
        ("form beams", PROMPTS[2]), ("drawn", PROMPTS[6]), ("beams", PROMPTS[3]), ("edited", PROMPTS[3]),
    ],
}  # fmt: skip
PREEMPTED = [
    *((4, mix) for mix in ("one prompt", "parting", "lengths")),
    *(pytest.param(size, mix, marks=pytest.mark.slow) for size, mix in ((1, "one prompt"), (16, "lengths"))),
]
WARMTH = ("off", "cold", "warm")


def branches(output):
    """What a request answered: the tokens of each of its sequences."""
    return [one.token_ids for one in output.outputs]


@pytest.fixture(scope="module")
def expected(logits):
    """The answer of a request alone on a fresh engine: prefix cache off, ample pool, nothing cut or preempted."""

    @cache
    def answer(kind, prompt, jump_forward):
        engine = logits(prefix_cache=False, num_blocks=256, jump_forward=jump_forward)
        engine.add_request("r", list(prompt), KINDS[kind])
        outputs = []
        while engine.has_unfinished:
            outputs += engine.step()
        assert outputs[0].error is None
        return branches(outputs[0])

    return answer


class Once:
    """Preempts one running request of its choice at one step."""

    def __init__(self):
        self.at, self.victim, self.num_forced = None, None, 0

    def arm(self, at, victim):
        self.at, self.victim = at, victim

    def __call__(self, step, group):
        hit = self.at is not None and step >= self.at and group.id == self.victim
        if hit:
            self.at = None
            self.num_forced += 1
        return hit


def play(engine, finish, mix, name, stream):
    """The answers of one batch; with `stream` every second request is streamed and its last output compared."""
    drain, expected = finish
    for i, (kind, prompt) in enumerate(mix):
        engine.add_request(f"{name}{i}", prompt, KINDS[kind], stream=stream and i % 2 == 0 and kind in STREAMED)
    outputs = drain(engine)
    jump = engine.facts.jump_forward
    for i, (kind, prompt) in enumerate(mix):
        assert branches(outputs[f"{name}{i}"]) == expected(kind, tuple(prompt), jump), f"{kind} {bytes(prompt)}"


@pytest.fixture
def finish(drain, expected):
    return drain, expected


def test_the_kinds_differ_from_one_another_and_follow_their_forms(expected):
    """Or the matrix would compare constants."""
    decode, prompt = ByteTokenizer().decode, tuple(PROMPTS[5])
    tokens = {kind: expected(kind, prompt, True) for kind in KINDS}
    text = {kind: [decode(one) for one in each] for kind, each in tokens.items()}
    assert {kind: len(set(map(tuple, each))) for kind, each in tokens.items()} == {
        kind: KINDS[kind].n for kind in KINDS
    }
    assert re.fullmatch("[ab]the answer is [0-9]{2}", text["form"][0])
    assert re.match("[ab]the ans", text["form cut"][0])
    for one in text["form drawn"] + text["form beams"]:
        assert re.fullmatch(LLGUIDANCE["regex"], one)
    assert all(set(json.loads(one)) <= {1, "re", None} for one in text["three forms"])
    jumped, drawn = (expected("form", prompt, jump)[0] for jump in (True, False))
    assert len(jumped) != len(drawn), "what is forced is cut into tokens as the text is encoded"


@pytest.mark.parametrize("alloc", ["alloc_cow", "alloc_radix"])
@pytest.mark.parametrize("block_size", [1, 3, 4, 16, 64])
@pytest.mark.parametrize("warmth", WARMTH)
@pytest.mark.parametrize("token_budget", [11, 64])
def test_any_block_size_mix_cache_and_chunking_gives_the_tokens_of_a_request_alone(
    logits, finish, alloc, block_size, warmth, token_budget
):
    for i, mix in enumerate(MIXES.values()):
        engine = logits(
            alloc=alloc, block_size=block_size, prefix_cache=warmth != "off", token_budget=token_budget,
            max_num_seqs=11, num_blocks=256, jump_forward=(i + block_size) % 3 != 0,
            in_flight=1 + (i + block_size + token_budget) % 2,
        )  # fmt: skip
        for name in ("first", "second") if warmth == "warm" else ("only",):
            play(engine, finish, mix, name, stream=token_budget == 11)
        hits = engine.stats().blocks.prefix_hits
        assert warmth != "off" or hits == 0
        assert warmth != "warm" or block_size > 8 or hits > 0


@pytest.mark.parametrize("alloc", ["alloc_cow", "alloc_radix"])
@pytest.mark.parametrize("preempt", ["preempt_recompute", "preempt_swap"])
@pytest.mark.parametrize(("block_size", "mix"), PREEMPTED)
@pytest.mark.parametrize("warmth", WARMTH)
def test_preempted_at_every_step_gives_the_tokens_of_a_request_alone(
    logits, finish, alloc, preempt, block_size, warmth, mix
):
    """Each member of the batch in turn is the victim; together they meet every step. Steps in which the one allocator
    sees prompts in chunks the other sees without."""
    when = Once()
    for at in (*range(1, 13), 15, 18, 21):  # forms drawn token by token take longest
        engine = logits(
            wrap=lambda inner: PreemptNow(inner, when), alloc=alloc, preempt=preempt, block_size=block_size,
            prefix_cache=warmth != "off", token_budget=(11, 64)[(at + (alloc == "alloc_cow")) % 2], max_num_seqs=11,
            num_blocks=512 // block_size, jump_forward=at % 3 != 0, in_flight=1 + at // 2 % 2,
        )  # fmt: skip
        if warmth == "warm":
            play(engine, finish, MIXES[mix], "first", stream=False)
        when.arm(engine.stats().num_steps + at, f"r{at % len(MIXES[mix])}")
        play(engine, finish, MIXES[mix], "r", stream=at % 2 == 0)
    assert when.num_forced >= 6


def test_swap_without_host_room_degrades_to_recompute_and_says_so_once(shadow, cold, drain, caplog):
    engine = shadow(
        wrap=lambda inner: PreemptNow(inner, lambda step, group: step in (3, 6)),
        preempt="preempt_swap",
        num_host_blocks=2,
    )
    for i, prompt in enumerate(PROMPTS[2:5]):
        engine.add_request(str(i), prompt, GREEDY)
    with caplog.at_level("WARNING"):
        outputs = drain(engine)
    for i, prompt in enumerate(PROMPTS[2:5]):
        assert outputs[str(i)].outputs[0].token_ids == cold(prompt, 12)
    assert engine.stats().preemptions["recompute"] > 0


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=st.data(),
    block_size=st.sampled_from([1, 2, 4, 5]),
    preempt=st.sampled_from(["preempt_recompute", "preempt_swap"]),
    prefix_cache=st.booleans(),
    token_budget=st.integers(4, 40),
)
def test_overcommitted_pool_with_aborts_loses_nothing(
    shadow, cold, drain, data, block_size, preempt, prefix_cache, token_budget
):
    """Random arrivals on a pool too small for them: survivors equal the cold run and nothing leaks."""
    num_blocks = data.draw(st.integers(-(-40 // block_size), -(-90 // block_size)))
    engine = shadow(
        block_size=block_size,
        num_blocks=num_blocks,
        num_host_blocks=data.draw(st.sampled_from([0, 4, 64])) if preempt == "preempt_swap" else 0,
        preempt=preempt,
        prefix_cache=prefix_cache,
        token_budget=token_budget,
        max_num_seqs=min(token_budget, 16),
    )
    wanted = {}
    for i in range(data.draw(st.integers(2, 8))):
        prompt = data.draw(st.sampled_from(PROMPTS))
        length = data.draw(st.integers(1, 12))
        wanted[str(i)] = (prompt, length)
        engine.add_request(str(i), prompt, SamplingParams(temperature=0, max_tokens=length, ignore_eos=True))
    finished = {}
    for _ in range(data.draw(st.integers(0, 10))):
        if data.draw(st.integers(0, 4)) == 0:
            victim = data.draw(st.sampled_from(sorted(wanted)))
            for output in engine.abort([victim, "never was"]):
                assert output.outputs[0].finish_reason == "abort"
                wanted.pop(victim)
            if not wanted:
                break
        finished |= {output.request_id: output for output in engine.step() if output.finished}
    finished |= drain(engine)
    for request_id, (prompt, length) in wanted.items():
        assert finished[request_id].outputs[0].token_ids == cold(prompt, length)


def drawn_shape(draw):
    """Sizes and plugins of an engine, its pool between one and two of the largest requests."""
    block_size, budget = draw.choice([1, 2, 3, 4, 5, 8, 16]), draw.choice([6, 11, 16, 40, 64])
    return {
        "alloc": draw.choice(["alloc_cow", "alloc_radix"]),
        "preempt": draw.choice(["preempt_recompute", "preempt_swap"]),
        "sched": draw.choice(SCHEDULERS),
        "block_size": block_size,
        "num_blocks": draw.randrange(-(-110 // block_size), 1 - (-220 // block_size)),
        "num_host_blocks": draw.choice([0, 4, 64, 200]),
        "prefix_cache": draw.random() < 0.7,
        "token_budget": budget,
        "max_num_seqs": min(16, budget),
        "jump_forward": draw.random() < 0.7,
    }


@pytest.mark.parametrize("in_flight", [1, 2])
@pytest.mark.parametrize("seed", range(48))
def test_requests_of_every_kind_on_any_engine_answer_as_alone_and_leave_nothing(logits, finish, seed, in_flight):
    """Nothing here is chosen by hand: kinds, arrivals, engine, aborts, deadlines and forced preemptions are all drawn.
    With two steps in flight, every second engine has only requests that do not keep the next step waiting."""
    drain, expected = finish
    draw = random.Random(seed)
    rate, shape = draw.choice([0, 0.01, 0.05]), drawn_shape(draw)
    engine = logits(
        wrap=lambda inner: PreemptNow(inner, lambda step, group: draw.random() < rate), in_flight=in_flight, **shape
    )
    kinds = list(KINDS) if in_flight == 1 or seed % 2 else [kind for kind in KINDS if kind not in WAITING]
    wanted, finished = {}, {}
    for i in range(draw.randrange(3, 14)):
        kind, prompt = draw.choice(kinds), draw.choice(PROMPTS)
        late = engine._clock.now() + draw.random() * 0.01 if draw.random() < 0.1 else None
        stream = kind in STREAMED and draw.random() < 0.4
        engine.add_request(str(i), prompt, KINDS[kind], stream=stream, deadline=late)
        wanted[str(i)] = kind, tuple(prompt)
        for _ in range(draw.randrange(4)):
            finished |= {output.request_id: output for output in engine.step() if output.finished}
        if draw.random() < 0.1:
            for output in engine.abort([draw.choice(list(wanted))]):
                del wanted[output.request_id]
    finished |= drain(engine)
    for name, (kind, prompt) in wanted.items():
        if finished[name].error is None:  # it met its deadline
            assert branches(finished[name]) == expected(kind, prompt, shape["jump_forward"]), f"{name}: {kind}, {shape}"
    blocks = engine.stats().blocks
    assert (blocks.free, blocks.host_free) == (blocks.total, blocks.host_total)
