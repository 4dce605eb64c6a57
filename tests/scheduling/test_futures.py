"""What groups will still need: the peak by formula and by playing the future out, blocks to the announced end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paged_core.api.params import SamplingParams
from paged_core.api.request import Group, Request, Rows, Sequence
from paged_core.scheduling.futures import Future, blocks_to_come, last_length, peak_slots, slots_held

futures = st.lists(st.builds(Future, st.integers(0, 60), st.integers(0, 40), st.integers(1, 4)), max_size=12)


def played_out(all_futures):
    """The fullest moment, step by step: everybody fills its slots and leaves when it has been given its tokens."""
    fullest = 0
    for step in range(max((one.remaining for one in all_futures), default=-1) + 1):
        there = [one for one in all_futures if one.remaining >= step]
        fullest = max(fullest, sum(one.held + one.width * step for one in there))
    return fullest


@given(futures)
def test_the_peak_is_that_of_the_future_played_out(all_futures):
    assert peak_slots(all_futures) == played_out(all_futures)


def test_the_peak_of_lightllms_example():
    """Two that hold 10 and 5: the short one ends after 2 steps, at which 19 slots are full; alone, 18 at the end."""
    assert peak_slots([Future(10, 8), Future(5, 2)]) == 19
    assert peak_slots([Future(10, 8), Future(5, 1)]) == 18


def group_of(prompt, max_tokens, n=1, outputs=0, max_len=64):
    """A group with `outputs` tokens on each of its branches; forked when it has any."""
    request = Request("r", tuple(range(prompt)), SamplingParams(n=n, max_tokens=max_tokens), 0.0)
    group = Group(request, [Sequence(request)])
    rows = Rows(8, max_len)
    for index in range(n if outputs else 1):
        if index:
            group.sequences.append(Sequence(request, index))
            group.sequences[-1].parent, group.sequences[-1].divergence = group.sequences[0], prompt
        seq = group.sequences[index]
        seq.bind(rows, index)
        rows.num_tokens[index] += outputs
        rows.num_computed[index] = prompt + outputs - 1 if outputs else 0
    return group


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        (group_of(10, 7), 1),  # 16 slots in all (the last token needs none), 3 blocks for the prompt
        (group_of(10, 8), 2),
        (group_of(10, 7, outputs=4), 0),
        (group_of(10, 1), 0),
        (group_of(10, None), 13),  # up to the model's 64
        (group_of(60, 50), 1),
        (group_of(10, 7, n=3), 1 + 2 * 2),  # two more branches: a copy of the third block, and the fourth
        (group_of(10, 7, n=3, outputs=1), 3),  # forked: each a fourth block; copies belong to what they lack now
        (group_of(8, 5, n=3), 1 + 2 * 1),  # nothing to copy: the prompt ends with a block
    ],
)
def test_blocks_to_the_announced_end(group, expected):
    assert blocks_to_come(group, block_size=4, max_len=64) == expected


def test_the_announced_end_is_within_the_models_limit():
    assert last_length(group_of(10, 7), 64) == 17
    assert last_length(group_of(10, 100), 64) == last_length(group_of(10, None), 64) == 64


def test_slots_that_branches_share_count_once():
    assert slots_held(group_of(10, 7, n=3, outputs=2)) == 10 + 3 * 2
    assert slots_held(group_of(10, 7, n=3)) == 10
