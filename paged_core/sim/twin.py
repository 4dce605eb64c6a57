"""Twin: the same requests on the engine of this machine and on its simulation, to see how far the latter is right.

The real engine computes every token; its clock counts what its work takes and jumps over idle time. Its rounds take
turns with those of the calibration, so that both see the same machine.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from paged_core.api.params import SamplingParams
from paged_core.engine.feed import feed
from paged_core.sim.recorder import RequestRecorder
from paged_core.sim.simulation import simulate
from paged_core.sim.system import System

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from paged_core.api.clock import Clock
    from paged_core.engine.config import EngineConfig
    from paged_core.engine.engine import Engine
    from paged_core.sim.outcome import Requests
    from paged_core.workload.traces import Arrival


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one run: output tokens a second from the first arrival to the last end, and seconds of requests."""

    throughput: float
    latency_s: float  # median, from arrival to end
    first_token_s: float  # median
    latency_p90_s: float

    @staticmethod
    def of(requests: Requests) -> Figures:
        """The figures of a run in which every request ended."""
        span = float(requests.finish_s.max() - requests.arrival_s.min())
        latency = requests.latency_s
        return Figures(
            throughput=float(requests.generated_tokens.sum()) / span,
            latency_s=float(np.median(latency)),
            first_token_s=float(np.median(requests.first_token_s - requests.arrival_s)),
            latency_p90_s=float(np.quantile(latency, 0.9)),
        )

    @staticmethod
    def median(runs: Sequence[Figures]) -> Figures:
        """Figure by figure."""
        names = Figures.__dataclass_fields__
        return Figures(**{name: statistics.median(getattr(run, name) for run in runs) for name in names})


@dataclass(frozen=True, slots=True)
class Comparison:
    """One load: figures of every real round, and of the simulation."""

    load: str
    real: list[Figures]
    simulated: Figures

    def off(self, name: str) -> float:
        """How far the simulated figure `name` is above the median of the real ones, relative."""
        real: float = getattr(Figures.median(self.real), name)
        simulated: float = getattr(self.simulated, name)
        return simulated / real - 1

    def spread(self, name: str) -> float:
        """Of the real figure over the rounds: largest less least, over the median."""
        values = [getattr(run, name) for run in self.real]
        return float((max(values) - min(values)) / statistics.median(values))


def run_real(engine: Engine, clock: Clock, arrivals: Sequence[Arrival], seed: int) -> Figures:
    """Answer `arrivals` on an engine that is idle, the first one now."""
    begin, random = clock.now(), np.random.default_rng(seed)
    recorder = RequestRecorder(arrivals)

    def add(i: int) -> None:
        one = arrivals[i]
        prompt = random.integers(3, engine.facts.vocab_size, one.prompt_tokens).tolist()
        params = SamplingParams(temperature=1.0, max_tokens=one.output_tokens, ignore_eos=True, detokenize=False)
        engine.add_request(str(i), prompt, params)

    coming = ((begin + one.at_s, i) for i, one in enumerate(arrivals))
    for outputs in feed(engine, clock, coming, add, float("inf")):
        for output in outputs:
            recorder.finished(output)
    requests = recorder.requests()
    requests.arrival_s[:] += begin
    return Figures.of(requests)


def run_simulated(facts: EngineConfig, calibration: Path, arrivals: Sequence[Arrival]) -> Figures:
    """The same by an engine of the same facts, whose steps take what the calibration says."""
    return Figures.of(simulate(system_of(facts, calibration), arrivals).requests)


def system_of(facts: EngineConfig, calibration: Path) -> System:
    """The simulated twin of an engine."""
    name = str(calibration)
    return System(
        model=name,
        device=name,
        cost=name,
        alloc=facts.plugins["alloc"],
        sched=facts.plugins["sched"],
        preempt=facts.plugins["preempt"],
        block_size=facts.block_size,
        num_blocks=facts.num_blocks,
        num_host_blocks=facts.num_host_blocks,
        max_model_len=facts.max_model_len,
        max_num_seqs=facts.max_num_seqs,
        token_budget=facts.token_budget,
        chunked_prefill=facts.chunked_prefill,
        prefix_cache=facts.prefix_cache,
    )
