"""Two steps in flight: what runs ahead and what does not, who ends meanwhile, and that the audit would see a mistake.

That tokens are the same whatever is in flight is in test_equality.py, that nothing is left behind in test_no_leak.py.
"""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from paged_core.api.params import SamplingParams
from paged_core.api.scheduler import Decision, Scheduler
from paged_core.engine.aio import AsyncLLM
from paged_core.engine.flight import Flight
from paged_core.engine.ledger import Ledger
from paged_core.errors import PluginContractError
from paged_core.testing.build import EngineShape, build_engine, torch_sampler
from paged_core.testing.overlapped import Overlapped
from paged_core.testing.scripted import ScriptedExecutor, TableExecutor
from paged_core.testing.seams import PreemptNow
from paged_core.testing.shadow import ShadowExecutor

EOS = 256
PROMPT = list(b"hello world")


def greedy(max_tokens, **more):
    return SamplingParams(temperature=0, max_tokens=max_tokens, **{"ignore_eos": True, **more})


def over(inner, **shape):
    """An engine that has two steps of `inner` in flight, and its executor."""
    made = EngineShape(**shape)
    overlapped = Overlapped(inner, made.block_size)
    overlapped.keep_plans = True
    engine = build_engine(overlapped, made)
    overlapped.watch(engine)
    return engine, overlapped


def idle(engine):
    """Nothing is held, not even until later."""
    flight = engine._ledger.flight
    assert not engine.has_unfinished
    held = (flight.plans, flight._later, flight._stale, flight._bound, engine._ledger.queues.leaving)
    assert [len(each) for each in held] == [0] * len(held)
    engine.check()


class Failing(ShadowExecutor):
    """The draws of `row` fail from the step `at` on."""

    def __init__(self, row, at):
        super().__init__(4)
        self.row, self.at = row, at

    def _drawn(self, plan, digests):
        result = super()._drawn(plan, digests)
        for i in np.flatnonzero(plan.sample_rows == self.row) if plan.step >= self.at else ():
            result.num_tokens[i], result.failed[self.row] = 0, "NaN"
        return result


# -- what runs ahead --------------------------------------------------------------------------------------------------


def test_steps_overlap_and_lengths_known_in_advance_cost_no_step(shadow, drain, cold):
    engines = {in_flight: shadow(in_flight=in_flight) for in_flight in (1, 2)}
    for engine in engines.values():
        for i, length in enumerate((1, 7, 12)):
            engine.add_request(str(i), [*PROMPT, i], greedy(length))
        outputs = drain(engine)
        for i, length in enumerate((1, 7, 12)):
            assert outputs[str(i)].outputs[0].token_ids == cold([*PROMPT, i], length)
            assert outputs[str(i)].outputs[0].finish_reason == "length"
        idle(engine)
    assert engines[1].stats().num_steps == engines[2].stats().num_steps == 12
    assert engines[2]._executor.num_ahead == 11
    assert engines[1].stats().num_computed == engines[2].stats().num_computed


def test_a_plan_names_the_draws_that_it_does_not_know(shadow):
    engine = shadow(in_flight=2, token_budget=16)
    executor = engine._executor
    executor.keep_plans = True
    engine.add_request("short", [1, 2, 3], greedy(4))
    engine.add_request("long", list(range(1, 31)), greedy(2))
    while engine.has_unfinished:
        engine.step()
    sources = [None if plan.token_source is None else plan.token_source.tolist() for plan in executor.plans]
    assert sources == [None, [0] + [-1] * 15, [0, -1, -1], [0, 1]]
    assert executor.plans[1].token_ids[0] == 0


def test_a_branch_names_its_own_draw(shadow):
    engine = shadow(in_flight=2)
    executor = engine._executor
    executor.keep_plans = True
    engine.add_request("three", PROMPT, SamplingParams(n=3, temperature=1, seed=1, max_tokens=5, ignore_eos=True))
    while engine.has_unfinished:
        engine.step()
    assert [None if plan.token_source is None else plan.token_source.tolist() for plan in executor.plans] == [
        None,
        [0, 1, 2],  # the fork did not wait for the draws
        None,  # but nothing follows a step with copies before it was collected
        [0, 1, 2],
        [0, 1, 2],
    ]


