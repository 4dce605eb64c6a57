"""The prefix cache seen from outside: what is shared, what never is, and that answers do not change (laws 13 to 15)."""

from __future__ import annotations

import random

import pytest

from paged_core.api.params import SamplingParams
from paged_core.engine.llm import LLM
from paged_core.testing.tiny import write_tiny_llama

GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
ALLOCATORS = ("alloc_cow", "alloc_radix")


@pytest.fixture(params=ALLOCATORS)
def ask(request, shadow, drain):
    """One engine with the cache on; `ask(prompt, **routing)` runs a prompt and returns (tokens, cached tokens)."""
    engine = shadow(num_blocks=256, alloc=request.param)

    def run(prompt, **routing):
        engine.add_request("r", list(prompt), GREEDY, **routing)
        output = drain(engine)["r"]
        return output.outputs[0].token_ids, output.num_cached_tokens

    run.engine = engine
    return run


def test_a10_a_full_prompt_hit_computes_a_token_and_keeps_the_chain(ask, cold):
    eight, twelve = b"abcdefgh", b"abcdefghijkl"
    assert ask(eight) == (cold(list(eight), 6), 0)
    tokens, hits = ask(eight)
    assert tokens == cold(list(eight), 6)
    assert hits == 7  # the last block of a full hit is copied: its last token is written
    tokens, hits = ask(twelve)
    assert tokens == cold(list(twelve), 6)
    assert hits == 8
    assert ask(twelve + b"mnop") == (cold(list(twelve + b"mnop"), 6), 12)


def test_museum_12_two_equal_prompts_in_one_step_share_nothing_unwritten(shadow, cold, drain):
    engine = shadow()
    for name in "ab":
        engine.add_request(name, list(b"twins are equal!"), GREEDY)
    outputs = drain(engine)
    assert [outputs[name].num_cached_tokens for name in "ab"] == [0, 0]
    expected = cold(list(b"twins are equal!"), 6)
    assert outputs["a"].outputs[0].token_ids == outputs["b"].outputs[0].token_ids == expected


def test_a12_an_aborted_prompt_publishes_only_what_was_computed(shadow, cold, drain):
    engine = shadow(token_budget=8, max_num_seqs=8)
    prompt = list(b"0123456789abcdefghij")
    engine.add_request("gone", prompt, GREEDY)
    engine.step()  # 8 of 20 tokens are computed
    engine.abort(["gone"])
    engine.add_request("next", prompt, GREEDY)
    output = drain(engine)["next"]
    assert output.num_cached_tokens == 8
    assert output.outputs[0].token_ids == cold(prompt, 6)
    never = shadow()
    never.add_request("gone", prompt, GREEDY)
    never.abort(["gone"])
    never.add_request("next", prompt, GREEDY)
    assert drain(never)["next"].num_cached_tokens == 0


def test_a14_an_adapter_and_a_salt_of_one_name_are_not_the_same_key(ask):
    prompt = b"the same prompt"
    assert ask(prompt, adapter="k1")[1] == 0
    assert ask(prompt, cache_salt="k1")[1] == 0
    assert ask(prompt)[1] == 0
    assert ask(prompt, adapter="k1")[1] > 0
    assert ask(prompt, cache_salt="k1")[1] > 0


def test_a17_tenants_with_different_salts_share_nothing(ask):
    prompt = b"sixteen tokens!!"
    hits = [ask(prompt, cache_salt=salt)[1] for salt in ("s1", "s2", None, "s1")]
    assert hits[:3] == [0, 0, 0]
    assert hits[3] > 0


def test_a18_a_shared_part_that_ends_inside_a_block_is_hit_to_its_end(ask, cold):
    first, second = b"0123456789" + b"qqqqqqqq", b"0123456789" + b"rrr"
    ask(first)
    tokens, hits = ask(second)
    assert tokens == cold(list(second), 6)
    assert hits == 10
    assert ask(first)[0] == cold(list(first), 6)


