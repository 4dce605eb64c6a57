"""The rule of parts: enough to load a device, no more, and never by anything but sizes."""

from __future__ import annotations

import pytest
from paged_attn_triton.splits import INVARIANT_SPLITS, MAX_SPLITS, NEARLY_BEST, InvariantSplits, SplitRule

H100 = 132  # processors, of two slots each


def test_a_device_that_is_full_cuts_nothing():
    rule = SplitRule(8, H100, 32768, 256)
    assert [rule.num_splits(seqs) for seqs in (29, 64, 1024)] == [1, 1, 1]


@pytest.mark.parametrize("num_seqs", [1, 2, 3, 5, 17, 20])
@pytest.mark.parametrize("num_kv_heads", [1, 4, 8])
def test_a_few_sequences_fill_the_device_nearly_as_well_as_can_be(num_seqs, num_kv_heads):
    rule = SplitRule(num_kv_heads, H100, 32768, 256)

    def busy(splits: int) -> float:
        programs = num_seqs * num_kv_heads * splits
        return programs / (2 * H100 * -(-programs // (2 * H100)))

    chosen = rule.num_splits(num_seqs)
    best = max(busy(splits) for splits in range(1, MAX_SPLITS + 1))
    assert busy(chosen) >= NEARLY_BEST * best
    assert all(busy(fewer) < NEARLY_BEST * best for fewer in range(1, chosen))


def test_no_more_parts_than_the_longest_context_is_worth():
    assert SplitRule(1, H100, 1000, 256).num_splits(1) == 4
    assert SplitRule(1, H100, 200, 256).num_splits(1) == 1
    assert SplitRule(1, H100, 0, 256).num_splits(1) > 4  # any length


def test_invariant_parts_are_the_same_for_every_batch():
    rule = InvariantSplits(8, H100, 32768, 256)
    assert {rule.num_splits(num_seqs) for num_seqs in (1, 7, 1000)} == {INVARIANT_SPLITS}
    assert InvariantSplits(8, H100, 300, 256).num_splits(1) == 2
