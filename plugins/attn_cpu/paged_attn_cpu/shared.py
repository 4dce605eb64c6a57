"""Units that many sequences share: the common prefix is read once for all of them.

    before   A [0 .. 512) [512 .. 1024) [1024 .. 1100)        after   AB [0 .. 512) [512 .. 960)
             B [0 .. 512) [512 .. 1010)                               A  [960 .. 1024) [1024 .. 1100)
                                                                      B  [960 .. 1010)

A shared unit computes the same tiles of the same splits as its members would, row by row in the same order, and leaves
each member's accumulators and softmax state in that member's place for partial results. Where the prefix ends inside a
split, the member's own unit goes on from there. So nothing is approximated and no bit depends on who shares with whom.

The prefix is used up to its last whole tile (64 keys), and what lies in its last split only from LEAST keys on. Handing
states over costs a member and KV head about 1.5 microseconds; a tile of the prefix saves 0.3 (32/8 heads of 128, bf16)
to 0.9 (fp32). 32 sequences that shared 64 keys of 144 took up to 1.25 times as long, with 320 of 405 keys 0.6 to 1.02.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from paged_attn_cpu import parameters as at
from paged_attn_cpu.microkernels import TILE

if TYPE_CHECKING:
    from paged_core.api.batch import Batch

Ints = NDArray[np.int64]

LEAST = 192  # keys in the split a prefix ends in from which on they are shared


@dataclass(frozen=True, slots=True)
class SharedKeys:
    """Who shares what, per sequence of the batch: num_keys, the leading keys it shares (whole tiles, 0 = none), and
    which, the number of its set."""

    num_keys: Ints  # [sequences]
    which: Ints  # [sequences]


def find_shared(batch: Batch, block_size: int, window: int = 0) -> SharedKeys | None:
    """The sharing that decoding sequences of the batch can use, or None. Rows that are not in the batch do not count.

    Sequences longer than `window` (0 = none) share nothing: it may cut them off at different keys.
    """
    sets = batch.shared_prefixes
    if not sets:
        return None
    lengths = batch.seq_lens.astype(np.int64)
    eligible = np.diff(batch.query_start) == 1
    if window:
        eligible &= lengths <= window
    sequence_of_row = np.full(len(batch.tables), -1)
    sequence_of_row[batch.rows[eligible]] = np.nonzero(eligible)[0]
    sequence = sequence_of_row[np.concatenate([rows for rows, _ in sets])]
    which = np.repeat(np.arange(len(sets)), [len(rows) for rows, _ in sets])[sequence >= 0]
    sequence = sequence[sequence >= 0]
    keys = np.array([num_blocks * block_size for _, num_blocks in sets], dtype=np.int64)
    np.minimum.at(keys, which, lengths[sequence] - 1)
    keys = np.where(np.bincount(which, minlength=len(sets)) > 1, keys // TILE * TILE, 0)
    keys -= np.where(keys % at.SPLIT < LEAST, keys % at.SPLIT, 0)
    if not keys.any():
        return None
    shared = SharedKeys(np.zeros(len(lengths), dtype=np.int64), np.zeros(len(lengths), dtype=np.int64))
    shared.num_keys[sequence], shared.which[sequence] = keys[which], which
    return shared


def share_units(units: Ints, owner: Ints, shared: SharedKeys, most: int) -> tuple[Ints, Ints, int]:
    """Put shared units of up to `most` sequences in place of what `units` of single sequences (`owner`) have in common.

    Returns the new units, the replaced ones in the order in which shared units name them, and the number of the shared.
    """
    covered, which = shared.num_keys[owner], shared.which[owner]
    replaced = np.nonzero(units[:, at.BEGIN] < covered)[0]
    replaced = replaced[np.lexsort((units[replaced, at.BEGIN], which[replaced]))]
    members = np.ascontiguousarray(units[replaced])
    first = _first_members(which[replaced], members[:, at.BEGIN], most)
    counts = np.diff(np.append(first, len(members)))
    joint = members[first]
    joint[:, at.COUNT] = counts
    joint[:, at.END] = np.minimum(joint[:, at.END], covered[replaced[first]])
    joint[:, at.POSITION] = joint[:, at.END] - 1  # every key is visible
    joint[:, at.FIRST_MEMBER] = first
    joint[:, at.SHARED] = np.arange(len(first))
    own = units.copy()
    own[replaced, at.SHARED] = np.repeat(joint[:, at.SHARED], counts)
    own[:, at.BEGIN] = np.maximum(own[:, at.BEGIN], covered)
    own = own[own[:, at.BEGIN] < own[:, at.END]]
    return np.concatenate([joint, own]), members, len(joint)


def _first_members(which: Ints, begin: Ints, most: int) -> Ints:
    """Where shared units begin among members sorted by (set, first key): runs of equals, cut evenly to `most`."""
    index = np.arange(len(which))
    changes = np.append(True, (which[1:] != which[:-1]) | (begin[1:] != begin[:-1]))
    run = np.cumsum(changes) - 1
    size = np.bincount(run)[run]
    piece = (index - index[changes][run]) * -(-size // most) // size
    return np.nonzero(changes | np.append(True, piece[1:] != piece[:-1]))[0]
