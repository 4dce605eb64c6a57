from __future__ import annotations

import numpy as np
import pytest

from paged_core.sim.reproduce.load import EQUAL, PREFIXES, arrivals


@pytest.mark.parametrize("lengths", ["sharegpt", "alpaca", "translation-5"])
def test_two_rates_see_the_same_requests_closer_together(lengths: str) -> None:
    slow, fast = arrivals(lengths, 2.0, 100, 0), arrivals(lengths, 4.0, 100, 0)
    assert len(fast) > len(slow) > 150
    for one, other in zip(slow, fast, strict=False):
        assert one.at_s == pytest.approx(2 * other.at_s)
        assert (one.prompt_tokens, one.output_tokens) == (other.prompt_tokens, other.output_tokens)


def test_seeds_draw_other_requests() -> None:
    one, other = (arrivals("sharegpt", 2.0, 100, seed) for seed in (0, 1))
    assert [row.prompt_tokens for row in one[:20]] != [row.prompt_tokens for row in other[:20]]


@pytest.mark.parametrize(("lengths", "prompt", "output"), [("sharegpt", 161.31, 337.99), ("alpaca", 19.31, 58.45)])
def test_means_are_the_papers(lengths: str, prompt: float, output: float) -> None:
    rows = arrivals(lengths, 50.0, 800, 0)
    assert np.mean([row.prompt_tokens for row in rows]) == pytest.approx(prompt, rel=0.02)
    assert np.mean([row.output_tokens for row in rows]) == pytest.approx(output, rel=0.02)


@pytest.mark.parametrize("lengths", PREFIXES)
def test_translations_share_their_prefix_and_nothing_else(lengths: str) -> None:
    rows, prefix = arrivals(lengths, 10.0, 30, 0), PREFIXES[lengths]
    assert {row.blocks[0] for row in rows} == {0}
    assert {row.block_tokens for row in rows} == {prefix}
    own = [name for row in rows for name in row.blocks[1:]]
    assert len(own) == len(set(own))
    assert all(len(row.blocks) * prefix >= row.prompt_tokens > prefix for row in rows)


@pytest.mark.parametrize("lengths", EQUAL)
def test_equal_requests_are_all_alike(lengths: str) -> None:
    assert {(row.prompt_tokens, row.output_tokens) for row in arrivals(lengths, 10.0, 30, 0)} == {EQUAL[lengths]}


def test_more_requests_than_are_drawn_are_refused() -> None:
    with pytest.raises(ValueError, match="more than 65,536"):
        arrivals("alpaca", 1000.0, 600, 0)
