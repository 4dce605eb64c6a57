"""Requests: what is refused, what waits, what ends and why. Case numbers are those of the project's case list."""

from __future__ import annotations

import gc
import weakref

import pytest

from paged_core.api.params import SamplingParams
from paged_core.errors import EngineDeadError, RequestError
from paged_core.testing.build import EngineShape, build_engine
from paged_core.testing.scripted import ScriptedExecutor
from paged_core.testing.seams import FaultyExecutor, PreemptNow
from paged_core.testing.shadow import ShadowExecutor
from paged_core.testing.tokenizer import ByteTokenizer

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


def greedy(max_tokens, **more):
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, **more)


def test_s01_a_prompt_larger_than_the_pool_is_refused_with_numbers_and_the_next_runs(shadow, drain):
    engine = shadow(num_blocks=6)
    with pytest.raises(RequestError, match=r"30 tokens and needs 8 blocks of 4; the pool has 6 \(24 tokens\)"):
        engine.add_request("big", list(range(30)), GREEDY)
    engine.add_request("small", [1, 2, 3, 4], GREEDY)
    assert len(drain(engine)["small"].outputs[0].token_ids) == 8
    assert any("fewer than max_model_len" in line for line in engine.facts.describe())


def test_museum_4_refused_requests_leave_no_usage_behind(shadow):
    engine = shadow(num_blocks=6)
    for i in range(100):
        with pytest.raises(RequestError):
            engine.add_request(str(i), list(range(30)), GREEDY)
    assert not engine.has_unfinished
    engine.check()


@pytest.mark.parametrize("prompt", ["", [], {"prompt_token_ids": []}])
def test_s03_an_empty_prompt_is_refused_and_the_batchmate_is_fine(shadow, cold, drain, prompt):
    engine = shadow()
    engine.add_request("mate", [5, 6, 7], GREEDY)
    with pytest.raises(RequestError, match="empty"):
        engine.add_request("empty", prompt, GREEDY)
    assert drain(engine)["mate"].outputs[0].token_ids == cold([5, 6, 7], 8)


@pytest.mark.parametrize("prompt", [[-1], [320 + 10], [2**63], [1.0], [True], ["x"], 7, None, {"prompt": None}])
def test_m08_token_ids_outside_the_vocabulary_and_other_types_are_refused(shadow, prompt):
    engine = shadow()
    with pytest.raises(RequestError) as caught:
        engine.add_request("bad", prompt, GREEDY)
    assert caught.value.field == "prompt"
    assert not engine.has_unfinished


def test_v08_half_a_surrogate_pair_is_refused(shadow):
    engine = shadow()
    with pytest.raises(RequestError, match="surrogate"):
        engine.add_request("bad", "a\ud83db", GREEDY)


def test_s06_a_prompt_that_leaves_no_room_for_an_answer_names_the_limit(shadow, drain):
    engine = shadow()
    with pytest.raises(RequestError, match="64 tokens; max_model_len is 64"):
        engine.add_request("full", [1] * 64, GREEDY)
    engine.add_request("clamped", [1] * 8, greedy(61))
    output = drain(engine)["clamped"].outputs[0]
    assert len(output.token_ids) == 56
    assert output.finish_reason == "length"


def test_s07_decodes_get_a_token_in_every_step_while_a_long_prompt_is_chunked(shadow):
    engine = shadow(token_budget=8, max_num_seqs=8)
    engine.add_request("stream", [1, 2, 3], greedy(30), stream=True)
    engine.step()
    engine.add_request("long", list(range(48)), GREEDY)
    for _ in range(10):
        assert "stream" in {output.request_id for output in engine.step()}


def test_s08_without_chunked_prefill_a_prompt_over_the_budget_is_refused(shadow, drain):
    engine = shadow(chunked_prefill=False, token_budget=16)
    with pytest.raises(RequestError, match="20 tokens, more than one step may take"):
        engine.add_request("long", list(range(20)), GREEDY)
    engine.add_request("short", list(range(16)), GREEDY)
    assert drain(engine)["short"].outputs[0].finish_reason == "length"


def test_s10_an_id_in_use_is_refused_and_can_be_used_again_later(shadow, cold, drain):
    engine = shadow()
    engine.add_request("same", [1, 2, 3], GREEDY)
    with pytest.raises(RequestError, match="already in use"):
        engine.add_request("same", [4, 5], GREEDY)
    assert drain(engine)["same"].outputs[0].token_ids == cold([1, 2, 3], 8)
    engine.add_request("same", [4, 5], GREEDY)
    assert drain(engine)["same"].outputs[0].token_ids == cold([4, 5], 8)


