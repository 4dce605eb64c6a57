"""Prompts: equal names are equal tokens, different names are different ones, however many there are."""

from __future__ import annotations

import pytest

from paged_core.sim.prompts import Prompts
from paged_core.workload.traces import Arrival


def blocks(prompts: Prompts, names: list[int], tokens: int = 4, size: int = 4) -> list[tuple[int, ...]]:
    """The tokens of a prompt of these blocks, block by block."""
    ids = prompts.of(Arrival(0.0, len(names) * tokens, 1, blocks=tuple(names), block_tokens=size))
    return [tuple(ids[i : i + size]) for i in range(0, len(ids), size)]


def test_more_names_than_tokens_stay_apart() -> None:
    """25 names in a vocabulary of 3: three digits each."""
    prompts = Prompts(3)
    found = blocks(prompts, list(range(25)))
    assert len(set(found)) == 25
    assert blocks(prompts, [7, 24, 7]) == [found[7], found[24], found[7]]
    assert all(0 <= token < 3 for block in found for token in block)


@pytest.mark.parametrize("length", [1, 5, 9])
def test_prompts_are_as_long_as_the_trace_says(length: int) -> None:
    """The last block may stand for fewer tokens, and names may stand for fewer than there are."""
    assert len(Prompts(100).of(Arrival(0.0, length, 1, blocks=(1, 2), block_tokens=4))) == length
    assert len(Prompts(100).of(Arrival(0.0, length, 1))) == length
