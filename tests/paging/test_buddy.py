"""Buddy against sets of blocks: what is free is cut into the largest aligned chunks, whatever happened before."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paged_core.errors import PluginContractError
from paged_core.paging.buddy import Buddy, Chunk, order_for


def regions(num_blocks: int) -> list[Chunk]:
    """The pool as powers of two, largest first."""
    found, start = [], 0
    for order in range(num_blocks.bit_length() - 1, -1, -1):
        if num_blocks >> order & 1:
            found.append(Chunk(start, order))
            start += 1 << order
    return found


def cut(free: set[int], chunk: Chunk) -> set[Chunk]:
    """The maximal aligned chunks within `chunk` all of whose blocks are free."""
    if free.issuperset(chunk.blocks):
        return {chunk}
    if not chunk.order:
        return set()
    half = chunk.order - 1
    return cut(free, Chunk(chunk.start, half)) | cut(free, Chunk(chunk.start + (1 << half), half))


def chunks_of(num_blocks: int, free: set[int]) -> set[Chunk]:
    return set().union(*(cut(free, region) for region in regions(num_blocks)), set())


def can_place(num_blocks: int, free: set[int], orders: list[int]) -> bool:
    """Whether the orders fit, by trying all places."""
    if not orders:
        return True
    order, *rest = orders
    size = 1 << order
    for region in regions(num_blocks):
        for start in range(region.start, region.start + region.size - size + 1, size):
            blocks = set(range(start, start + size))
            if order <= region.order and blocks <= free and can_place(num_blocks, free - blocks, rest):
                return True
    return False


def test_orders_are_the_smallest_that_hold_the_blocks() -> None:
    assert [order_for(num) for num in (1, 2, 3, 4, 5, 8, 9, 1024, 1025)] == [0, 1, 2, 2, 3, 3, 4, 10, 11]


def test_a_worked_example() -> None:
    """The README's: 12 blocks are 8 and 4."""
    buddy = Buddy(12)
    one, two = buddy.allocate(1), buddy.allocate(2)
    assert (one, two) == (Chunk(8, 1), Chunk(0, 2)), "the smallest that is large enough is split"
    assert buddy.free == [set(), {10}, {4}, set()]
    assert not buddy.fits([3]), "six blocks are free, but no eight in one piece"
    assert one is not None
    assert two is not None
    buddy.release(two)
    assert buddy.free == [set(), {10}, set(), {0}], "the halves of 8 are merged"
    buddy.release(one)
    assert buddy.free == [set(), set(), {8}, {0}], "0..7 and 8..11 are no buddies"


@pytest.mark.parametrize("num_blocks", [0, 1, 2, 7, 983, 15728])
def test_a_fresh_pool_is_free_in_powers_of_two(num_blocks: int) -> None:
    buddy = Buddy(num_blocks)
    buddy.check([])
    assert {Chunk(start, order) for order, starts in enumerate(buddy.free) for start in starts} == set(
        regions(num_blocks)
    )
    assert buddy.num_free == num_blocks
    assert buddy.allocate(buddy.top + 1) is None


ORDERS = st.lists(st.integers(0, 3), max_size=4)


@settings(deadline=None, max_examples=200)
@given(st.integers(1, 14), st.lists(st.tuples(ORDERS, st.integers(0, 5)), max_size=8))
def test_any_use_leaves_the_largest_chunks_there_can_be(num_blocks: int, steps: list[tuple[list[int], int]]) -> None:
    buddy, held, free = Buddy(num_blocks), [], set(range(num_blocks))
    for orders, num_freed in steps:
        possible = can_place(num_blocks, free, orders)
        assert buddy.fits(orders) == possible, f"{orders} in {sorted(free)} of {num_blocks}"
        twin = buddy.copy()
        made = buddy.allocate_all(orders)
        assert (made is not None) == possible
        assert (twin.allocate_all(sorted(orders)) is not None) == possible, "another order, another answer"
        for chunk in made or ():
            assert free.issuperset(chunk.blocks), f"{chunk} was held"
            free -= set(chunk.blocks)
            held.append(chunk)
        for chunk in [held.pop() for _ in range(min(num_freed, len(held)))][::-1]:
            buddy.release(chunk)
            free |= set(chunk.blocks)
        buddy.check(held)
        assert buddy.num_free == len(free)
        now = {Chunk(start, order) for order, starts in enumerate(buddy.free) for start in starts}
        assert now == chunks_of(num_blocks, free)


def test_what_is_wrong_is_named() -> None:
    buddy = Buddy(8)
    chunk = buddy.allocate(1)
    assert chunk is not None
    with pytest.raises(PluginContractError, match="law"):
        buddy.check([])
    with pytest.raises(PluginContractError, match="law"):
        buddy.check([chunk, chunk])
    buddy.check([chunk])
    apart = Buddy(8)
    apart.free = [set(), set(), {0, 4}, set()]
    with pytest.raises(PluginContractError, match="not merged"):
        apart.check([])
    crooked = Buddy(3)
    crooked.free = [{0}, {1}]
    with pytest.raises(PluginContractError, match="multiple of their size"):
        crooked.check([])
    miscounted = Buddy(4)
    miscounted.num_free = 3
    with pytest.raises(PluginContractError, match="counted as free"):
        miscounted.check([])
    buddy.release(chunk)
    with pytest.raises(PluginContractError, match="twice"):
        Buddy(8).release(Chunk(0, 3))
