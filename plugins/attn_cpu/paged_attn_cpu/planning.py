"""The work list of a step: units of near-equal bytes, built once and shared by all layers.

    a sequence with one query token    one unit per SPLIT keys     [0 .. 512) [512 .. 1024) [1024 .. 1100)
    a sequence with more               one unit per block of query tokens, each over all the keys it may see

A unit runs once per KV head. Keys are split by the sequence's own length only, never by the number of neighbours or
threads: that makes results batch-invariant, and costs little (the partial results of 512 keys are about 1 % of their
bytes). Splits of 256 keys were 15 % slower on 32 sequences of 1,024 keys, for every split starts with a cold tile;
splits of 1,024 were no faster. Units are sorted by cost, largest first, and claimed one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from paged_attn_cpu import parameters as at

if TYPE_CHECKING:
    from paged_core.api.batch import Batch

Ints = NDArray[np.int64]

SPLIT = 512  # keys per unit of a decoding sequence; a multiple of the softmax tile
QUERY_ROWS = 64  # (token, head of the group) rows of a prefill unit: reuse of a widened tile against L1 and L2 room
PREPARE_TOKENS = 8  # tokens rotated and written per claimed item


@dataclass(frozen=True, slots=True)
class WorkPlan:
    """One step's work. Holds the arrays that the addresses in `fields` point into.

    fields: int64, the plan's part of the kernel parameters; units: int64 [units, UNIT_FIELDS]; num_partials: partial
    results of split sequences; num_merges: split sequences; cost: about how many (row, key) pairs a KV head visits.
    """

    batch: Batch
    units: Ints
    slots: Ints
    fields: Ints
    num_partials: int
    num_merges: int
    cost: int


def make_plan(batch: Batch, group: int) -> WorkPlan:
    """Plan a batch for KV heads with `group` query heads each; a fixed number of numpy calls, whatever the batch."""
    units = _units(batch, group)
    split = units[:, at.PARTIAL] >= 0
    cost = (units[:, at.END] - units[:, at.BEGIN]) * units[:, at.COUNT]
    units = np.ascontiguousarray(units[np.argsort(-cost, kind="stable")])
    slots = np.ascontiguousarray(batch.slots, dtype=np.int64)
    tables = batch.tables
    fields = np.array(
        [
            batch.num_tokens,
            -(-batch.num_tokens // PREPARE_TOKENS),
            len(units),
            units.ctypes.data,
            slots.ctypes.data,
            tables.ctypes.data,
            tables.strides[0] // tables.itemsize,
        ],
        dtype=np.int64,
    )
    num_merges = int(units[:, at.MERGE].max(initial=-1)) + 1
    return WorkPlan(batch, units, slots, fields, int(split.sum()), num_merges, int(cost.sum()) * group)


def _units(batch: Batch, group: int) -> Ints:
    """Units in the batch's order."""
    starts = batch.query_start.astype(np.int64)
    counts = np.diff(starts)
    lengths = batch.seq_lens.astype(np.int64)
    tokens_a_unit = max(1, QUERY_ROWS // group)
    decoding = counts == 1
    pieces = np.where(decoding, -(-lengths // SPLIT), -(-counts // tokens_a_unit))
    owner = np.repeat(np.arange(len(counts)), pieces)
    piece = np.arange(len(owner)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    single = decoding[owner]
    is_split = decoding & (pieces > 1)
    partial_start = np.cumsum(np.where(is_split, pieces, 0)) - np.where(is_split, pieces, 0)
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
    units[:, at.PARTIAL] = np.where(is_split[owner], partial_start[owner] + piece, -1)
    units[:, at.PARTS] = pieces[owner]
    units[:, at.MERGE] = np.where(is_split[owner], merge[owner], -1)
    return units