def common(one, other):
    """Tokens that both begin with."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


@pytest.mark.parametrize("alloc", ALLOCATORS)
@pytest.mark.parametrize("block_size", [1, 2, 3, 4, 5, 8, 16, 31, 64])
@pytest.mark.parametrize("token_budget", [16, 256])
def test_prompts_that_part_anywhere_hit_all_they_share_and_answer_as_when_cold(
    shadow, cold, drain, alloc, block_size, token_budget
):
    """With room for all of it, the hit is the longest beginning of any sequence before, cut at its last full block."""
    draw = random.Random(block_size)
    engine = shadow(num_blocks=256 + 1600 // block_size, alloc=alloc, block_size=block_size, token_budget=token_budget)
    known, counted = [], 0
    for i in range(30):
        base = draw.choice([[], *known])[: draw.randrange(40)]
        prompt = [*base, *(draw.choice(b"ab") for _ in range(draw.randrange(1, 12)))]
        engine.add_request(str(i), prompt, GREEDY)
        output = drain(engine)[str(i)]
        tokens = output.outputs[0].token_ids
        shared = max((min(common(prompt[:-1], one), len(one) // block_size * block_size) for one in known), default=0)
        inside = shared % block_size
        hits = shared if 16 * inside >= block_size else shared - inside
        assert (output.num_cached_tokens, tokens) == (hits, cold(prompt, 6))
        known.append([*prompt, *tokens[:-1]])
        counted += hits
    assert engine.stats().blocks.prefix_hits == counted
    assert counted > 0 or block_size > 31


@pytest.mark.parametrize("alloc", ALLOCATORS)
@pytest.mark.parametrize("block_size", [2, 3, 4, 16])
def test_newcomers_of_one_step_that_part_inside_one_block_answer_as_when_cold(shadow, cold, drain, alloc, block_size):
    shared = list(b"a system prompt that all of them begin with")
    engine = shadow(alloc=alloc, block_size=block_size, num_blocks=128)
    engine.add_request("first", [*shared, *b" first"], GREEDY)
    drain(engine)
    prompts = {str(i): [*shared, 65 + i, *b" others"] for i in range(6)}
    for name, prompt in prompts.items():
        engine.add_request(name, prompt, GREEDY)
    outputs = drain(engine)
    for name, prompt in prompts.items():
        assert outputs[name].outputs[0].token_ids == cold(prompt, 6)
        assert outputs[name].num_cached_tokens == len(shared)
    engine.add_request("again", [*shared, *b" first"], GREEDY)
    assert drain(engine)["again"].num_cached_tokens == len(shared) + 5


@pytest.mark.parametrize("alloc", ALLOCATORS)
@pytest.mark.parametrize("at", range(3))
def test_a12_a_guest_that_leaves_spoils_nothing_of_the_block_that_it_shared(shadow, cold, drain, alloc, at):
    """It is aborted after its copy was made, at any step of its prompt."""
    engine = shadow(alloc=alloc, token_budget=8, max_num_seqs=4)
    owner, guest = list(b"0123456789abcdef"), list(b"0123456789" + b"rrrrrrrrrrrrrrrrrrrr")
    engine.add_request("owner", owner, GREEDY)
    drain(engine)
    engine.add_request("guest", guest, GREEDY)
    for _ in range(at):
        engine.step()
    engine.abort(["guest"])
    engine.check()
    for name, prompt, hits in (("owner", owner, 15), ("guest", guest, [10, 16, 24][at])):
        engine.add_request(name, prompt, GREEDY)
        output = drain(engine)[name]
        assert output.outputs[0].token_ids == cold(prompt, 6)
        assert output.num_cached_tokens == hits


@pytest.mark.parametrize("alloc", ALLOCATORS)
def test_a_pool_that_holds_one_prompt_serves_prompts_that_part_inside_a_block(shadow, cold, drain, alloc):
    """Copies need a block beside their source; they never make impossible what fits alone."""
    engine = shadow(alloc=alloc, num_blocks=8, block_size=4)
    for i, length in enumerate([26, 26, 25, 22, 26, 18, 26]):
        prompt = [*b"0123456789abcdefghij"[:18], *(97 + i for _ in range(length - 18))]
        engine.add_request("r", prompt, GREEDY)
        output = drain(engine)["r"]
        assert output.outputs[0].token_ids == cold(prompt, 6)
        assert output.outputs[0].finish_reason == "length"
        assert output.error is None


@pytest.mark.parametrize("attn", ["attn_torch", "attn_cpu"])
@pytest.mark.parametrize(("alloc", "block_size"), [("alloc_cow", 16), ("alloc_radix", 4)])
def test_m20_a_real_model_answers_from_copied_blocks_as_from_its_own(tmp_path, attn, alloc, block_size):
    """Prompts that part inside a block, twice; between them one whose prompt log-probabilities bypass the cache."""
    folder = str(write_tiny_llama(tmp_path / "tiny"))
    prompts = ["the other one begins like " + end for end in ("this", "that one", "the rest", "this one")]
    greedy = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    shown = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True, prompt_logprobs=1)
    shape = {"attn": attn, "alloc": alloc, "block_size": block_size, "num_blocks": 128, "audit": True}
    with LLM(folder, prefix_cache=False, **shape) as llm:
        wanted = [llm.generate(prompt, greedy, use_tqdm=False)[0].outputs[0].token_ids for prompt in prompts]
        rows = llm.generate(prompts[0], shown, use_tqdm=False)[0].prompt_logprobs
    with LLM(folder, **shape) as llm:
        for _ in range(2):
            outputs = [llm.generate(prompt, greedy, use_tqdm=False)[0] for prompt in prompts]
            assert [output.outputs[0].token_ids for output in outputs] == wanted
            between = llm.generate(prompts[0], shown, use_tqdm=False)[0]
            assert between.num_cached_tokens == 0
            assert [row and set(row) for row in between.prompt_logprobs] == [row and set(row) for row in rows]
        assert [output.num_cached_tokens for output in outputs] == [len(out.prompt_token_ids) - 1 for out in outputs]
        assert llm.engine.stats().blocks.num_copies > 0


@pytest.mark.parametrize("num_prompt", range(1, 10))
@pytest.mark.parametrize("num_output", [1, 3, 4, 5])
def test_a05_a_last_token_at_any_place_of_a_block_leaves_exactly_the_pool(shadow, drain, num_prompt, num_output):
    engine = shadow()
    params = SamplingParams(temperature=0, max_tokens=num_output, ignore_eos=True)
    engine.add_request("r", list(range(1, num_prompt + 1)), params)
    drain(engine)
    blocks = engine.stats().blocks
    assert blocks.free == blocks.total


def test_m25_tokens_do_not_change_with_the_number_of_mates(shadow, cold, drain):
    prompt = list(b"the one that is watched")
    expected = cold(prompt, 6)
    for mates in (0, 1, 3, 7, 15):
        engine = shadow(num_blocks=512, token_budget=512)
        for i in range(mates):
            engine.add_request(f"mate{i}", list(range(1, 2 + i * 3)), GREEDY)
        engine.add_request("r", prompt, GREEDY)
        assert drain(engine)["r"].outputs[0].token_ids == expected


def test_generated_tokens_are_found_again_by_the_next_turn_of_a_conversation(ask):
    tokens, _ = ask(b"question?")
    turn = [*b"question?", *tokens, *b" and then?"]
    assert ask(turn)[1] == (len(b"question?") + 6 - 1) // 4 * 4
