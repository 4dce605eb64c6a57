"""Which rows share leading blocks: found among decoding rows, proved each step, disjoint, and worth most."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paged_core.api.params import SamplingParams
from paged_core.api.request import Rows
from paged_core.engine.prefixes import SharedPrefixes, best_sets

BLOCK = 4


def found(tables, lengths, rows=None):
    """What `among` answers, as {depth: members} lists, for tables given as lists of block ids."""
    prefixes, order = world(tables, lengths, rows)
    return plain(prefixes.among(order))


def world(tables, lengths, rows=None):
    width = max(map(len, tables))
    allocator = SimpleNamespace(block_size=BLOCK, tables=np.full((len(tables), width), 2**31 - 1, dtype=np.int32))
    for row, table in enumerate(tables):
        allocator.tables[row, : len(table)] = table
    columns = Rows(len(tables), 64)
    columns.num_computed[:] = lengths
    order = np.arange(len(tables), dtype=np.int32) if rows is None else np.array(rows, dtype=np.int32)
    return SharedPrefixes(allocator, columns), order  # type: ignore[arg-type]


def plain(sets):
    return sorted((sorted(rows.tolist()), depth) for rows, depth in sets)


def test_two_rows_share_their_common_blocks():
    assert found([[1, 2, 3, 4], [1, 2, 9, 8], [5, 6, 7, 0]], [16, 16, 16]) == [([0, 1], 2)]


def test_only_full_computed_blocks_count():
    tables = [[1, 2, 3], [1, 2, 3], [1, 2, 3]]
    assert found(tables, [12, 11, 9]) == [([0, 1, 2], 2)]
    assert found(tables, [12, 3, 3]) == []
    assert found(tables, [12, 12, 3]) == [([0, 1], 3)]


def test_only_the_rows_asked_about_count():
    assert found([[1, 2], [1, 2], [1, 2]], [8, 8, 8], rows=[0, 2]) == [([0, 2], 2)]
    assert found([[1, 2], [1, 2]], [8, 8], rows=[1]) == []
    assert found([[1, 2], [1, 2]], [8, 8], rows=[]) == []


def test_sets_are_disjoint_and_save_most():
    """Two deep pairs under a common root save more than the root; a shallow fork does not."""
    deep = [[1, 2, 3, 4, 5], [1, 2, 3, 4, 5], [1, 2, 7, 8, 9], [1, 2, 7, 8, 9]]
    assert found(deep, [20] * 4) == [([0, 1], 5), ([2, 3], 5)]
    shallow = [[1, 2, 3, 4, 5], [1, 2, 3, 4, 6], [1, 2, 3, 7, 8], [1, 2, 3, 9, 9]]
    assert found(shallow, [20] * 4) == [([0, 1, 2, 3], 3)]


def test_a_block_met_at_another_place_is_not_a_prefix():
    assert found([[1, 2, 3], [2, 3, 1], [9, 2, 3]], [12] * 3) == []


def trees(max_depth):
    return st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=max_depth), min_size=1, max_size=7)


def brute(tables, rows):
    """The most that disjoint sets of at least two can save."""
    if len(rows) < 2:
        return 0
    first, rest = rows[0], rows[1:]
    best = brute(tables, rest)
    for mask in range(1, 2 ** len(rest)):
        chosen = [first, *(row for i, row in enumerate(rest) if mask >> i & 1)]
        depth = 0
        while all(len(tables[r]) > depth and tables[r][depth] == tables[first][depth] for r in chosen):
            depth += 1
        others = [row for row in rest if row not in chosen]
        best = max(best, (len(chosen) - 1) * depth + brute(tables, others))
    return best


def saving(sets):
    return sum((len(rows) - 1) * depth for rows, depth in sets)


@given(trees(5))
def test_sets_are_disjoint_true_and_worth_as_much_as_any_single_one(tables):
    sets = found(tables, [BLOCK * len(table) for table in tables])
    members = [row for rows, _ in sets for row in rows]
    assert len(set(members)) == len(members)
    for rows, depth in sets:
        assert len(rows) > 1
        assert len({tuple(tables[row][:depth]) for row in rows}) == 1
        assert all(len(tables[row]) >= depth > 0 for row in rows)
    prefixes = {tuple(table[:depth]) for table in tables for depth in range(1, len(table) + 1)}
    alone = [(sum(tuple(t[: len(p)]) == p for t in tables) - 1) * len(p) for p in prefixes]
    assert saving(sets) >= max(alone)


@given(trees(2))
def test_nothing_saves_more_in_a_tree_of_two_levels(tables):
    sets = found(tables, [BLOCK * len(table) for table in tables])
    assert saving(sets) == brute(tables, list(range(len(tables))))


def test_runs_of_sorted_rows():
    assert best_sets([]) == []
    assert best_sets([0, 0]) == []
    assert best_sets([2, 0, 3]) == [([0, 1], 2), ([2, 3], 3)]
    assert best_sets([1, 5, 1]) == [([1, 2], 5), ([0, 3], 1)]
    assert best_sets([4, 5, 4]) == [([0, 1, 2, 3], 4)]


def test_an_unchanged_step_is_answered_from_the_last(monkeypatch):
    prefixes, rows = world([[1, 2], [1, 2]], [8, 8])
    first = prefixes.among(rows)
    monkeypatch.setattr(prefixes, "_find", lambda rows: pytest.fail("searched again"))
    assert prefixes.among(rows) is first


def test_a_table_that_changes_under_a_row_ends_its_sharing():
    """The rows are the same array, yet a member was given another block (a beam that was replaced)."""
    prefixes, rows = world([[1, 2, 3], [1, 2, 3], [1, 2, 3]], [12, 12, 12])
    assert plain(prefixes.among(rows)) == [([0, 1, 2], 3)]
    prefixes._allocator.tables[1, 1] = 7
    assert plain(prefixes.among(rows)) == [([0, 2], 3)]
    prefixes._allocator.tables[2, 0] = 8
    assert plain(prefixes.among(rows)) == [([0, 1], 1)]


# -- in the engine -----------------------------------------------------------------------------------------------------

PROMPT = list(b"one prompt of several blocks that all ask")


def watched(engine):
    """Every plan the engine makes, with the tables as they were."""
    plans = []
    submit = engine._executor.submit

    def record(plan):
        tables = engine._ledger.allocator.tables
        lengths = dict(zip(plan.rows.tolist(), plan.seq_lens.tolist(), strict=True))
        size = engine._ledger.allocator.block_size
        for rows, depth in plan.shared_prefixes:
            assert len(rows) > 1
            assert depth > 0
            for row in rows:
                assert np.array_equal(tables[row, :depth], tables[rows[0], :depth])
                assert depth * size < lengths[row], "a shared block is full before this step"
        plans.append(sorted((len(rows), depth) for rows, depth in plan.shared_prefixes))
        return submit(plan)

    engine._executor.submit = record
    return plans


def test_branches_share_their_prompt_after_the_fork(shadow, drain):
    engine = shadow(num_blocks=256)
    plans = watched(engine)
    size = engine._ledger.allocator.block_size
    engine.add_request("r", PROMPT, SamplingParams(n=4, temperature=1.0, seed=1, max_tokens=6, ignore_eos=True))
    drain(engine)
    assert plans[0] == []
    assert [(4, len(PROMPT) // size)] in plans


def test_prefix_hits_share_and_who_leaves_is_left_out(shadow, drain):
    engine = shadow(num_blocks=256)
    plans = watched(engine)
    size = engine._ledger.allocator.block_size
    engine.add_request("first", PROMPT, SamplingParams(temperature=0, max_tokens=2, ignore_eos=True))
    drain(engine)
    for i, budget in enumerate((3, 6, 9)):
        params = SamplingParams(temperature=0, max_tokens=budget, ignore_eos=True)
        engine.add_request(f"r{i}", PROMPT + list(b"abcd") * i, params)
    drain(engine)
    blocks = len(PROMPT) // size
    sizes = [num for plan in plans for num, depth in plan if depth >= blocks]
    assert sizes[0] == 3
    assert 2 in sizes
    assert plans[-1] == []


def test_preempted_members_are_left_out_and_come_back(shadow, drain):
    """A pool too small for all: sets shrink and grow, and every one of them holds (see `watched`)."""
    engine = shadow(num_blocks=40, num_host_blocks=0, prefix_cache=True)
    plans = watched(engine)
    for i in range(8):
        params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
        engine.add_request(f"r{i}", [*PROMPT, 65 + i], params)
    drain(engine)
    assert sum(engine._ledger.num_preemptions.values()) > 0
    assert any(plans)