@pytest.mark.parametrize(
    "params",
    [
        {"use_beam_search": True, "beam_width": 3, "n": 2},
        {"structured_outputs": {"regex": "[ab]{9}"}},
        {"structured_outputs": {"regex": "[ab]{9}"}, "n": 2},
    ],
)
def test_what_needs_its_tokens_is_never_ahead_and_others_are_again_when_it_has_left(logits, drain, params):
    engine = logits(in_flight=2)
    executor = engine._executor
    engine.add_request("bound", PROMPT, SamplingParams(temperature=0, max_tokens=10, **params))
    while "bound" not in {group.id for group in engine._ledger.queues.running}:
        engine.step()
    engine.add_request("plain", PROMPT, greedy(30))
    while "bound" in engine.unfinished_ids:
        assert executor.num_ahead == 0
        engine.step()
    drain(engine)
    assert executor.num_ahead >= 18
    idle(engine)


@pytest.fixture
def table(plugins):
    """An engine whose i-th draw is token i, and which computes log-probabilities."""
    shape = EngineShape(token_budget=16)
    return over(TableExecutor(lambda i: np.eye(320)[max(i, 0) % 300], torch_sampler(shape, plugins)), token_budget=16)


def test_prompt_logprobs_are_collected_before_the_next_step_is_planned(table):
    engine, overlapped = table
    engine.add_request("asks", list(range(1, 40)), greedy(9, prompt_logprobs=1))
    outputs = []
    while engine.has_unfinished:
        outputs += engine.step()
    (output,) = outputs
    assert len(output.prompt_logprobs) == 39
    assert output.outputs[0].token_ids == list(range(9))
    assert overlapped.num_ahead == 7, "three chunks one by one and the step behind them, then seven steps ahead"
    idle(engine)


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_nobody_hears_prompt_logprobs_of_what_was_aborted(table, drain, steps):
    engine, _ = table
    engine.add_request("asks", list(range(1, 40)), greedy(9, prompt_logprobs=1))
    for _ in range(steps):
        engine.step()
    engine.abort(["asks"])
    drain(engine)
    assert engine._ledger.prompt_due == {}
    idle(engine)


# -- who ends meanwhile -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_what_is_drawn_after_the_end_is_dropped(drain, stream):
    engine, overlapped = over(ScriptedExecutor([70, 71, 72, EOS, 73]))
    engine.add_request("ends", PROMPT, greedy(40, ignore_eos=False), stream=stream)
    engine.add_request("goes on", PROMPT, greedy(9))
    outputs = drain(engine)
    assert outputs["ends"].outputs[0].token_ids == [70, 71, 72, EOS]
    assert outputs["ends"].outputs[0].finish_reason == "stop"
    assert outputs["goes on"].outputs[0].token_ids == [70, 71, 72, EOS, 73, EOS, EOS, EOS, EOS]
    assert 5 in {len(plan.rows) + 3 for plan in overlapped.plans}, "both ran together"
    assert engine.stats().num_generated == 13
    idle(engine)


def test_a_stop_string_ends_in_the_text_not_a_step_later(drain):
    engine, _ = over(ScriptedExecutor(list(b"abcdef")))
    engine.add_request("stops", PROMPT, greedy(40, stop=["cd"]))
    output = drain(engine)["stops"].outputs[0]
    assert output.text == "ab"
    assert output.stop_reason == "cd"
    assert output.token_ids == list(b"abcd")
    idle(engine)


def test_blocks_of_what_ended_are_free_when_the_step_in_flight_was_collected():
    engine, overlapped = over(ScriptedExecutor([70, EOS]), prefix_cache=False)
    engine.add_request("ends", PROMPT, greedy(40, ignore_eos=False))
    outputs = []
    while not outputs:
        outputs = engine.step()
    assert overlapped.num_open == 1
    assert engine.unfinished_ids == []
    assert engine.has_unfinished, "its blocks are not back yet"
    assert engine.stats().blocks.used == 4
    assert engine.step() == []
    assert engine.stats().blocks.used == 0
    idle(engine)


