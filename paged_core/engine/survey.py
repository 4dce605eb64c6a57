"""PoolSurvey: the block pool as a map, and who is in which queue. For pages that show them; decides nothing.

A block is one byte: bit 7 says that its content can be hit in the prefix cache, bits 0 to 6 how many references it has
(`MOST_REFS` for that many or more). What the allocator does not tell (`Allocator.marks`) is counted in the tables of
the sequences that are on the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from paged_core.api.allocator import BlockMarks
from paged_core.api.request import Residency

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from paged_core.api.request import Group, Sequence
    from paged_core.engine.ledger import Ledger

CACHED = 128
MOST_REFS = 127
_MOST_LINES = 100


class Focus(NamedTuple):
    """What is to be told in detail: a device block, or a request by its id."""

    block: int | None = None
    request: str | None = None


class Holder(NamedTuple):
    """A branch of a request that has the block in its table. `depth`: blocks before it, of the same prefix."""

    request: str
    branch: int
    depth: int
    num_tokens: int  # of this branch in the block


class GroupLine(NamedTuple):
    """One request in its queue. `num_blocks` counts distinct device blocks; `age_s` is seconds since it arrived."""

    id: str
    residency: str
    num_prompt: int
    num_tokens: int
    num_computed: int
    num_branches: int
    num_blocks: int
    num_preemptions: int
    age_s: float


@dataclass(frozen=True, slots=True)
class PoolSurvey:
    """`blocks`, `host`: a byte a block. `exact`: the allocator told of its blocks. Queues have their first 100 groups.

    `holders` and `held` answer the focus: who holds the block, and all device blocks of those requests.
    """

    step: int
    exact: bool
    blocks: bytes
    host: bytes
    running: list[GroupLine]
    preempted: list[GroupLine]
    waiting: list[GroupLine]
    holders: list[Holder]
    held: list[int]


def survey(ledger: Ledger, now: float, focus: Focus) -> PoolSurvey:
    """The state between two steps; everything in it is a copy."""
    queues = ledger.queues
    on_device = [*queues.running, *queues.leaving.values()]
    marks = ledger.allocator.marks()
    blocks, host = _bytes_of(marks or _counted(ledger, on_device))
    holders = [] if focus.block is None else list(_holders(ledger, on_device, focus.block))
    wanted = {holder.request for holder in holders} | {focus.request}
    held = [_blocks_of(ledger, group) for group in on_device if group.id in wanted]
    return PoolSurvey(
        step=ledger.step,
        exact=marks is not None,
        blocks=blocks,
        host=host,
        running=_lines(ledger, on_device, now),
        preempted=_lines(ledger, queues.preempted, now),
        waiting=_lines(ledger, queues.waiting.values(), now),
        holders=holders,
        held=np.unique(np.concatenate(held)).tolist() if held else [],
    )


def _bytes_of(marks: BlockMarks) -> tuple[bytes, bytes]:
    device = np.minimum(marks.refs, MOST_REFS).astype(np.uint8) | marks.cached.astype(np.uint8) * np.uint8(CACHED)
    return device.tobytes(), np.minimum(marks.host_refs, MOST_REFS).astype(np.uint8).tobytes()


def _counted(ledger: Ledger, on_device: list[Group]) -> BlockMarks:
    """Which blocks the tables name. Where swapped blocks lie is not known: as many as there are come first."""
    allocator, stats = ledger.allocator, ledger.allocator.stats()
    tables = [_table(ledger, seq) for group in on_device for seq in group.live]
    named = np.concatenate(tables) if tables else np.zeros(0, np.int32)
    host = np.arange(stats.host_total) < stats.host_total - stats.host_free
    refs = np.bincount(named, minlength=allocator.num_blocks).astype(np.int32)
    return BlockMarks(refs, np.zeros(allocator.num_blocks, np.bool_), host.astype(np.int32))


def _table(ledger: Ledger, seq: Sequence) -> NDArray[np.int32]:
    """The blocks that hold what `seq` has computed; a branch that is still to be forked has none."""
    if seq.row < 0 or seq in ledger.branches.away:
        return np.zeros(0, np.int32)
    return ledger.allocator.tables[seq.row, : -(-seq.num_computed // ledger.allocator.block_size)]


def _blocks_of(ledger: Ledger, group: Group) -> NDArray[np.int32]:
    live = group.live
    tables = [_table(ledger, seq) for seq in live]
    if len(tables) == 1:
        return tables[0]
    return np.unique(np.concatenate(tables)) if tables else np.zeros(0, np.int32)


def _holders(ledger: Ledger, on_device: list[Group], block: int) -> Iterator[Holder]:
    size = ledger.allocator.block_size
    for group in on_device:
        for seq in group.live:
            for depth in np.flatnonzero(_table(ledger, seq) == block).tolist():
                yield Holder(group.id, seq.index, depth, min(size, seq.num_computed - depth * size))


def _lines(ledger: Ledger, groups: Iterable[Group], now: float) -> list[GroupLine]:
    return [_line(ledger, group, now) for group in islice(groups, _MOST_LINES)]


def _line(ledger: Ledger, group: Group, now: float) -> GroupLine:
    live = group.live
    return GroupLine(
        id=group.id,
        residency=group.residency.value,
        num_prompt=len(group.request.prompt_token_ids),
        num_tokens=max((seq.num_tokens for seq in live), default=0),
        num_computed=max((seq.num_computed for seq in live), default=0),
        num_branches=len(live),
        num_blocks=len(_blocks_of(ledger, group)) if group.residency is Residency.DEVICE else 0,
        num_preemptions=group.num_preemptions,
        age_s=round(max(0.0, now - group.arrival), 3),
    )
