"""Siblings against a search through all of them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from paged_core.paging.hits import Siblings, common_tokens

BLOCKS = st.lists(st.sampled_from([0, 1, 255, 256, 65536, 2**31 - 1]), min_size=3, max_size=3)


def content(tokens):
    return np.array(tokens, dtype=np.int32).tobytes()


@given(st.sets(BLOCKS.map(content), max_size=30), BLOCKS, st.integers(0, 3))
def test_the_closest_is_as_close_as_any(blocks, tokens, length):
    siblings = Siblings()
    for block in blocks:
        siblings.add(block)
    wanted = content(tokens[:length])
    closest, common = siblings.closest(wanted)
    assert common == max((common_tokens(block, wanted) for block in blocks), default=0)
    assert not common or (closest in blocks and common_tokens(closest, wanted) == common)
    for block in blocks:
        siblings.remove(block)
    assert siblings.ordered == []


def test_tokens_are_compared_as_tokens_not_as_bytes():
    assert common_tokens(content([7, 256]), content([7, 512])) == 1
    assert common_tokens(content([1, 2, 3]), content([1, 2])) == 2
    assert common_tokens(b"", content([1])) == 0
