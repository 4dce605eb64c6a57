"""Staging: a step's arrays travel to the device in one copy, and of the block tables only the entries that changed.

    device   | drawn | slots source tokens positions query_start seq_lens rows sample_index | changes |
    host x 2         | the same ..............................................................          |

Where a section lies follows from the numbers of tokens, sequences and draws alone: batches of equal sizes find theirs
at equal addresses, which is what captured work needs. `drawn` is written on the device: the tokens of the step before,
which this step may take without the host having seen them; `source` says for every token where it lies, in `drawn` or
in `tokens`.

What this rests on, and promises:

1. A host buffer is filled only after the copy that read it before is done: the one of two steps ago.
2. The device's buffer is overwritten on the main stream, hence after all that earlier steps do with it.
3. After `put`, the device's table has every entry that the sequences of the step own; other entries hold anything.
   A row is compared with what the device has when its blocks changed since, in whichever step that was.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from paged_core.api.batch import Batch, DeviceBatch
from paged_core.device.upload import uploaded

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from paged_core.api.batch import StepPlan
    from paged_core.device.stream import Accelerator, Event

CHANGES = 1 << 14
"""Entries of tables that travel with a step's arrays; what is beyond goes in copies of its own."""
_ALIGNMENT = 16
_UNKNOWN = -1


class BatchSizes(NamedTuple):
    """What fixes the layout of a step's arrays."""

    tokens: int
    seqs: int
    draws: int


