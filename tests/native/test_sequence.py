"""Native functions in a row on several threads: order, completeness, time stamps, and threads that come late."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import carray

from paged_core.native.compile import compile_native
from paged_core.native.elements import claim, pointer
from paged_core.native.sequence import Sequence
from paged_core.native.team import Team

NUM_ITEMS = 64


def add_one(parameters: Any) -> None:
    """Parameters: counter, source, target. target[i] = source[i] + 1, item by item; slow for the first ones."""
    p = carray(parameters, (3,), np.int64)
    source, target = carray(pointer(p[1]), (64,), np.int64), carray(pointer(p[2]), (64,), np.int64)
    item = claim(p[0], 1)
    while item < 64:
        value = source[item] + 1
        for _ in range((64 - item) * 50):
            value = (value * 3 - value) - value
        target[item] = value
        item = claim(p[0], 1)


@pytest.fixture(scope="module")
def compiled() -> Any:
    return compile_native(add_one)


class Chain:
    """`length` calls, each of which reads what the one before it wrote."""

    def __init__(self, function: int, length: int) -> None:
        self.values = np.zeros((length + 1, NUM_ITEMS), dtype=np.int64)
        self.counters = np.zeros((length, 8), dtype=np.int64)
        rows = [
            (self.counters[i].ctypes.data, self.values[i].ctypes.data, self.values[i + 1].ctypes.data)
            for i in range(length)
        ]
        self.parameters = np.array(rows, dtype=np.int64)
        self.arguments = np.array([row.ctypes.data for row in self.parameters], dtype=np.int64)
        self.functions = np.full(length, function, dtype=np.int64)


@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_a_call_begins_when_the_one_before_is_complete(compiled: Any, num_threads: int) -> None:
    chain, sequence = Chain(compiled.address, 200), Sequence(Team(num_threads))
    for _ in range(20):
        chain.counters[:] = 0
        chain.values[1:] = -1
        sequence.run(chain.functions, chain.arguments)
        assert (chain.values == np.arange(201)[:, None]).all()


def test_more_threads_than_cores_complete_it_too(compiled: Any) -> None:
    """Whoever waits gives its core away in the end."""
    chain = Chain(compiled.address, 30)
    Sequence(Team(8)).run(chain.functions, chain.arguments)
    assert (chain.values[-1] == 30).all()


def test_time_stamps_rise_and_cover_every_call(compiled: Any) -> None:
    chain, sequence = Chain(compiled.address, 10), Sequence(Team(2))
    sequence.stamps = np.zeros(11, dtype=np.int64)
    sequence.run(chain.functions, chain.arguments)
    assert (np.diff(sequence.stamps) > 0).all()
    assert sequence.stamps[0] > 0


def test_a_longer_sequence_follows_a_shorter_one(compiled: Any) -> None:
    sequence = Sequence(Team(2))
    for length in (3, 50, 1):
        chain = Chain(compiled.address, length)
        sequence.run(chain.functions, chain.arguments)
        assert (chain.values[-1] == length).all()
