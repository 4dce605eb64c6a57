"""Into how many ranges decodes cut contexts, and which launches a step needs."""

from __future__ import annotations

import pytest
from paged_attn_cuda.planning import INVARIANT_SPLITS, MAX_SPLITS, PROGRAMS, SPLIT_TOKENS, SplitRule


def rule(programs: int = 8, processors: int = 132, max_len: int = 0, invariant: bool = False) -> SplitRule:
    return SplitRule(programs, processors, max_len, invariant)


def test_a_single_long_sequence_fills_the_device() -> None:
    assert rule().num_splits(1) == PROGRAMS * 132 // 8
    assert rule(programs=1).num_splits(1) == MAX_SPLITS


def test_many_sequences_are_not_cut() -> None:
    assert [rule().num_splits(n) for n in (32, 256, 10_000)] == [1, 1, 1]


@pytest.mark.parametrize("programs", [1, 3, 8, 40])
def test_more_sequences_never_mean_more_ranges_nor_more_programs_than_wanted(programs: int) -> None:
    counts = [rule(programs).num_splits(n) for n in range(1, 700)]
    assert counts == sorted(counts, reverse=True)
    assert all(splits == 1 or n * programs * splits <= PROGRAMS * 132 for n, splits in enumerate(counts, 1))


def test_short_contexts_are_not_cut_finer_than_the_unit() -> None:
    assert rule(max_len=SPLIT_TOKENS).num_splits(1) == 1
    assert rule(max_len=3 * SPLIT_TOKENS + 1).num_splits(1) == 4


def test_under_batch_invariance_the_batch_does_not_matter() -> None:
    assert {rule(invariant=True).num_splits(n) for n in range(1, 300)} == {INVARIANT_SPLITS}


def test_scratch_holds_the_parts_of_every_batch() -> None:
    for each in (rule(), rule(invariant=True), rule(max_len=512)):
        most = each.most_parts(100)
        needed = [n * each.num_splits(n) for n in range(1, 101) if each.num_splits(n) > 1]
        assert most == max(needed, default=0)
    assert rule().most_parts(0) == 0
