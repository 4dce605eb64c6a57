"""Law 15 over the shadow executor: tokens depend on nothing but the prompt, whatever the engine does."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paged_core.api.params import SamplingParams
from paged_core.testing.seams import PreemptNow

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


@pytest.mark.parametrize("block_size", [1, 2, 3, 4, 16, 64])
@pytest.mark.parametrize("prefix_cache", [True, False])
@pytest.mark.parametrize("token_budget", [8, 11, 64])
def test_any_block_size_cache_and_chunking_gives_the_cold_tokens(
    shadow, cold, drain, block_size, prefix_cache, token_budget
):
    engine = shadow(block_size=block_size, prefix_cache=prefix_cache, token_budget=token_budget, num_blocks=256)
    for warm in range(2):
        for i, prompt in enumerate(PROMPTS):
            engine.add_request(f"{warm}-{i}", prompt, GREEDY)
        outputs = drain(engine)
        for i, prompt in enumerate(PROMPTS):
            assert outputs[f"{warm}-{i}"].outputs[0].token_ids == cold(prompt, 12)
    hits = engine.stats().blocks.prefix_hits
    assert (hits > 0) == (prefix_cache and block_size < 26)


@pytest.mark.parametrize("preempt", ["preempt_recompute", "preempt_swap"])
@pytest.mark.parametrize("at", range(1, 14))
def test_preempted_at_every_step_gives_the_cold_tokens(shadow, cold, drain, preempt, at):
    forced = {}

    def when(step, group):
        return step == at and group.id == "victim" and forced.setdefault("step", step) == step

    engine = shadow(wrap=lambda inner: PreemptNow(inner, when), preempt=preempt, token_budget=16)
    engine.add_request("victim", PROMPTS[6], GREEDY)
    engine.add_request("mate", PROMPTS[3], GREEDY)
    outputs = drain(engine)
    assert outputs["victim"].outputs[0].token_ids == cold(PROMPTS[6], 12)
    assert outputs["mate"].outputs[0].token_ids == cold(PROMPTS[3], 12)
    mode = preempt.removeprefix("preempt_")
    assert engine.stats().preemptions[mode] == (1 if forced else 0)


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
