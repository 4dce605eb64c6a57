"""`calibrate --check`: the engine of this machine beside its own simulation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from paged_core.bench.report import Column, Table
from paged_core.cli.report import note
from paged_core.sim.twin import Comparison, Figures, run_real, run_simulated
from paged_core.workload.arrivals import POISSON, arrival_times
from paged_core.workload.lengths import Lengths, arrivals_of, read_lengths, sharegpt

if TYPE_CHECKING:
    from collections.abc import Mapping

    from paged_core.api.clock import Clock
    from paged_core.engine.engine import Engine
    from paged_core.workload.traces import Arrival

_BELOW_SATURATION = 0.6


class Check:
    """The same loads on the real engine, round by round, and at the end on its simulation."""

    def __init__(self, engine: Engine, clock: Clock, parameters: Mapping[str, Any]) -> None:
        self._engine, self._clock, self._seed = engine, clock, parameters["seed"]
        count, random = parameters["requests"], np.random.default_rng(self._seed)
        path = parameters["lengths"]
        lengths = sharegpt(count, random) if path is None else read_lengths(Path(path), Path(path).stem)
        pairs = lengths.pairs[random.permutation(len(lengths.pairs))[:count]]
        scaled = np.maximum(1, np.rint(pairs * parameters["scale"])).astype(np.int64)
        self._lengths = Lengths(f"{lengths.name} lengths times {parameters['scale']:g}", scaled)
        self._loads: dict[str, list[Arrival]] = {}
        self._real: dict[str, list[Figures]] = {}

    def serve(self) -> None:
        """One round of every load. The first one finds out what rate is below saturation."""
        if not self._loads:
            self._loads["all at once"] = self._arrivals(float("inf"))
            flat_out = self._run("all at once")
            rate = _BELOW_SATURATION * flat_out.throughput / self._lengths.means[1]
            self._loads[f"Poisson, {rate:.2f} requests/s"] = self._arrivals(rate)
        for name in self._loads:
            self._real.setdefault(name, []).append(self._run(name))
            note(f"  {name}: {self._real[name][-1].throughput:.1f} output tokens/s")

    def table(self, calibration: Path) -> Table:
        """Real beside simulated."""
        facts = self._engine.facts
        found = [
            Comparison(name, self._real[name], run_simulated(facts, calibration, arrivals))
            for name, arrivals in self._loads.items()
        ]
        lengths, (prompt, output) = self._lengths, self._lengths.means
        table = _twin_table(found)
        table.notes += [
            f"{len(lengths.pairs)} requests, {lengths.name}: {prompt:.0f} / {output:.0f} tokens on average. Real: the",
            "median of the rounds; spread: largest less least over the median. Off: simulated over real, less one.",
        ]
        return table

    def _run(self, name: str) -> Figures:
        return run_real(self._engine, self._clock, self._loads[name], self._seed)

    def _arrivals(self, rate: float) -> list[Arrival]:
        times = arrival_times(len(self._lengths.pairs), rate, POISSON, np.random.default_rng(self._seed))
        return arrivals_of(self._lengths, times - times[0])


_FIGURES = (
    ("throughput", "output tokens/s"),
    ("latency_s", "median latency, s"),
    ("latency_p90_s", "90th percentile latency, s"),
    ("first_token_s", "median time to first token, s"),
)


def _twin_table(found: list[Comparison]) -> Table:
    columns = (
        Column("load", "load"),
        Column("figure", "figure"),
        Column("real", "real", ",.3f"),
        Column("spread", "spread", ".0%"),
        Column("simulated", "simulated", ",.3f"),
        Column("off", "off", "+.1%"),
    )
    table = Table("This machine and its simulation", columns)
    for one in found:
        real = Figures.median(one.real)
        for name, head in _FIGURES:
            value = getattr(one.simulated, name)
            table.add(one.load, head, getattr(real, name), one.spread(name), value, one.off(name))
    return table