@pytest.mark.parametrize("steps", range(1, 7))
@pytest.mark.parametrize(
    "params",
    [greedy(20), SamplingParams(n=3, temperature=1, seed=2, max_tokens=20, ignore_eos=True)],
    ids=["one", "three"],
)
def test_museum_8_abort_between_submit_and_collect(shadow, drain, cold, steps, params):
    """At every step, before, while and after the prompt is computed; a newcomer takes the row at once."""
    engine = shadow(in_flight=2, token_budget=8, max_num_seqs=4, num_blocks=24)
    engine.add_request("leaves", list(range(1, 20)), params, stream=True)
    heard = []
    for _ in range(steps):
        heard += engine.step()
    assert engine._executor.num_open == 1
    (last,) = engine.abort(["leaves"])
    assert engine.abort(["leaves"]) == []
    for branch in last.outputs:
        assert branch.finish_reason == "abort"
        assert branch.token_ids == (heard[-1].outputs[branch.index].token_ids if heard else [])
    engine.add_request("leaves", PROMPT, greedy(9))
    engine.add_request("comes", PROMPT, greedy(9))
    outputs = drain(engine)
    assert outputs["leaves"].outputs[0].token_ids == outputs["comes"].outputs[0].token_ids == cold(PROMPT, 9)
    idle(engine)


def test_a_deadline_passes_while_a_step_is_in_flight(shadow, drain, cold):
    engine = shadow(in_flight=2)
    engine.add_request("late", PROMPT, greedy(40), deadline=0.0045)
    engine.add_request("mate", PROMPT, greedy(12))
    outputs = drain(engine)
    assert outputs["late"].error == "its deadline passed"
    assert outputs["late"].outputs[0].token_ids == cold(PROMPT, 40)[:5]
    assert outputs["mate"].outputs[0].token_ids == cold(PROMPT, 12)
    idle(engine)


@pytest.mark.parametrize("at", range(1, 5))
def test_a_row_that_fails_takes_its_request_and_not_the_step_behind_it(drain, cold, at):
    engine, _ = over(Failing(row=0, at=at))
    engine.add_request("fails", PROMPT, greedy(20))
    engine.add_request("mate", PROMPT, greedy(12))
    outputs = drain(engine)
    assert outputs["fails"].error == "NaN"
    assert outputs["fails"].outputs[0].token_ids == cold(PROMPT, 20)[:at]
    assert outputs["mate"].outputs[0].token_ids == cold(PROMPT, 12)
    idle(engine)


def test_a_branch_that_ended_may_fail_behind_its_end(drain):
    class EndsThenFails(Failing):
        def _drawn(self, plan, digests):
            result = super()._drawn(plan, digests)
            if plan.step == self.at - 1:
                result.tokens[plan.sample_rows == self.row] = EOS
            return result

    engine, _ = over(EndsThenFails(row=0, at=4))
    engine.add_request("two", PROMPT, SamplingParams(n=2, temperature=1, seed=3, max_tokens=12))
    output = drain(engine)["two"]
    assert output.error is None
    assert [branch.finish_reason for branch in output.outputs] == ["stop", "length"]
    assert len(output.outputs[0].token_ids) == 4
    idle(engine)


def test_a_draw_that_gives_nothing_and_does_not_fail_is_the_executors_mistake():
    class Mute(ShadowExecutor):
        def _drawn(self, plan, digests):
            result = super()._drawn(plan, digests)
            result.num_tokens[:] = 0
            return result

    engine, _ = over(Mute(4))
    engine.add_request("waits", PROMPT, greedy(20))
    engine.step()
    with pytest.raises(PluginContractError, match="another number of tokens than one"):
        engine.step()


# -- when memory is short ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preempt", ["preempt_recompute", "preempt_swap"])
def test_museum_17_nobody_is_preempted_with_a_token_in_flight(shadow, drain, cold, preempt):
    engine = shadow(
        wrap=lambda inner: PreemptNow(inner, lambda step, group: step % 4 == 3 and group.id == "0"),
        in_flight=2, preempt=preempt,
    )  # fmt: skip
    evict = engine._ledger._residence.evict

    def checked(group, moves):
        assert engine._executor.num_open == 0
        evict(group, moves)

    engine._ledger._residence.evict = checked
    for i in range(3):
        engine.add_request(str(i), [*PROMPT, i], greedy(16))
    outputs = drain(engine)
    assert sum(engine.stats().preemptions.values()) >= 3
    assert engine._executor.num_ahead > 5
    for i in range(3):
        assert outputs[str(i)].outputs[0].token_ids == cold([*PROMPT, i], 16)
    idle(engine)


