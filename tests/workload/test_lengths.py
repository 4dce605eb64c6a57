"""Length distributions: the paper's moments, and files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from paged_core.errors import ConfigError
from paged_core.workload.arrivals import arrival_times
from paged_core.workload.lengths import MOST_TOKENS, alpaca, arrivals_of, constant, read_lengths, sharegpt
from paged_core.workload.traces import Arrival

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.random import Generator

    from paged_core.workload.lengths import Lengths

MANY = 400_000  # the error of a mean is then below 0.2 % of it (one sigma)


def test_sharegpt_has_the_papers_means_and_the_spread_that_its_memory_figures_imply() -> None:
    pairs = sharegpt(MANY, np.random.default_rng(1)).pairs
    assert pairs[:, 0].mean() == pytest.approx(161.31, rel=0.01)
    assert pairs[:, 1].mean() == pytest.approx(337.99, rel=0.005)
    assert pairs[:, 1].std() == pytest.approx(288, rel=0.01)
    # Tokens that a request holds on average while it runs, twice: the figure from which the spread was solved.
    prompt, output = pairs.T.astype(float)
    assert (output * (prompt + output)).mean() / output.mean() == pytest.approx(745, rel=0.02)


def test_sharegpt_is_cut_as_the_paper_cuts_it() -> None:
    pairs = sharegpt(MANY, np.random.default_rng(2)).pairs
    assert (pairs[:, 0].min(), pairs[:, 0].max()) == (4, 1024)
    assert pairs[:, 1].min() == 1
    assert MOST_TOKENS - 20 <= pairs.sum(axis=1).max() <= MOST_TOKENS


def test_alpaca_has_the_papers_means() -> None:
    lengths = alpaca(MANY, np.random.default_rng(1))
    assert lengths.means == pytest.approx((19.31, 58.45), rel=0.005)
    assert lengths.pairs.min() >= 1
    assert lengths.pairs[:, 1].std() / lengths.means[1] == pytest.approx(1.04, rel=0.02)


@pytest.mark.parametrize("generator", [sharegpt, alpaca])
def test_as_many_as_asked_for_and_the_same_ones_by_seed(generator: Callable[[int, Generator], Lengths]) -> None:
    one, again, other = (generator(50, np.random.default_rng(seed)).pairs for seed in (5, 5, 6))
    assert one.shape == (50, 2)
    assert (one == again).all()
    assert (one != other).any()
    assert generator(0, np.random.default_rng(0)).pairs.shape == (0, 2)


def test_constant_lengths_have_no_spread() -> None:
    assert constant(3, 10, 20).pairs.tolist() == [[10, 20]] * 3


def test_lengths_and_times_become_arrivals_in_order() -> None:
    assert arrivals_of(constant(2, 10, 20), [0.5, 2.0]) == [Arrival(0.5, 10, 20), Arrival(2.0, 10, 20)]
    drawn = arrivals_of(alpaca(30, np.random.default_rng(0)), arrival_times(30, 2.0, 1.0, np.random.default_rng(1)))
    assert len(drawn) == 30
    assert all(type(row.prompt_tokens) is int and type(row.at_s) is float for row in drawn)
    with pytest.raises(ValueError, match="argument"):
        arrivals_of(constant(2, 10, 20), [0.5])


def test_a_file_of_lengths_is_read_without_what_does_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("client,prompt_tokens,output_tokens\n1,10,20\n2,3000,5\n3,7,0\n4,30,40\n")
    assert read_lengths(path, "x").pairs.tolist() == [[10, 20], [30, 40]]


@pytest.mark.parametrize("text", ["a,b\n1,2\n", "prompt_tokens,output_tokens\nx,1\n", "prompt_tokens,output_tokens\n"])
def test_a_file_without_lengths_is_refused_by_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"bad\.csv"):
        read_lengths(path, "x")