class _Sections(NamedTuple):
    """Byte offsets into a host buffer; `end` is where changes begin."""

    slots: int
    source: int
    tokens: int
    positions: int
    query_start: int
    seq_lens: int
    rows: int
    sample_index: int
    end: int


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where the arrays of batches of certain sizes lie: in each host buffer by name, and on the device."""

    sections: _Sections
    hosts: list[dict[str, Any]]
    there: dict[str, Any]


@dataclass(frozen=True, slots=True)
class StagedStep:
    """A step's arrays, here and there. Good until the next `put`.

    source int32 [tokens]: where each token lies on the device, for `Staging.take_tokens`; sample_index int32 [draws]
    """

    batch: Batch
    source: Tensor
    sample_index: Tensor


class Staging:
    """One engine's buffers. `tables` is the allocator's own array, of which the device's is kept a mirror."""

    def __init__(
        self,
        accelerator: Accelerator,
        tables: NDArray[np.int32],
        block_size: int,
        most: BatchSizes,
        changes: int = CHANGES,
    ) -> None:
        self._accelerator = accelerator
        self._tables = tables
        self._block_size = block_size
        self._changes = changes
        self._most = most
        device = accelerator.device
        room = _sections(most).end + changes * 12
        self._drawn_bytes = _aligned(most.draws * 4)
        self._buffer = torch.zeros(self._drawn_bytes + room, dtype=torch.uint8, device=device)
        self._words = self._buffer[: (self._drawn_bytes + room) // 4 * 4].view(torch.int32)
        self.drawn = self._words[: most.draws]
        """int32 [most draws]: where the sampled tokens of a step are kept for the next one."""
        self._hosts = [accelerator.pinned((room,), torch.uint8) for _ in range(2)]
        self._free: list[Event] = [accelerator.event() for _ in self._hosts]
        self._turn = 0
        self._layouts: dict[BatchSizes, _Layout] = {}
        self.tables = torch.zeros(tables.shape, dtype=torch.int32, device=device)
        self._sent = np.full(tables.shape, _UNKNOWN, dtype=np.int32)
        self._sent_width = np.zeros(len(tables), dtype=np.int32)

    def put(self, plan: StepPlan, sizes: BatchSizes | None = None) -> StagedStep:
        """Send a plan's arrays. `sizes` beyond the plan's own are filled with padding: sequences of length 0 with one
        token, whose slot is -1; draws that read the first token.

        Raises ValueError for a plan that is larger than the buffers.
        """
        own = BatchSizes(plan.num_tokens, len(plan.rows), len(plan.sample_index))
        if any(size > most for size, most in zip(sizes or own, self._most, strict=True)):
            asked = tuple(sizes or own)
            raise ValueError(f"a step of {asked} tokens, sequences and draws; buffers hold {tuple(self._most)}")
        layout = self._layout(own) if sizes is None else self._known_layout(sizes)
        sizes, sections = sizes or own, layout.sections
        self._turn = 1 - self._turn
        host, free = self._hosts[self._turn], self._free[self._turn]
        free.synchronize()
        arrays = layout.hosts[self._turn]
        self._fill(arrays, plan, own, (self._drawn_bytes + sections.tokens) // 4)
        index, values = self._changed(plan)
        few = min(len(index), self._changes)
        self._beyond(index[few:], values[few:])
        used = sections.end + few * 12
        changes = host.numpy()[sections.end : used]
        changes[: few * 8].view(np.int64)[:] = index[:few]
        changes[few * 8 :].view(np.int32)[:] = values[:few]
        self._accelerator.copy(self._section(0, used), host[:used])
        free.record()
        if few:
            self._accelerator.launch(lambda: self._scatter(sections.end, few))
        return self._staged(sizes, arrays, layout.there)

    def take_tokens(self, step: StagedStep) -> Tensor:
        """int32 [tokens]: each from where it is, the plan or the draws of the step before. Runs on the device."""
        return self._words.index_select(0, step.source)

    def _fill(self, arrays: dict[str, Any], plan: StepPlan, own: BatchSizes, first_word: int) -> None:
        """Write the plan and what pads it. Word `first_word` of the device's buffer is the first of `tokens`."""
        for name, size in (("positions", own.tokens), ("seq_lens", own.seqs), ("rows", own.seqs)):
            arrays[name][:size] = getattr(plan, name)
            arrays[name][size:] = 0
        arrays["tokens"][: own.tokens] = plan.token_ids
        arrays["tokens"][own.tokens :] = 0
        arrays["sample_index"][: own.draws] = plan.sample_index
        arrays["sample_index"][own.draws :] = 0
        starts = arrays["query_start"]
        starts[: own.seqs + 1] = plan.query_start
        starts[own.seqs + 1 :] = np.arange(own.tokens + 1, own.tokens + len(starts) - own.seqs)
        slots = arrays["slots"]
        slots[: own.tokens] = slots_of(plan, self._tables, self._block_size)
        slots[own.tokens :] = -1
        source = arrays["source"]
        source[:] = np.arange(first_word, first_word + len(source))
        if plan.token_source is not None:
            drawn = np.flatnonzero(plan.token_source >= 0)
            source[drawn] = plan.token_source[drawn]

    def _changed(self, plan: StepPlan) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Flat index and value of every entry that the plan's sequences own and the device does not have yet."""
        self._sent_width[plan.changed_rows] = 0
        width = -(-plan.seq_lens // self._block_size)
        stale = np.flatnonzero(self._sent_width[plan.rows] < width)
        if not len(stale):
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int32)
        rows, width = plan.rows[stale], width[stale]
        most = int(width.max())
        wanted = self._tables[rows, :most]
        is_new = (wanted != self._sent[rows, :most]) & (np.arange(most) < width[:, None])
        line, column = np.nonzero(is_new)
        values = wanted[line, column]
        self._sent[rows[line], column] = values
        self._sent_width[rows] = width
        return rows[line].astype(np.int64) * self._tables.shape[1] + column, values

    def _scatter(self, begin: int, count: int) -> None:
        index = self._section(begin, begin + count * 8).view(torch.int64)
        values = self._section(begin + count * 8, begin + count * 12).view(torch.int32)
        self.tables.view(-1).index_copy_(0, index, values)

    def _beyond(self, index: NDArray[np.int64], values: NDArray[np.int32]) -> None:
        """Changes for which there is no room beside the arrays."""
        if len(index):
            device = self._accelerator.device
            self._accelerator.launch(
                lambda: self.tables.view(-1).index_copy_(0, uploaded(index, device), uploaded(values, device))
            )

    def _section(self, begin: int, end: int) -> Tensor:
        return self._buffer[self._drawn_bytes + begin : self._drawn_bytes + end]

    def _known_layout(self, sizes: BatchSizes) -> _Layout:
        """Kept: sizes that a caller names are those of a few graphs, used at every step."""
        known = self._layouts.get(sizes)
        if known is None:
            known = self._layouts[sizes] = self._layout(sizes)
        return known

    def _layout(self, sizes: BatchSizes) -> _Layout:
        sections = _sections(sizes)
        hosts = [_views(host, sections, sizes, _as_numpy) for host in self._hosts]
        return _Layout(sections, hosts, _views(self._section(0, sections.end), sections, sizes, _as_tensor))

    def _staged(self, sizes: BatchSizes, arrays: dict[str, Any], there: dict[str, Any]) -> StagedStep:
        on_device = DeviceBatch(
            query_start=there["query_start"],
            seq_lens=there["seq_lens"],
            rows=there["rows"],
            tables=self.tables,
            positions=there["positions"],
            slots=there["slots"],
        )
        batch = Batch(
            num_tokens=sizes.tokens,
            num_seqs=sizes.seqs,
            query_start=arrays["query_start"],
            seq_lens=arrays["seq_lens"],
            rows=arrays["rows"],
            tables=self._tables,
            positions=arrays["positions"],
            slots=arrays["slots"],
            on_device=on_device,
        )
        return StagedStep(batch, there["source"], there["sample_index"])


def slots_of(plan: StepPlan, tables: NDArray[np.int32], block_size: int) -> NDArray[np.int64]:
    """Where each token's key and value go: int64 [tokens]."""
    row_of_token = np.repeat(plan.rows, np.diff(plan.query_start))
    block, offset = np.divmod(plan.positions, block_size)
    slots: NDArray[np.int64] = tables[row_of_token, block].astype(np.int64) * block_size + offset
    return slots


def on_device(batch: Batch, device: torch.device) -> DeviceBatch:
    """`batch.on_device`, or copies of the batch's arrays where the executor left that to the backend."""
    if batch.on_device is not None:
        return batch.on_device
    return DeviceBatch(
        query_start=uploaded(batch.query_start, device),
        seq_lens=uploaded(batch.seq_lens, device),
        rows=uploaded(batch.rows, device),
        tables=uploaded(batch.tables, device),
        positions=uploaded(batch.positions, device),
        slots=uploaded(batch.slots, device),
    )


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _sections(sizes: BatchSizes) -> _Sections:
    tokens, seqs, draws = sizes
    offsets = [0]
    for size in (tokens * 8, tokens * 4, tokens * 4, tokens * 4, seqs * 4 + 4, seqs * 4, seqs * 4, draws * 4):
        offsets.append(offsets[-1] + _aligned(size))
    return _Sections(*offsets)


def _views(buffer: Tensor, sections: _Sections, sizes: BatchSizes, view: Any) -> dict[str, Any]:
    """Every section of a buffer by name."""
    tokens, seqs, draws = sizes
    counts = (tokens, tokens, tokens, tokens, seqs + 1, seqs, seqs, draws)
    return {
        name: view(buffer, begin, count, torch.int64 if name == "slots" else torch.int32)
        for name, begin, count in zip(_Sections._fields, sections, counts, strict=False)
    }


def _as_tensor(buffer: Tensor, begin: int, count: int, dtype: torch.dtype) -> Tensor:
    return buffer[begin : begin + count * dtype.itemsize].view(dtype)


def _as_numpy(buffer: Tensor, begin: int, count: int, dtype: torch.dtype) -> NDArray[Any]:
    return _as_tensor(buffer, begin, count, dtype).numpy()