@pytest.mark.parametrize("preempt", ["preempt_recompute", "preempt_swap"])
def test_museum_22_blocks_that_are_free_in_a_moment_cost_no_victim(shadow, drain, preempt):
    """As many victims as one step at a time has, on a pool that half of the requests fill."""
    victims = []
    for in_flight in (1, 2):
        engine = shadow(in_flight=in_flight, preempt=preempt, num_blocks=20, max_num_seqs=8, prefix_cache=False)
        for i in range(8):
            engine.add_request(str(i), [*PROMPT[: 5 + i % 3], i], greedy(10 + 2 * i))
        drain(engine)
        idle(engine)
        victims.append(sum(engine.stats().preemptions.values()))
    assert victims[0] > 0
    assert victims[1] <= victims[0]


def test_a_lone_request_that_outgrows_the_pool_ends_with_all_that_fits(shadow, drain):
    tokens = []
    for in_flight in (1, 2):
        engine = shadow(in_flight=in_flight, num_blocks=6)
        engine.add_request("grows", PROMPT, greedy(40))
        output = drain(engine)["grows"]
        assert output.outputs[0].finish_reason == "length"
        assert "KV pool holds 24" in output.error
        tokens.append(output.outputs[0].token_ids)
        idle(engine)
    assert tokens[0] == tokens[1]


def test_a_scheduler_is_asked_again_for_a_step_whose_preemption_had_to_wait(shadow, drain):
    asked = []

    class Notes(PreemptNow):
        def decide(self, view):
            decision = super().decide(view)
            asked.append((view.step, bool(decision.preempt)))
            return decision

    engine = shadow(wrap=lambda inner: Notes(inner, lambda step, group: step == 4), in_flight=2)
    engine.add_request("0", PROMPT, greedy(12))
    drain(engine)
    assert [entry for entry in asked if entry[0] == 4] == [(4, True), (4, True)]
    assert engine.stats().preemptions == {"swap": 0, "recompute": 1}


# -- callers ----------------------------------------------------------------------------------------------------------


def test_async_streams_end_without_anybody_else_coming(shadow, cold):
    llm = AsyncLLM(engine=shadow(in_flight=2))

    async def main():
        async def one(i):
            return [output async for output in llm.generate([*PROMPT, i], greedy(10))]

        return await asyncio.wait_for(asyncio.gather(*map(one, range(4))), 60)

    try:
        for i, outputs in enumerate(asyncio.run(main())):
            assert outputs[-1].outputs[0].token_ids == cold([*PROMPT, i], 10)
            assert outputs[-1].finished
    finally:
        llm.shutdown()


@pytest.mark.parametrize("in_flight", [1, 2])
def test_who_interrupts_the_wait_finds_the_step_still_in_flight(drain, cold, in_flight):
    class Interrupted(Overlapped):
        max_in_flight = in_flight
        num_waits = 0

        def collect(self, ticket):
            self.num_waits += 1
            if self.num_waits == 3:
                raise KeyboardInterrupt
            return super().collect(ticket)

    executor = Interrupted(ShadowExecutor(4), 4)
    engine = build_engine(executor)
    executor.watch(engine)
    engine.add_request("leaves", PROMPT, greedy(20))
    engine.add_request("stays", PROMPT, greedy(9))
    with pytest.raises(KeyboardInterrupt):
        drain(engine)
    engine.abort(["leaves"])
    assert drain(engine)["stays"].outputs[0].token_ids == cold(PROMPT, 9)
    idle(engine)


def test_closing_drops_the_step_in_flight(shadow):
    engine = shadow(in_flight=2)
    engine.add_request("0", PROMPT, greedy(10))
    engine.step()
    assert engine._executor.num_open == 1
    engine.close()
    assert engine._executor.num_open == 0


def test_rows_that_wait_to_be_given_back_are_not_missed():
    """With fewer free rows than sequences may run, a plan could want more than there are."""
    engine, _ = over(ScriptedExecutor([70, EOS]), max_num_seqs=2)
    ledger = engine._ledger
    engine.add_request("ends", PROMPT, greedy(40, ignore_eos=False))
    while not engine.step():
        pass
    assert ledger.flight
    assert ledger.may_lead
    taken = [ledger.queues._free_rows.pop() for _ in range(2)]
    assert not ledger.may_lead
    ledger.queues.give_back(taken)
    engine.step()
    idle(engine)


