"""The work list of a step: units of near-equal bytes, built once and shared by all layers.

    a sequence with one query token    one unit per SPLIT keys     [0 .. 512) [512 .. 1024) [1024 .. 1100)
    a sequence with more               one unit per block of query tokens, each over all the keys it may see
    sequences with a common prefix     shared.py: one unit per SPLIT keys and block of sequences, in place of theirs

A unit runs once per KV head. Keys are split by the sequence's own length only, never by the number of neighbours or
threads: that makes results batch-invariant, and costs little (the partial results of 512 keys are about 1 % of their
bytes). Splits of 256 keys were 15 % slower on 32 sequences of 1,024 keys, for every split starts with a cold tile;
splits of 1,024 were no faster. Units are sorted by cost, largest first, and claimed one by one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from paged_attn_cpu import parameters as at
from paged_attn_cpu.shared import share_units

if TYPE_CHECKING:
    from paged_attn_cpu.shared import SharedKeys
    from paged_core.api.batch import Batch

Ints = NDArray[np.int64]

SPLIT = at.SPLIT
# (token, head of the group) rows of a prefill unit and of a shared one: reuse of a widened tile against L1 and L2 room;
# 128 to 256 rows of a shared unit were at most 5 % faster (heads of 128) or slower (heads of 64) than 64; 60 are whole
# patches of six rows for groups of 1 to 6
QUERY_ROWS = 60
UNITS_A_WORKER = 4  # from which on units are not taken apart into KV heads
PREPARE_TOKENS = 8  # tokens rotated and written per claimed item


@dataclass(frozen=True, slots=True)
class WorkPlan:
    """One step's work. Holds the arrays that the addresses in `fields` point into.

    fields: int64, the plan's part of the kernel parameters; units: int64 [units, UNIT_FIELDS], the ones that many
    sequences share first; members: int64 [members, UNIT_FIELDS], the units of single sequences that those replace;
    num_partials: partial results; num_merges: split sequences; num_shared: shared units; longest: length of the
    longest sequence that shares, 0 = none; cost: about how many (row, key) pairs a KV head visits; narrower: the plans
    of layers whose window is shorter than `longest`, where fewer sequences share.
    """

    batch: Batch
    units: Ints
    members: Ints
    slots: Ints
    fields: Ints
    num_partials: int
    num_merges: int
    num_shared: int
    longest: int
    cost: int
    narrower: dict[int, WorkPlan] = field(default_factory=dict)


def make_plan(batch: Batch, group: int, shared: SharedKeys | None = None, heads: int = 1, workers: int = 1) -> WorkPlan:
    """Plan a batch for KV heads with `group` query heads each; a fixed number of numpy calls, whatever the batch.

    heads: KV heads that a worker had best claim together. It does so when that leaves some units for each of `workers`.
    """
    tokens_a_unit = max(1, QUERY_ROWS // group)
    units, owner = _units(batch, tokens_a_unit, shared)
    num_partials = int(units[:, at.PARTIAL].max(initial=-1)) + 1
    num_merges = int(units[:, at.MERGE].max(initial=-1)) + 1
    members, num_shared = units[:0], 0
    if shared is not None:
        units, members, num_shared = share_units(units, owner, shared, tokens_a_unit)
    cost = (units[:, at.END] - units[:, at.BEGIN]) * units[:, at.COUNT]
    # shared units first, those that go on from their results last: then hardly anybody waits
    turn = np.where(units[:, at.FIRST_MEMBER] >= 0, 0, np.where(units[:, at.SHARED] >= 0, 2, 1))
    units = np.ascontiguousarray(units[np.lexsort((-cost, turn))])
    slots = np.ascontiguousarray(batch.slots, dtype=np.int64)
    tables = batch.tables
    fields = np.array(
        [
            batch.num_tokens,
            -(-batch.num_tokens // PREPARE_TOKENS),
            slots.ctypes.data,
            tables.ctypes.data,
            tables.strides[0] // tables.itemsize,
            len(units),
            units.ctypes.data,
            members.ctypes.data,
            num_merges,
            heads if len(units) >= UNITS_A_WORKER * workers else 1,
        ],
        dtype=np.int64,
    )
    longest = 0 if shared is None else int(batch.seq_lens[shared.num_keys > 0].max(initial=0))
    sizes = (num_partials, num_merges, num_shared, longest, int(cost.sum()) * group)
    return WorkPlan(batch, units, members, slots, fields, *sizes)


def _units(batch: Batch, tokens_a_unit: int, shared: SharedKeys | None) -> tuple[Ints, Ints]:
    """Units in the batch's order as if nothing were shared, and their sequences; who shares has places for results."""
    starts = batch.query_start.astype(np.int64)
    counts = np.diff(starts)
    lengths = batch.seq_lens.astype(np.int64)
    decoding = counts == 1
    pieces = np.where(decoding, -(-lengths // SPLIT), -(-counts // tokens_a_unit))
    owner = np.repeat(np.arange(len(counts)), pieces)
    piece = np.arange(len(owner)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    single = decoding[owner]
    is_split = decoding & (pieces > 1)
    is_kept = is_split if shared is None else is_split | (shared.num_keys > 0)
    partial_start = np.cumsum(np.where(is_kept, pieces, 0)) - np.where(is_kept, pieces, 0)
    merge = np.cumsum(is_split) - 1
    first = np.where(single, 0, piece * tokens_a_unit)  # first query token of the unit within its sequence
    count = np.where(single, 1, np.minimum(tokens_a_unit, counts[owner] - first))
    units = np.empty((len(owner), at.UNIT_FIELDS), dtype=np.int64)
    units[:, at.ROW] = batch.rows[owner]
    units[:, at.TOKEN] = starts[owner] + first
    units[:, at.COUNT] = count
    units[:, at.POSITION] = lengths[owner] - counts[owner] + first
    units[:, at.BEGIN] = np.where(single, piece * SPLIT, 0)
    units[:, at.END] = np.where(single, np.minimum((piece + 1) * SPLIT, lengths[owner]), units[:, at.POSITION] + count)
    units[:, at.FIRST_PARTIAL] = partial_start[owner]
    units[:, at.PARTIAL] = np.where(is_kept[owner], partial_start[owner] + piece, -1)
    units[:, at.PARTS] = pieces[owner]
    units[:, at.MERGE] = np.where(is_split[owner], merge[owner], -1)
    units[:, at.FIRST_MEMBER] = -1
    units[:, at.SHARED] = -1
    return units, owner
