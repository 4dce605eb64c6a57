"""The engine over contiguous runs: tokens are right whatever is reserved, and nobody is ever preempted."""

from __future__ import annotations

import random

import pytest
from paged_alloc_contiguous.allocator import ContiguousAllocator

from paged_core.api.params import SamplingParams
from paged_core.errors import RequestError
from paged_core.plugins import bootstrap
from paged_core.settings import Settings
from paged_core.testing.build import EngineShape, build_engine
from paged_core.testing.overlapped import Overlapped
from paged_core.testing.shadow import ShadowExecutor

RESERVATIONS = ("max", "pow2", "oracle")


def engine_of(alloc="alloc_contiguous", reservation="max", sched="sched_fcfs", in_flight=1, **sizes):
    tables = {"alloc_contiguous": {"reservation": reservation}}
    shape = EngineShape(alloc=alloc, sched=sched, **{"num_blocks": 64, "max_num_seqs": 12, **sizes})
    executor = ShadowExecutor(shape.block_size)
    overlapped = Overlapped(executor, shape.block_size)
    plugins = bootstrap(Settings.load(plugins=tables))
    engine = build_engine(executor if in_flight == 1 else overlapped, shape, plugins=plugins)
    overlapped.watch(engine)
    return engine


def asks(count=12, seed=3, **params):
    dice = random.Random(seed)
    return [
        ([dice.randint(1, 90) for _ in range(dice.randint(1, 20))], dice.randint(1, 20), params) for _ in range(count)
    ]


def answers(engine, requests):
    for i, (prompt, num_tokens, params) in enumerate(requests):
        given = {"temperature": 0.0, "ignore_eos": True, "detokenize": False, **params}
        engine.add_request(str(i), prompt, SamplingParams(max_tokens=num_tokens, **given), true_output_len=num_tokens)
    found = {}
    for _ in range(3000):
        if not engine.has_unfinished:
            break
        for output in engine.step():
            if output.finished:
                found[output.request_id] = [list(one.token_ids) for one in output.outputs]
    engine.check()
    return found


@pytest.mark.parametrize("sched", ["sched_fcfs", "sched_prefill_first", "sched_static"])
@pytest.mark.parametrize("reservation", RESERVATIONS)
@pytest.mark.parametrize("params", [{}, {"n": 3, "temperature": 1.0, "seed": 5}])
def test_tokens_are_those_of_pages_and_nobody_is_preempted(reservation, sched, params) -> None:
    """Orca's scheduling at the granularity of steps (sched_fcfs), vLLM's and fixed batches over one allocator."""
    requests = asks(**params)
    expected = answers(engine_of("alloc_cow", num_blocks=1024), requests)
    engine = engine_of(reservation=reservation, sched=sched)
    assert answers(engine, requests) == expected
    stats = engine.stats()
    assert stats.preemptions == {"swap": 0, "recompute": 0}, "whoever was admitted has all it will need"
    assert stats.blocks.num_copies == 0 or params, "only branches copy"


@pytest.mark.parametrize("num_blocks", [64, 256])
@pytest.mark.parametrize("params", [{}, {"n": 2, "temperature": 1.0, "seed": 5}])
def test_sequences_that_outgrow_their_run_move_and_lose_nothing(num_blocks, params, monkeypatch) -> None:
    """With a small pool some are preempted for it; the tokens are the same."""
    monkeypatch.setattr(ContiguousAllocator, "reserve", lambda self, request: len(request.prompt_token_ids) + 2)
    requests = asks(**params)
    expected = answers(engine_of("alloc_cow", num_blocks=1024), requests)
    engine = engine_of(num_blocks=num_blocks)
    assert answers(engine, requests) == expected
    stats = engine.stats()
    assert stats.blocks.num_copies > 0
    assert (stats.preemptions["recompute"] > 0) == (num_blocks == 64)


def test_branches_that_end_early_and_steps_in_flight_change_nothing() -> None:
    """A branch may end with the very draw it was forked by, while the next step is under way."""
    requests = asks(24, n=3, temperature=1.0, seed=5, ignore_eos=False, stop_token_ids=[100, 101, 102, 103])
    expected = answers(engine_of("alloc_cow", num_blocks=1024), requests)
    assert any(len(branch) == 1 for branches in expected.values() for branch in branches)
    engine = engine_of(reservation="pow2", in_flight=2)
    assert answers(engine, requests) == expected


def test_a_request_that_can_never_run_is_refused_when_it_comes_and_harms_nobody() -> None:
    engine = engine_of(num_blocks=32)
    with pytest.raises(RequestError, match=r"3 run\(s\) of 16 blocks of 4"):
        engine.add_request("wide", [1, 2, 3], SamplingParams(n=3, max_tokens=4))
    assert answers(engine, asks(3))


def test_the_device_never_holds_more_than_was_reserved() -> None:
    """`max` on 64 blocks of 4: four requests of 64 slots at a time, whatever they need."""
    engine = engine_of("alloc_contiguous", "max")
    for i in range(10):
        engine.add_request(str(i), [1, 2, 3], SamplingParams(temperature=0, max_tokens=5, ignore_eos=True))
    most = 0
    while engine.has_unfinished:
        engine.step()
        most = max(most, engine.stats().num_running)
    assert most == 4
