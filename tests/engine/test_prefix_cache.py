"""The prefix cache seen from outside: what is shared, what never is, and that answers do not change (laws 13 to 15)."""

from __future__ import annotations

import pytest

from paged_core.api.params import SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


@pytest.fixture
def ask(shadow, drain):
    """One engine with the cache on; `ask(prompt, **routing)` runs a prompt and returns (tokens, cached tokens)."""
    engine = shadow(num_blocks=256)

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
