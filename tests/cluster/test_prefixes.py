"""What a router believes to be cached: against a plain list, and the law that makes the search by halves right."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paged_core.cluster.order import Order, prefix_keys
from paged_core.cluster.prefixes import KnownPrefixes

PROMPTS = st.lists(st.lists(st.integers(0, 2), max_size=12), max_size=20)


def leading(known: KnownPrefixes, keys: tuple[int, ...]) -> int:
    return next((i for i, key in enumerate(keys) if key not in known), len(keys))


@given(PROMPTS, st.integers(0, 12))
def test_search_by_halves_finds_what_a_walk_finds_and_room_is_bounded(prompts, capacity):
    known = KnownPrefixes(capacity)
    chains = [prefix_keys(prompt, 2, None) for prompt in prompts]
    for keys in chains:
        known.remember(keys)
        assert len(known) <= capacity
        assert known.match(keys) == min(capacity, len(keys))
        for other in chains:
            assert known.match(other) == leading(known, other)
            assert not any(key in known for key in other[known.match(other) :]), "a block is known, one before it not"


@given(PROMPTS, st.integers(0, 12), st.integers(0, 12))
def test_less_room_forgets_the_oldest_and_keeps_the_law(prompts, capacity, less):
    known = KnownPrefixes(capacity)
    chains = [prefix_keys(prompt, 2, None) for prompt in prompts]
    for keys in chains:
        known.remember(keys)
    known.resize(less)
    assert len(known) <= less
    for keys in chains:
        assert known.match(keys) == leading(known, keys)
    if chains:
        assert known.match(chains[-1]) == min(less, capacity, len(chains[-1]))


@given(st.lists(st.integers(0, 3)), st.lists(st.integers(0, 3)), st.integers(1, 4))
def test_keys_are_equal_as_far_as_whole_blocks_are(left, right, size):
    keys, others = prefix_keys(left, size, "salt"), prefix_keys(right, size, "salt")
    assert len(keys) == len(left) // size
    same = next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))
    for i, (a, b) in enumerate(zip(keys, others, strict=False)):
        assert (a == b) == ((i + 1) * size <= same)


def test_other_salts_and_adapters_have_nothing_in_common():
    roots = [(None, None), ("", None), ("a", None), ("b", None), (None, "a"), ("a", "a")]
    keys = {key for root in roots for key in prefix_keys(range(64), 16, root)}
    assert len(keys) == 4 * len(roots)


def test_an_order_travels_without_its_keys():
    import pickle

    order = Order(((1, 2, 3),), 50, 2, "here", replica="r", has_begun=True)
    copy = pickle.loads(pickle.dumps(order))
    assert (copy.keys, copy.num_tokens, copy.num_seqs, copy.source) == ((), 50, 2, "here")
