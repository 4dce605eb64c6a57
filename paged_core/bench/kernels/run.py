"""`bench kernels` from what was asked for to its tables."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

from paged_core.bench.kernels.cases import HEADS, KV_DTYPES, LLAMA_8B, OPERATIONS, SMOLLM2, cases, chosen, moves
from paged_core.bench.kernels.goals import goal_tables
from paged_core.bench.kernels.paged import Backend, declared
from paged_core.bench.kernels.reading import Log, read_case, read_move
from paged_core.bench.kernels.tables import move_tables, step_tables
from paged_core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from paged_core.bench.kernels.cases import Case, Heads
    from paged_core.bench.peaks import Peaks
    from paged_core.bench.report import Table
    from paged_core.bench.site import Site
    from paged_core.plugins import Plugins

QUICK_ROTATION, QUICK_SAMPLE_S = 1 << 18, 1e-3


@dataclass(frozen=True, slots=True)
class Asked:
    """What to measure: a plugin's name or auto; empty = chosen cases, or all types that the plugin declares."""

    plugin: str = "auto"
    operations: Sequence[str] = OPERATIONS
    heads: Sequence[str] = ()
    contexts: Sequence[int] = ()
    batches: Sequence[int] = ()
    block_sizes: Sequence[int] = (16,)
    kv_dtypes: Sequence[str] = ()

    def backends(self, plugins: Plugins, device: str) -> list[Backend]:
        """One plugin, by name, with every block size and element type. Raises what selecting it raises."""
        first = next(iter(self.kv_dtypes or KV_DTYPES[device].values()))
        plugin, types = declared(plugins, LLAMA_8B, Backend(self.plugin, self.block_sizes[0], first), device)
        return [Backend(plugin, *pair) for pair in product(self.block_sizes, self.kv_dtypes or types)]


@dataclass(frozen=True, slots=True)
class Effort:
    """Rounds, whether to be quick, and the most memory, None = the site's."""

    rounds: int = 5
    quick: bool = False
    memory: int | None = None

    def applied(self, site: Site) -> Site:
        """The site as it is measured on."""
        site = site if self.memory is None else replace(site, memory=self.memory)
        return replace(site, rotation=QUICK_ROTATION, sample_s=QUICK_SAMPLE_S) if self.quick else site


def kernel_tables(
    plugins: Plugins, asked: Asked, effort: Effort, site: Site, peaks: Peaks, say: Callable[[str], None]
) -> list[Table]:
    """A table a kind of operation, then the goals.

    Raises what selecting a plugin raises when it serves nothing here; single cases that do not fit are left out, and
    a note says why. ConfigError when nothing is left.
    """
    site, log = effort.applied(site), Log(say)
    backends = asked.backends(plugins, site.kind)
    for case in _cases(asked, site.kind, quick=effort.quick):
        say(str(case))
        several = bool(asked.kv_dtypes) or case.every_type
        measured = backends if several else [one for one in backends if one.kv_dtype == backends[0].kv_dtype]
        read_case(plugins, case, measured, site, effort.rounds, log)
        site.release()
    names = tuple(HEADS[name] for name in asked.heads) or ((SMOLLM2,) if effort.quick else (LLAMA_8B,))
    for move in moves(asked.operations, names, effort.quick):
        say(f"{move.direction}, {move.blocks} blocks, {move.heads}")
        for backend in (one for one in backends if one.kv_dtype == backends[0].kv_dtype):
            read_move(plugins, move, backend, site, effort.rounds, log)
            site.release()
    tables = [
        *step_tables(log, peaks, site, effort.rounds),
        *move_tables(log.moved, peaks, site),
        *goal_tables(log.steps, peaks, site),
    ]
    left_out = [f"Left out: {what}: {why}." for what, why in log.left_out.items()]
    if not tables:
        raise ConfigError("\n".join(["nothing was measured", *left_out]))
    tables[0].notes += left_out
    return tables


def _cases(asked: Asked, device: str, *, quick: bool) -> list[Case]:
    """What was asked for. One of heads, contexts and batches is enough to ask; what is missing is then usual."""
    if not (asked.heads or asked.contexts or asked.batches):
        return cases(device, asked.operations, quick)
    heads: list[Heads] = [HEADS[name] for name in asked.heads] or [LLAMA_8B]
    return chosen(asked.operations, heads, asked.contexts or (1024,), asked.batches or (1,))