def test_4b9_a_lone_group_that_outgrows_the_pool_ends_with_length_and_a_message(shadow, drain):
    engine = shadow(num_blocks=6, block_size=4)
    engine.add_request("grows", [1] * 10, greedy(40))
    output = drain(engine)["grows"]
    assert output.outputs[0].finish_reason == "length"
    assert len(output.outputs[0].token_ids) == 15  # 24 slots hold prompt and all but the last token
    assert "25 tokens and the whole KV pool holds 24" in output.error


def test_4b9_a_group_preempted_at_the_pool_s_edge_ends_rather_than_waits_for_ever(shadow, drain):
    engine = shadow(
        wrap=lambda inner: PreemptNow(inner, lambda step, group: group.num_tokens == 25 and group.num_preemptions == 0),
        num_blocks=6,
    )
    engine.add_request("grows", [1] * 10, greedy(40))
    assert drain(engine)["grows"].outputs[0].finish_reason == "length"


@pytest.mark.parametrize("preempt", ["preempt_recompute", "preempt_swap"])
def test_p01_p02_preempted_midway_keeps_ids_and_counts(shadow, cold, drain, preempt):
    when = lambda step, group: group.sequences[0].num_output in (7, 24) and group.num_preemptions < 2  # noqa: E731
    seen = set()

    def once(step, group):
        key = group.sequences[0].num_output
        return when(step, group) and key not in seen and not seen.add(key)

    engine = shadow(wrap=lambda inner: PreemptNow(inner, once), preempt=preempt, token_budget=8, max_num_seqs=8)
    engine.add_request("r", [1, 2, 3], greedy(30))
    output = drain(engine)["r"]
    assert output.outputs[0].token_ids == cold([1, 2, 3], 30)
    assert output.prompt_token_ids == [1, 2, 3]
    assert output.metrics.num_preemptions == 2


