"""Length distributions: the paper's moments, and files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from paged_core.bench.lengths import alpaca_like, read_lengths, sharegpt_like
from paged_core.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


def test_sharegpt_like_has_the_papers_means_and_limits() -> None:
    pairs = sharegpt_like(40_000, np.random.default_rng(1)).pairs
    assert len(pairs) == 40_000
    assert pairs[:, 0].mean() == pytest.approx(161.31, rel=0.05)
    assert pairs[:, 1].mean() == pytest.approx(337.99, rel=0.05)
    assert pairs[:, 1].std() == pytest.approx(288, rel=0.05)
    assert pairs[:, 0].max() <= 1024
    assert pairs.sum(axis=1).max() <= 2048
    assert pairs.min() >= 4


def test_alpaca_like_has_the_papers_means() -> None:
    lengths = alpaca_like(40_000, np.random.default_rng(1))
    assert lengths.means == pytest.approx((19.31, 58.45), rel=0.05)
    assert lengths.pairs.min() >= 1


def test_the_same_seed_gives_the_same_lengths() -> None:
    one, other = (sharegpt_like(50, np.random.default_rng(5)).pairs for _ in range(2))
    assert (one == other).all()


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
