"""Shared prefixes: read once for all their sequences, and not a bit of any result changes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from paged_attn_cpu import parameters as at
from paged_attn_cpu.planning import QUERY_ROWS, SPLIT, make_plan
from paged_attn_cpu.shared import LEAST, find_shared

from paged_core.api.attention import AttentionLayer
from paged_core.api.batch import Batch

TILE = 64


def used(keys):
    """How many of the common keys are shared: whole tiles, and few of a split not at all."""
    keys = keys // TILE * TILE
    return keys if keys % SPLIT >= LEAST else keys // SPLIT * SPLIT


def share(world, sets):
    """Give every set of sequences the leading tokens and blocks of its first; sets: [(sequences, tokens)]."""
    found = []
    for sequences, tokens in sets:
        num_blocks = tokens // world.block_size
        first = sequences[0]
        for other in sequences[1:]:
            world.tables[world.rows[other], :num_blocks] = world.tables[world.rows[first], :num_blocks]
            for part in (1, 2):
                common = num_blocks * world.block_size
                world.data[other][part][:common] = world.data[first][part][:common]
        found.append((world.rows[sequences], num_blocks))
    world._fill_prefixes()
    return found


def both(world, found, spans=None, layer=None):
    """Results with nobody told and with sharing, and the plan of the second."""
    layer = layer or AttentionLayer(0, world.head_dim**-0.5)
    spans = world.spans if spans is None else spans
    q, k, v = world.inputs(spans)
    results = []
    for sets in ([], found):
        plan = world.backend.plan(replace(world.batch(spans), shared_prefixes=sets))
        out = torch.full_like(q, float("nan"))
        lse = world.backend.forward(layer, q, k, v, world.cache, plan, out)
        results.append((out, lse))
    return results[0], results[1], plan


SHAPES = [
    ({"heads": (4, 4), "head_dim": 64, "block_size": 1}, "float32"),
    ({"heads": (9, 3), "head_dim": 64, "block_size": 16}, "bfloat16"),
    ({"heads": (8, 1), "head_dim": 128, "block_size": 64}, "float32"),
    ({"heads": (8, 2), "head_dim": 128, "block_size": 32}, "bfloat16"),
    ({"heads": (4, 2), "head_dim": 40, "block_size": 5}, "float16"),
]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("prefix", [70, 341, 512, 700, 1100])
@pytest.mark.parametrize(("shape", "dtype"), SHAPES)
def test_sharing_changes_no_bit(world, shape, dtype, prefix, threads):
    lengths = [prefix + own for own in (3, 64, 200, 450, 7, 1, 90)]
    paged = world([(n, 1) for n in lengths], dtype=dtype, kv_dtype=dtype, threads=threads, **shape)
    found = share(paged, [([0, 3, 1, 4, 6], prefix)])
    alone, shared, plan = both(paged, found)
    assert plan.num_shared == -(-used(prefix // paged.block_size * paged.block_size) // SPLIT)
    assert torch.equal(alone[0], shared[0])
    tolerance = {"float32": 2e-5, "bfloat16": 2e-2, "float16": 3e-3}[dtype]
    torch.testing.assert_close(shared[0].double(), paged.expected()[0], atol=tolerance, rtol=tolerance)


def test_more_members_than_a_unit_has_rows(world):
    """40 sequences of 4 heads a KV head: three units a split, and the softcap and log-sum-exp come along."""
    paged = world(
        [(710 + i, 1) for i in range(40)], heads=(8, 2), block_size=16, required=frozenset({"lse", "softcap"})
    )
    found = share(paged, [(list(range(40)), 704)])
    alone, shared, plan = both(paged, found, layer=AttentionLayer(0, 0.25, softcap=3.0))
    assert plan.num_shared == 2 * 3
    assert max(plan.units[: plan.num_shared, at.COUNT]) * 4 <= QUERY_ROWS
    assert torch.equal(alone[0], shared[0])
    assert torch.equal(alone[1], shared[1])


def test_two_sets_beside_prefills_and_strangers(world):
    sequences = [(200, 1), (300, 1), (10, 90), (260, 1), (1030, 1), (1040, 1), (0, 1), (130, 2)]
    paged = world(sequences, heads=(9, 3), head_dim=64, block_size=16)
    found = share(paged, [([0, 1], 192), ([4, 5], 1024)])
    alone, shared, plan = both(paged, found)
    assert plan.num_shared == 1 + 2
    assert torch.equal(alone[0], shared[0])


def test_a_set_whose_members_do_not_all_decode_now(world):
    """A member that is not in the batch or computes a chunk reads its own; a set of one left over shares nothing."""
    paged = world([(200, 1), (300, 40), (260, 1), (260, 1)], block_size=4)
    found = share(paged, [([0, 1, 2, 3], 192)])
    for left_out, units in (([], 1), ([3], 1), ([2, 3], 0), ([0, 2, 3], 0)):
        spans = [span for span in paged.spans if span[0] not in left_out]
        alone, shared, plan = both(paged, found, spans)
        assert plan.num_shared == units
        assert torch.equal(alone[0], shared[0])


@pytest.mark.parametrize(("window", "units"), [(None, 1), (4000, 1), (660, 1), (610, 0), (600, 0), (100, 0)])
def test_sequences_that_a_window_cuts_read_their_own(world, window, units):
    """Layers with and without a window share one plan of a step; lengths are 601, 651, 605."""
    paged = world([(600, 1), (650, 1), (604, 1)], block_size=4, required=frozenset({"sliding_window"}))
    found = share(paged, [([0, 1], 580)])
    layer = AttentionLayer(0, 0.25, window=window)
    alone, shared, plan = both(paged, found, layer=layer)
    assert plan.narrower.get(window, plan).num_shared == units
    assert torch.equal(alone[0], shared[0])
    torch.testing.assert_close(shared[0].double(), paged.expected(layer=layer)[0], atol=2e-5, rtol=2e-5)


def test_neighbours_in_a_shared_unit_change_no_bit(world):
    paged = world([(700 + i, 1) for i in range(6)], heads=(9, 3), head_dim=64, block_size=16)
    rows, blocks = share(paged, [(list(range(6)), 688)])[0]
    everybody = both(paged, [(rows, blocks)])[1][0]
    for chosen in ([0, 1], [1, 5, 2]):
        few = both(paged, [(rows[chosen], blocks)], [paged.spans[i] for i in chosen])[1][0]
        assert torch.equal(few, everybody[chosen])


def test_short_ends_of_a_prefix_are_not_shared(world):
    for prefix, num_shared in ((60, 0), (188, 0), (192, 1), (512, 1), (700, 1), (704, 2)):
        paged = world([(720, 1), (720, 1)], block_size=4)
        assert both(paged, share(paged, [([0, 1], prefix)]))[2].num_shared == num_shared


# -- the work list ----------------------------------------------------------------------------------------------------

LENGTHS = st.lists(st.integers(1, 1700), min_size=2, max_size=12)


def batch_of(lengths, sets, num_new=None):
    counts = np.ones(len(lengths), dtype=np.int32) if num_new is None else num_new
    return Batch(
        num_tokens=int(counts.sum()),
        num_seqs=len(lengths),
        query_start=np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
        seq_lens=np.array(lengths, dtype=np.int32),
        rows=np.arange(len(lengths), dtype=np.int32)[::-1].copy(),
        tables=np.zeros((len(lengths), 4), dtype=np.int32),
        positions=np.zeros(int(counts.sum()), dtype=np.int32),
        slots=np.zeros(int(counts.sum()), dtype=np.int64),
        shared_prefixes=sets,
    )


@settings(deadline=None)
@given(LENGTHS, st.integers(1, 110), st.sampled_from([1, 3, 8, 100]), st.data())
def test_every_token_meets_its_keys_once_in_units_of_its_own_or_shared(lengths, num_blocks, group, data):
    rows = data.draw(st.lists(st.integers(0, len(lengths) - 1), min_size=2, unique=True))
    batch = batch_of(lengths, [(np.array(rows, dtype=np.int32), num_blocks)])
    shared = find_shared(batch, 16)
    plan = make_plan(batch, group, shared)
    seen: dict[int, list[tuple[int, int]]] = {token: [] for token in range(len(lengths))}
    for number, unit in enumerate(plan.units):
        span = (int(unit[at.BEGIN]), int(unit[at.END]))
        assert span[0] // SPLIT == (span[1] - 1) // SPLIT, "a unit lies in one split"
        if number < plan.num_shared:
            first, count = unit[at.FIRST_MEMBER], unit[at.COUNT]
            assert count * group <= max(QUERY_ROWS, group)
            assert unit[at.SHARED] == number
            for member in plan.members[first : first + count]:
                seen[int(member[at.TOKEN])].append(span)
                assert member[at.PARTIAL] >= 0
        else:
            seen[int(unit[at.TOKEN])].append(span)
            assert (unit[at.SHARED] >= 0) == (span[0] % SPLIT != 0), (
                "who begins inside a split goes on from a shared one"
            )
    for token, spans in seen.items():
        ordered = sorted(spans)
        assert [0, *(end for _, end in ordered)] == [*(begin for begin, _ in ordered), lengths[token]]
    least = min(lengths[len(lengths) - 1 - row] for row in rows)
    keys = used(min(num_blocks * 16, least - 1))
    assert (plan.num_shared > 0) == (keys > 0)
    visits = int((plan.units[:, at.END] - plan.units[:, at.BEGIN]).sum())  # keys read
    units_a_split = -(-len(rows) // max(1, QUERY_ROWS // group))
    assert visits == sum(lengths) - (len(rows) - units_a_split) * keys


@given(LENGTHS)
def test_without_sets_the_list_is_as_ever(lengths):
    batch = batch_of(lengths, [])
    assert find_shared(batch, 16) is None
    plan = make_plan(batch, 3)
    assert plan.num_shared == plan.longest == 0
    assert (plan.units[:, at.FIRST_MEMBER] == -1).all()
