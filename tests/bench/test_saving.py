"""Blocks saved by sharing, counted on engines without a model and compared with a count by hand."""

from __future__ import annotations

import numpy as np
import pytest

from paged_core.api.params import SamplingParams
from paged_core.bench.saving import Saving, Service, prompts_saving, service_saving
from paged_core.bench.stub import Arrival, StubExecutor, drive, stub_engine, stub_facts
from paged_core.engine.clock import VirtualClock
from paged_core.workload.lengths import Lengths


def samples(n: int, output: int) -> SamplingParams:
    return SamplingParams(n=n, max_tokens=output, ignore_eos=True, detokenize=False)


def by_hand(prompt: int, output: int, n: int, size: int = 16) -> float:
    """Share saved by n samples: full prompt blocks are held once, all others n times. The step of the first draw
    holds the prompt's blocks, shared by all; from the second draw on the last block is a copy of each branch's own."""
    held = saved = 0
    for computed in range(prompt, prompt + output - 1):
        references = n * -(-computed // size)
        shared = prompt // size if computed > prompt else -(-computed // size)
        distinct = shared + n * (-(-computed // size) - shared)
        held, saved = held + distinct, saved + references - distinct
    return saved / (held + saved)


@pytest.mark.parametrize(("prompt", "output", "n"), [(40, 30, 2), (32, 50, 4), (5, 40, 6), (100, 3, 3)])
def test_the_saving_of_one_request_is_what_a_hand_counts(prompt: int, output: int, n: int) -> None:
    engine = stub_engine(stub_facts(500, 2048, 64), StubExecutor())
    saving = prompts_saving(engine, [[1] * prompt], [samples(n, output)])
    assert saving.share == pytest.approx(by_hand(prompt, output, n))
    engine.check()


@pytest.mark.parametrize(("prompt", "output"), [(5, 30), (32, 2), (40, 9)])
def test_waste_is_what_a_hand_counts(prompt: int, output: int) -> None:
    engine = stub_engine(stub_facts(100, 2048, 8), StubExecutor())
    saving = prompts_saving(engine, [[1] * prompt], [samples(1, output)])
    filled = range(prompt, prompt + output - 1)
    assert saving.waste == pytest.approx(sum(-computed % 16 for computed in filled) / sum(filled))


def test_one_sequence_saves_nothing() -> None:
    engine = stub_engine(stub_facts(100, 2048, 8), StubExecutor())
    assert prompts_saving(engine, [[1] * 40] * 3, [samples(1, 8)] * 3).share == 0.0


def test_saving_of_nothing_is_not_a_number() -> None:
    assert np.isnan(Saving().share)
    assert np.isnan(Saving().mean_requests)
    assert np.isnan(Saving().waste)


def test_a_service_saves_more_the_longer_its_prompts_are() -> None:
    shares = []
    for prompt in (16, 160):
        lengths = Lengths("x", np.array([[prompt, 40]]))
        saving = service_saving(
            Service(lengths, 4.0, 20.0), lambda output: samples(4, output), np.random.default_rng(0)
        )
        shares.append(saving.share)
    assert 0.1 < shares[0] < shares[1] < 0.75


def test_arrivals_are_fed_when_their_time_has_come() -> None:
    clock = VirtualClock()
    engine = stub_engine(stub_facts(100, 256, 8), StubExecutor(lambda plan: 1.0), clock)
    arrivals = [Arrival(at, [1, 2, 3], samples(1, 2)) for at in (0.0, 0.5, 100.0)]
    running: list[tuple[float, int]] = []
    drive(engine, clock, arrivals, lambda: running.append((clock.now(), engine.stats().num_steps)), until=1e9)
    assert [now for now, _ in running] == [1.0, 2.0, 3.0, 101.0, 102.0]
    assert engine.stats().finished == {"length": 3}


def test_driving_ends_at_its_time_though_requests_are_left() -> None:
    clock = VirtualClock()
    engine = stub_engine(stub_facts(100, 256, 8), StubExecutor(lambda plan: 1.0), clock)
    drive(engine, clock, [Arrival(0.0, [1], samples(1, 100))], lambda: None, until=10.0)
    assert clock.now() == 10.0
    assert engine.has_unfinished
