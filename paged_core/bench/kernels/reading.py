"""Readings: seconds of cases and moves, whatever is compared in turns."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import torch

from paged_core.bench.kernels.cases import activations
from paged_core.bench.kernels.moves import Moves
from paged_core.bench.kernels.paged import Backend, Layers
from paged_core.bench.kernels.rivals import RIVALS
from paged_core.bench.site import enough, repeated
from paged_core.bench.timing import alternate, measure
from paged_core.errors import PluginUnfitError
from paged_core.plugins.discovery import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from paged_core.bench.kernels.cases import Case, Move
    from paged_core.bench.site import Site
    from paged_core.bench.timing import Measurement
    from paged_core.plugins import Plugins

_WITHOUT, _ROTATING = "without writing", "rotating"


class Contestant(Protocol):
    """Something that runs `count` layers, one after the other."""

    count: int

    def run(self) -> object:
        """All of them once."""
        ...


@dataclass(frozen=True, slots=True)
class Reading:
    """Seconds a layer: of the plugin, and of each rival that runs here.

    Of a write also those of the same call without writing, and rotating q and k as well where the plugin can do that.
    """

    case: Case
    backend: Backend
    seconds: Measurement
    without_writing: Measurement | None
    rotating: Measurement | None
    rivals: Mapping[str, Measurement]


@dataclass(frozen=True, slots=True)
class Moved:
    """Seconds a call, and the bytes that it moved, each once."""

    move: Move
    backend: Backend
    seconds: Measurement
    num_bytes: int


@dataclass(slots=True)
class Log:
    """What was read, and what was not and why, each reason once."""

    say: Callable[[str], None]
    steps: list[Reading] = field(default_factory=list)
    moved: list[Moved] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)

    def leave_out(self, what: str, why: str) -> None:
        """Told at once, and kept for the report."""
        if what not in self.left_out:
            self.say(f"{what} is left out: {why}")
            self.left_out[what] = why


@torch.inference_mode()
def read_case(plugins: Plugins, case: Case, backends: Sequence[Backend], site: Site, rounds: int, log: Log) -> None:
    """Measure one case with every backend and beside every rival that runs here, all in turns.

    What does not fit the plugin or the site's memory is left out. Raises what else selecting a plugin raises.
    """
    field: dict[tuple[Backend, str], Contestant] = {}
    for backend in _fitting(case, backends, site, log):
        try:
            layers = Layers(plugins, case, backend, site)
        except PluginUnfitError as error:
            log.leave_out(f"{case.heads}, {backend.kv_dtype}, blocks of {backend.block_size}", str(error))
            continue
        field[backend, ""] = layers
        if case.kind == "write":
            field[backend, _WITHOUT] = without = Layers(plugins, case, backend, site)
            without.without_writing()
            if layers.can_fuse_rope:
                field[backend, _ROTATING] = Layers(plugins, case, backend, site, frozenset({"fused_rope"}))
        elif backend.kv_dtype == activations(backend.kv_dtype, site.kind):
            field |= _rivals(case, backend, site, log)
    seconds = _in_turns(case, field, site, rounds, log)
    for backend in dict.fromkeys(backend for backend, _ in field):
        others = {name: found for (one, name), found in seconds.items() if one == backend and name}
        variants = (others.pop(_WITHOUT, None), others.pop(_ROTATING, None))
        log.steps.append(Reading(case, backend, seconds[backend, ""], *variants, others))


def _fitting(case: Case, backends: Sequence[Backend], site: Site, log: Log) -> Iterable[Backend]:
    """Those whose keys and values, with those of a rival beside each, fit the memory: the first ones of all types."""
    taken = 0
    for backend in backends:
        taken += 2 * max(site.rotation, case.kv_bytes(backend.kv_dtype))
        if taken > site.memory and case.kv_bytes(backend.kv_dtype) > site.rotation:
            what = f"{case}, {backend.kv_dtype}"
            log.leave_out(what, f"{taken / 1e9:.1f} GB of keys and values, with its rivals', are more than --memory")
        else:
            yield backend


def _rivals(case: Case, backend: Backend, site: Site, log: Log) -> dict[tuple[Backend, str], Contestant]:
    found: dict[tuple[Backend, str], Contestant] = {}
    for rival in RIVALS:
        missing = rival.lacks(backend.kv_dtype, site.kind)
        if missing:
            log.leave_out(rival.name, missing)
            continue
        try:
            found[backend, rival.name] = rival(case, getattr(torch, backend.kv_dtype), backend.block_size, site)
            found[backend, rival.name].run()
        except Exception as error:  # a stranger's refusal, in whatever form it comes, must not end the comparison
            if not rival.module:
                raise
            found.pop((backend, rival.name), None)
            log.leave_out(f"{rival.name}, {case.kind}, {case.heads}, {backend.kv_dtype}", one_line(error))
    return found


def _in_turns(
    case: Case, field: Mapping[tuple[Backend, str], Contestant], site: Site, rounds: int, log: Log
) -> dict[tuple[Backend, str], Measurement]:
    """Seconds a layer."""
    actions = {
        key: _prepared(one, site, log, f"{case.kind} by {key[1] or key[0].plugin}") for key, one in field.items()
    }
    sweeps = {key: enough(measure(action, 1, clock=site.timer).median, site) for key, action in actions.items()}
    swept = {key: repeated(action, sweeps[key]) for key, action in actions.items()}
    seconds = alternate(swept, rounds, clock=site.timer)
    return {key: found.each(sweeps[key] * field[key].count) for key, found in seconds.items()}


def _prepared(one: Contestant, site: Site, log: Log, name: str) -> Callable[[], object]:
    """What runs all layers, captured where the device can do that: then the host's time is not in it."""
    one.run()
    site.synchronize()
    if isinstance(one, Layers) and not one.has_graphs:
        return one.run
    try:
        return site.captured(one.run)
    except RuntimeError as error:
        with suppress(RuntimeError):  # the error of the capture may be told twice
            site.synchronize()
        log.leave_out(f"capturing {name}", f"{str(error).splitlines()[0]}; launched call by call, host time included")
        return one.run


def read_move(plugins: Plugins, move: Move, backend: Backend, site: Site, rounds: int, log: Log) -> None:
    """Measure one move of blocks."""
    try:
        moves = Moves(plugins, move, backend, site)
    except PluginUnfitError as error:
        log.leave_out(f"{move.heads}, {backend.kv_dtype}, blocks of {backend.block_size}", str(error))
        return
    if moves.needed_bytes > site.memory:
        what = f"{move.direction} of {move.blocks:,} blocks, {move.heads}"
        log.leave_out(what, f"its pools of {moves.needed_bytes / 1e9:.1f} GB are more than --memory")
        return
    seconds = moves.read(rounds)
    if moves.refused:
        log.leave_out("pinning the host's pool", moves.refused)
    log.moved.append(Moved(move, backend, seconds, moves.num_bytes))