# -- the audit sees mistakes ------------------------------------------------------------------------------------------


def churn(shadow, drain, **shape):
    """Requests that come and end all the time, on a small pool."""
    engine = shadow(in_flight=2, num_blocks=16, max_num_seqs=4, **shape)
    for i in range(30):
        engine.add_request(str(i), PROMPT[: 3 + i % 7], greedy(3 + i % 5, stop_token_ids=list(range(97, 104))))
    drain(engine)
    idle(engine)


@pytest.mark.parametrize("alloc", ["alloc_cow", "alloc_radix"])
def test_blocks_freed_at_once_are_caught(shadow, drain, monkeypatch, alloc):
    churn(shadow, drain, alloc=alloc)
    monkeypatch.setattr(Flight, "_after", lambda self, action: action())
    with pytest.raises(AssertionError, match=r"freed while step|writes slots"):
        churn(shadow, drain, alloc=alloc)


def test_blocks_published_before_they_are_written_are_caught(shadow, drain, monkeypatch):
    def early(self, plan):
        for seq in filter(None, self.queues.seq_of_row):
            if not seq.finished:
                self.allocator.publish(seq)

    churn(shadow, drain, token_budget=6)
    monkeypatch.setattr(Ledger, "_publish", early)
    with pytest.raises(AssertionError, match="still writes"):
        churn(shadow, drain, token_budget=6)


def test_stale_draws_that_are_heard_are_caught(shadow, drain, monkeypatch):
    monkeypatch.setattr(Flight, "_drop_stale", lambda self, plan, result: None)
    with pytest.raises(KeyError):  # the row's endings are gone
        churn(shadow, drain)


def test_sources_that_are_wrong_are_caught(shadow, drain, monkeypatch):
    from paged_core.engine.stepplan import StepPlanBuilder

    monkeypatch.setattr(StepPlanBuilder, "_name_sources", lambda self, plan, before: None)
    with pytest.raises(AssertionError, match="sources"):
        churn(shadow, drain)


# -- table rows that changed ------------------------------------------------------------------------------------------


class ResumesFirst(Scheduler):
    """A group that comes back computes in the step after; those that decode go on meanwhile."""

    def __init__(self, inner):
        self.inner = inner

    def decide(self, view):
        for group in view.preempted[:1]:
            if view.num_free_seqs >= group.num_reserved_rows and view.scratch.take(group, view.scratch.gap(group)):
                return Decision(resume=[group], decode_all=view.num_decode_tokens > 0 and view.scratch.take_decodes())
        return self.inner.decide(view)

    def forget(self, group):
        self.inner.forget(group)


@pytest.mark.parametrize("in_flight", [1, 2])
@pytest.mark.parametrize("preempt", ["swap", "recompute"])
def test_a_mirror_of_the_changed_rows_is_the_table(drain, in_flight, preempt):
    """What a plan says has changed is enough for a copy of the tables elsewhere."""

    class Mirrored(ShadowExecutor):
        def start(self, num_blocks, num_host_blocks, tables):
            super().start(num_blocks, num_host_blocks, np.full_like(tables, -1))
            self.real, self.mirror = tables, self._tables

        def submit(self, plan):
            self.mirror[plan.changed_rows] = self.real[plan.changed_rows]
            for row, length in zip(plan.rows, plan.seq_lens, strict=True):
                held = -(-int(length) // 4)
                assert (self.mirror[row, :held] == self.real[row, :held]).all(), f"row {row} in step {plan.step}"
            return super().submit(plan)

    shape = EngineShape(preempt=preempt, token_budget=16, max_num_seqs=8)
    executor = Mirrored(4)
    engine = build_engine(
        executor if in_flight == 1 else Overlapped(executor, 4),
        shape,
        wrap_scheduler=lambda inner: ResumesFirst(
            PreemptNow(inner, lambda step, group: step in range(int(group.id), 40, 6))
        ),
    )
    for i in range(6):
        engine.add_request(str(i), [*PROMPT, i], SamplingParams(n=1 + i % 2, temperature=1, seed=i, max_tokens=20))
    drain(engine)
    assert engine.stats().preemptions[preempt] > 5
