"""The tables of `bench kernels`: rates, and their share of what the same device copied and multiplied just before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paged_core.bench.kernels.cases import activations
from paged_core.bench.kernels.rivals import RIVALS
from paged_core.bench.report import Column, Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paged_core.bench.kernels.reading import Log, Moved, Reading
    from paged_core.bench.peaks import Peaks
    from paged_core.bench.report import Cell
    from paged_core.bench.site import Site

_LEAD = (
    Column("sequences", "sequences", ","),
    Column("context", "context", ","),
    Column("new", "new", ","),
    Column("heads", "heads"),
    Column("kv_dtype", "KV"),
    Column("block_size", "block"),
    Column("us", "us / layer", ",.1f"),
)
_END = (Column("spread", "spread", ".0%"), Column("plugin", "plugin"))
_RATES = (
    Column("kv_gb_per_s", "KV GB/s", ",.1f"),
    Column("tflop_per_s", "Tflop/s", ",.3g"),
    Column("memory_share", "of memory", ".0%"),
    Column("share", "of limit", ".0%"),
)
_WRITE = (
    Column("gb_per_s", "GB/s", ",.1f"),
    Column("share", "of copy", ".0%"),
    Column("writing_us", "of it writing us", ",.1f"),
    Column("rotating_us", "with RoPE us", ",.1f"),
)
_MOVE = (
    Column("operation", "operation"),
    Column("blocks", "blocks", ","),
    Column("layers", "layers"),
    Column("heads", "heads"),
    Column("kv_dtype", "KV"),
    Column("block_size", "block"),
    Column("mb", "MB", ",.1f"),
    Column("us", "us / call", ",.1f"),
    Column("gb_per_s", "GB/s", ",.1f"),
    Column("share", "of peak", ".0%"),
)
_MOVES = {"copy": "copy", "out": "swap out", "in": "swap in"}


def memory_bytes_per_s(peaks: Peaks, site: Site) -> float:
    """What keys and values are held against: on a GPU what a copy reads and writes, on a CPU what reading reaches."""
    return peaks.copy_bytes if site.kind == "cuda" and peaks.copy_bytes is not None else peaks.read_bytes


def memory_share(one: Reading, peaks: Peaks, site: Site) -> float:
    """Keys and values over what memory could have moved in that time."""
    return one.case.kv_bytes(one.backend.kv_dtype) / memory_bytes_per_s(peaks, site) / one.seconds.median


def product_share(one: Reading, peaks: Peaks, site: Site) -> float:
    """Operations of causal pairs over what dense products could have done in that time."""
    rate = peaks.rate(activations(one.backend.kv_dtype, site.kind))
    return one.case.ops / rate / one.seconds.median


def step_tables(log: Log, peaks: Peaks, site: Site, rounds: int) -> list[Table]:
    """Decodes, prefills and writes, a table each."""
    tables = []
    for kind in ("decode", "prefill"):
        found = [one for one in log.steps if one.case.kind == kind]
        if found:
            tables.append(_attention(kind, found, peaks, site))
    writes = [one for one in log.steps if one.case.kind == "write"]
    if writes:
        tables.append(_writes(writes, peaks, site))
    if tables:
        tables[0].notes += _method(site, rounds)
    return tables


def _attention(kind: str, readings: Sequence[Reading], peaks: Peaks, site: Site) -> Table:
    names = [rival.name for rival in RIVALS if any(rival.name in one.rivals for one in readings)]
    against = [
        column
        for name in names
        for column in (
            Column(f"{_key(name)}_us", f"{name} us", ",.1f"),
            Column(f"{_key(name)}_ratio", "paged / it", ".2f"),
        )
    ]
    table = Table(f"Attention, {kind}", (*_LEAD, *_RATES, *against, *_END))
    for one in readings:
        taken, share = one.seconds.median, memory_share(one, peaks, site)
        rates = (one.case.kv_bytes(one.backend.kv_dtype) / taken / 1e9, one.case.ops / taken / 1e12)
        cells: list[Cell] = [*rates, share, max(share, product_share(one, peaks, site))]
        for name in names:
            other = one.rivals.get(name)
            cells += (None, None) if other is None else (other.median * 1e6, taken / other.median)
        table.add(*_lead(one), *cells, one.seconds.spread, one.backend.plugin)
    table.notes += [
        "KV bytes = 2 x sequences x context x KV heads x (head size x element bytes + bytes a row), each once.",
        "Operations = 4 x head size x query heads x pairs, causal: new x context - new (new - 1) / 2 a sequence.",
    ]
    return table


def _key(name: str) -> str:
    return name.replace("-", "_")


def _lead(one: Reading) -> tuple[Cell, ...]:
    case, backend = one.case, one.backend
    sizes = (case.sequences, case.context, case.new)
    return *sizes, str(case.heads), backend.kv_dtype, backend.block_size, one.seconds.median * 1e6


def _writes(readings: Sequence[Reading], peaks: Peaks, site: Site) -> Table:
    table = Table("Writing K and V to their slots", (*_LEAD, *_WRITE, *_END))
    for one in readings:
        taken, rest = one.seconds.median, one.without_writing
        rate = one.case.moved_bytes(one.backend.kv_dtype, activations(one.backend.kv_dtype, site.kind)) / taken
        share = None if peaks.copy_bytes is None else rate / peaks.copy_bytes
        writing = None if rest is None else (taken - rest.median) * 1e6
        rotating = None if one.rotating is None else one.rotating.median * 1e6
        table.add(*_lead(one), rate / 1e9, share, writing, rotating, one.seconds.spread, one.backend.plugin)
    table.notes += [
        "The contract has no call that writes only: timed is a decode of sequences of length one, which attends to the",
        "token it wrote. Bytes are those of the whole call: q, k, v read, out written, K and V written and read back.",
        "Of it writing: the call less the same with negative slots, which writes nowhere. It lacks the launch, and",
        "reading k and v if the kernel reads them before it sees the slot: the truth lies between it and the call.",
        "With RoPE: the call when it rotates q and k too, as models have it where a plugin can.",
    ]
    return table


def move_tables(moved: Sequence[Moved], peaks: Peaks, site: Site) -> list[Table]:
    """Copies and swaps; none without any."""
    table = Table("Moving blocks, all layers in one call", (*_MOVE, *_END))
    for one in moved:
        move, taken = one.move, one.seconds.median
        num_bytes = one.num_bytes * (2 if move.direction == "copy" else 1)
        peak = {"copy": peaks.copy_bytes, "out": peaks.out_bytes, "in": peaks.in_bytes}[move.direction]
        lead = (_MOVES[move.direction], move.blocks, move.layers, str(move.heads), one.backend.kv_dtype)
        rate = num_bytes / taken
        row = (*lead, one.backend.block_size, num_bytes / 1e6, taken * 1e6, rate / 1e9)
        table.add(*row, None if peak is None else rate / peak, one.seconds.spread, one.backend.plugin)
    table.notes += [
        "Bytes of a copy = 2 x blocks x layers x bytes of a block, read and written; of a swap they count once, as",
        "they cross between device and host. Peaks: a copy of one large tensor within the device, and between it and",
        "pinned host memory. Blocks lie scattered on both sides; a swap is timed until all of it has arrived.",
    ]
    return [table] if table.rows else []


def _method(site: Site, rounds: int) -> list[str]:
    if site.kind == "cuda":
        clock = "events of the device; layers are captured and replayed unless a note says otherwise"
        memory = "a copy within the device, read and written"
    else:
        clock, memory = "the host's clock", "reading"
    return [
        f"Medians of {rounds} rounds in turns, by {clock}; samples of at least {site.sample_s * 1e3:.0f} ms. Layers",
        f"take turns over {site.rotation / 2**20:,.3g} MiB of keys and values: a call finds its own in memory. Of",
        f"memory: KV bytes at the peak of {memory}. Of limit: that, or all operations at the peak of",
        "products in the queries' type, whichever takes longer. A plugin writes K and V too, its rivals only attend.",
    ]