@pytest.mark.parametrize("away", [0, 1, 2, 3])
def test_a07_a_request_aborted_while_it_is_swapped_or_coming_back_returns_its_blocks_at_once(shadow, cold, drain, away):
    """Copies belong to the step that ordered them: no signal of theirs can come late, and nothing waits for one."""
    engine = shadow(
        wrap=lambda inner: PreemptNow(inner, lambda step, group: group.id == "gone" and group.num_preemptions == 0),
        preempt="preempt_swap", prefix_cache=False,
    )  # fmt: skip
    for name, prompt in (("gone", b"hello world"), ("stays", b"abc")):
        engine.add_request(name, list(prompt), GREEDY)
    while engine.stats().preemptions["swap"] == 0:
        engine.step()
    assert engine.stats().blocks.host_free < engine.stats().blocks.host_total
    for _ in range(away):
        engine.step()
    (output,) = engine.abort(["gone"])
    assert output.outputs[0].finish_reason == "abort"
    blocks, (stays,) = engine.stats().blocks, engine._ledger.queues.by_id["stays"].live
    assert (blocks.host_free, blocks.used) == (blocks.host_total, -(-stays.num_computed // 4))
    assert drain(engine)["stays"].outputs[0].token_ids == cold(list(b"abc"), GREEDY.max_tokens)


def test_p05_a_returning_group_is_not_evicted_again_and_again(shadow, drain):
    engine = shadow(num_blocks=16, token_budget=8, max_num_seqs=8)
    engine.add_request("old", [1] * 20, greedy(30))
    engine.add_request("new", [2] * 30, greedy(20))
    outputs = drain(engine, max_steps=400)
    assert outputs["old"].metrics.num_preemptions == 0
    assert outputs["new"].metrics.num_preemptions <= 2


def test_p07_overload_makes_progress_and_never_evicts_the_oldest_for_a_younger(shadow, cold, drain):
    engine = shadow(num_blocks=36)
    for i in range(20):
        engine.add_request(str(i), [i + 1] * 8, greedy(40))
    outputs = drain(engine)
    for i in range(20):
        assert outputs[str(i)].outputs[0].token_ids == cold([i + 1] * 8, 40)
        assert outputs[str(i)].metrics.num_preemptions <= 5
    assert outputs["0"].metrics.num_preemptions == 0
    assert sum(engine.stats().preemptions.values()) > 0


def test_p09_a_preemption_during_a_chunked_prefill_leaves_the_other_decodes_running(shadow):
    forced = []

    def when(step, group):
        if group.id == "d3" and "long" in admitted and not forced:
            forced.append(step)
            return True
        return False

    admitted = set()
    engine = shadow(wrap=lambda inner: PreemptNow(inner, when), token_budget=8, max_num_seqs=8)
    for i in range(4):
        engine.add_request(f"d{i}", [i + 1] * 2, greedy(40), stream=True)
    engine.step()
    engine.add_request("long", [9] * 40, GREEDY)
    engine.step()
    admitted.add("long")
    assert {"d0", "d1", "d2"} <= {output.request_id for output in engine.step()}
    assert {"d0", "d1", "d2"} <= {output.request_id for output in engine.step()}
    assert forced


def test_museum_2_aborting_many_in_all_queues_in_one_call(shadow):
    engine = shadow(num_blocks=16, max_num_seqs=4)
    for i in range(10):
        engine.add_request(str(i), [i + 1] * 12, greedy(30))
    for _ in range(12):
        engine.step()
    stats = engine.stats()
    assert stats.num_waiting > 0
    assert stats.num_running > 0
    outputs = engine.abort([str(i) for i in range(10)] + ["unknown"])
    assert {output.outputs[0].finish_reason for output in outputs} == {"abort"}
    assert not engine.has_unfinished
    engine.check()
    assert engine.abort(["0"]) == []


def test_museum_6_and_7_nothing_is_left_of_a_finished_request(shadow, drain):
    engine = shadow()
    engine.add_request("r", [1, 2, 3], GREEDY)
    group = weakref.ref(engine._ledger.queues.by_id["r"])
    gc.collect()
    gc.disable()
    try:
        outputs = drain(engine)
        assert outputs["r"].finished
        assert group() is None
    finally:
        gc.enable()
    for holder in (engine, engine._ledger, engine._ledger.queues, engine._emitter, engine._scheduler):
        for name, value in vars(holder).items():
            if isinstance(value, dict) and name not in ("num_preemptions", "num_finished"):
                assert not value, f"{type(holder).__name__}.{name} still holds {value}"


def test_10k_requests_leave_every_container_empty(shadow, drain):
    engine = shadow(num_blocks=128, max_num_seqs=32, token_budget=256)
    for begin in range(0, 2000, 100):
        for i in range(begin, begin + 100):
            engine.add_request(str(i), [i % 250 + 1, i % 7 + 1], greedy(2))
        assert len(drain(engine)) == 100
    assert engine.stats().finished["length"] == 2000


def test_deadlines_abort_only_the_late(shadow, drain):
    engine = shadow()
    engine.add_request("late", [1, 2], greedy(50), deadline=0.005)
    engine.add_request("patient", [3, 4], greedy(20))
    outputs = drain(engine)
    assert outputs["late"].outputs[0].finish_reason == "abort"
    assert outputs["late"].error == "its deadline passed"
    assert 0 < len(outputs["late"].outputs[0].token_ids) < 50
    assert outputs["patient"].outputs[0].finish_reason == "length"


def test_s08_eos_and_user_stop_ids_m16(plugins, drain):
    tokenizer = ByteTokenizer()
    script = [*b"abcde", 65, *b"xyz", 256, *b"later"]

    def run(**params):
        shape = EngineShape(tokenizer=tokenizer)
        engine = build_engine(ScriptedExecutor(script), shape, plugins=plugins)
        engine.add_request("r", [1], SamplingParams(temperature=0, **params))
        return drain(engine)["r"].outputs[0]

    eos = run(max_tokens=20)
    assert (eos.text, eos.finish_reason, eos.stop_reason) == ("abcdeAxyz", "stop", None)
    assert eos.token_ids[-1] == 256
    ignored = run(max_tokens=12, ignore_eos=True)
    assert (ignored.finish_reason, len(ignored.token_ids)) == ("length", 12)
    user = run(max_tokens=12, ignore_eos=True, stop_token_ids=[65])
    assert (user.text, user.finish_reason, user.stop_reason, len(user.token_ids)) == ("abcde", "stop", 65, 6)
    many = run(max_tokens=12, stop_token_ids=[300, 301, 302, 303, 304, 305, 306, 307, 65])
    assert (many.text, many.stop_reason) == ("abcde", 65)


def test_d05_the_stop_token_s_text_is_shown_only_when_asked(plugins, drain):
    table = {}
    for stop in (65, 256):
        for skip in (True, False):
            for include in (True, False):
                engine = build_engine(ScriptedExecutor([*b"ab", stop, *b"c"]), plugins=plugins)
                params = SamplingParams(
                    temperature=0,
                    stop_token_ids=[stop],
                    skip_special_tokens=skip,
                    include_stop_str_in_output=include,
                )
                engine.add_request("r", [1], params)
                table[stop, skip, include] = drain(engine)["r"].outputs[0].text
    assert table == {
        (65, True, True): "abA",
        (65, True, False): "ab",
        (65, False, True): "abA",
        (65, False, False): "ab",
        (256, True, True): "ab",
        (256, True, False): "ab",
        (256, False, True): "ab</s>",
        (256, False, False): "ab",
    }


def test_m14_min_tokens_holds_for_stop_strings_too(plugins, drain):
    engine = build_engine(ScriptedExecutor(list(b"a\nbc\nd")), plugins=plugins)
    engine.add_request("r", [1], SamplingParams(temperature=0, stop="\n", min_tokens=3))
    output = drain(engine)["r"].outputs[0]
    assert (output.text, output.finish_reason, output.stop_reason) == ("a\nbc", "stop", "\n")


@pytest.mark.parametrize(
    ("pieces", "stop", "text", "reason"),
    [
        (("uvw", "x", "yz"), ["uvwxyz"], "", "stop"),
        (("uvw", "x", "q"), ["uvwxyz"], "uvwxq", "stop"),
        (("ok", "?"), ["\n", "?!"], "ok?", "stop"),
        (("one two", " three"), ["two", "one"], "", "stop"),
    ],
)
def test_d01_d02_stop_strings_are_held_back_and_the_tail_is_released(plugins, pieces, stop, text, reason):
    tokenizer = ByteTokenizer(pieces)
    script = [tokenizer.id_of(piece) for piece in pieces]
    engine = build_engine(ScriptedExecutor(script), EngineShape(tokenizer=tokenizer), plugins=plugins)
    engine.add_request("r", [1], SamplingParams(temperature=0, stop=stop), stream=True)
    seen = []
    while engine.has_unfinished:
        seen += [output.outputs[0].text for output in engine.step()]
    assert seen[-1] == text
    assert all(text.startswith(part) for part in seen)


def test_streaming_equals_offline_and_shows_no_broken_character(plugins, drain):
    text = "삼겹살 👍🏽 é"
    script = list(text.encode())
    streamed = build_engine(ScriptedExecutor(script), plugins=plugins)
    streamed.add_request("r", [1], SamplingParams(temperature=0, max_tokens=60), stream=True)
    seen = [""]
    while streamed.has_unfinished:
        seen += [output.outputs[0].text for output in streamed.step()]
    assert all("\ufffd" not in part for part in seen)
    offline = build_engine(ScriptedExecutor(script), plugins=plugins)
    offline.add_request("r", [1], SamplingParams(temperature=0, max_tokens=60))
    assert seen[-1] == drain(offline)["r"].outputs[0].text == text


def test_a_failing_step_stops_the_engine_with_its_story_and_refuses_more(plugins):
    boom = RuntimeError("device lost")
    engine = build_engine(FaultyExecutor(ShadowExecutor(4), {2: boom}), plugins=plugins)
    engine.add_request("r", [1, 2], GREEDY)
    engine.step()
    engine.step()
    with pytest.raises(RuntimeError, match="device lost") as caught:
        engine.step()
    assert "step" in caught.value.__notes__[0]
    assert "r" in caught.value.__notes__[0]
    with pytest.raises(EngineDeadError, match="device lost"):
        engine.step()
    with pytest.raises(EngineDeadError):
        engine.add_request("next", [1], GREEDY)


def test_a_closed_engine_refuses_work_and_closes_twice(shadow):
    engine = shadow()
    engine.close()
    engine.close()
    with pytest.raises(EngineDeadError, match="closed"):
        engine.step()


def test_a_scheduler_is_told_to_forget_every_group_once_however_it_ended(plugins):
    forgotten = []

    class Recorder(PreemptNow):
        def forget(self, group):
            forgotten.append(group.id)
            super().forget(group)

    shape = EngineShape(num_blocks=6, block_size=4)
    engine = build_engine(
        ShadowExecutor(4),
        shape,
        plugins=plugins,
        wrap_scheduler=lambda inner: Recorder(inner, lambda step, group: False),
    )
    engine.add_request("done", [1, 2], greedy(2))
    engine.add_request("late", [1, 2], greedy(9), deadline=0.0)
    while engine.has_unfinished:
        engine.step()
    engine.add_request("outgrows", [1] * 10, greedy(40))
    while engine.has_unfinished:
        engine.step()
    engine.add_request("waiting", [1, 2], greedy(2))
    engine.abort(["waiting"])
    assert forgotten == ["late", "done", "outgrows", "waiting"]
