"""Simulation: the real engine on a virtual clock, around a model that is not there.

Ledger, allocator, scheduler and preemption are those that serve real models, third parties' included; only the executor
is exec_sim, which says how long each step would have taken.
"""

from __future__ import annotations

import math
import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from paged_core.api.params import SamplingParams
from paged_core.engine.clock import VirtualClock
from paged_core.engine.feed import feed
from paged_core.errors import ConfigError, RequestError
from paged_core.sim.outcome import Outcome
from paged_core.sim.prompts import Prompts
from paged_core.sim.recorder import RequestRecorder, StepRecorder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from paged_core.engine.engine import Engine
    from paged_core.sim.system import System
    from paged_core.workload.traces import Arrival

    Progress = Callable[[int, float], None]


def simulate(
    system: System,
    arrivals: Sequence[Arrival],
    *,
    sampling: Mapping[str, Any] = {},
    claimed_tokens: int | None = None,
    until: float | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Outcome:
    """Serve `arrivals` (by time) on `system`; every request ends at the trace's output length.

    sampling        parameters of every request: n, best_of, use_beam_search and beam_width, ...
    claimed_tokens  the max_tokens that requests announce, at least their true length; None: exactly that
    until           seconds on the simulated clock at which to stop; None: when all requests have ended
    seed            of the model's draws; equal arguments give equal outcomes
    progress        called every so often with the number of requests that have ended and the clock

    Requests that can never run are counted as rejected. ConfigError for a system that cannot be built.
    """
    if any(later.at_s < sooner.at_s for sooner, later in pairwise(arrivals)):
        raise ConfigError("arrivals must be in the order of time")
    run = _Run(system, arrivals, _Sampling(sampling, claimed_tokens), seed, progress)
    return run.to_end(math.inf if until is None else until)


class _Sampling:
    """Parameters of a request with a given true length."""

    def __init__(self, given: Mapping[str, Any], claimed_tokens: int | None) -> None:
        self._given = dict(given)
        self._claimed = claimed_tokens
        self._made: dict[int, SamplingParams] = {}

    def of(self, output_tokens: int) -> SamplingParams:
        """Requests of equal length share theirs: the engine takes a copy anyway."""
        if output_tokens not in self._made:
            claimed = output_tokens if self._claimed is None else max(self._claimed, output_tokens)
            fixed = {"max_tokens": claimed, "detokenize": False}
            self._made[output_tokens] = SamplingParams.from_mapping(fixed | self._given)
        return self._made[output_tokens]


_PROGRESS_STEPS = 512


class _Run:
    """One simulation under way."""

    def __init__(
        self,
        system: System,
        arrivals: Sequence[Arrival],
        sampling: _Sampling,
        seed: int,
        progress: Progress | None,
    ) -> None:
        self._system, self._arrivals, self._sampling = system, arrivals, sampling
        self._clock = VirtualClock()
        self._engine: Engine = system.build(self._clock, seed)
        facts = self._engine.facts
        self._prompts = Prompts(facts.vocab_size)
        self._salts = facts.prefix_cache
        self._steps = StepRecorder(self._clock, 2 * facts.max_num_seqs, facts.block_size)
        self._requests = RequestRecorder(arrivals)
        self._progress = progress
        self._num_ended = 0

    def to_end(self, until: float) -> Outcome:
        """Feed and step until everybody has ended or the clock reads `until`."""
        begin = time.perf_counter()
        self._engine.observe(self._steps)
        coming = ((arrival.at_s, i) for i, arrival in enumerate(self._arrivals))
        for i, outputs in enumerate(feed(self._engine, self._clock, coming, self._add, until)):
            for output in outputs:
                self._requests.finished(output)
                self._num_ended += 1
            if self._progress is not None and i % _PROGRESS_STEPS == 0:
                self._progress(self._num_ended, self._clock.now())
        return self._outcome(time.perf_counter() - begin)

    def _add(self, i: int) -> None:
        arrival = self._arrivals[i]
        salt = str(i) if self._salts and not arrival.blocks else None
        try:
            self._engine.add_request(
                str(i),
                self._prompts.of(arrival),
                self._sampling.of(arrival.output_tokens),
                cache_salt=salt,
                true_output_len=arrival.output_tokens,
            )
        except RequestError as error:
            self._requests.rejected(i, str(error.field or "request"))
            self._num_ended += 1

    def _outcome(self, wall_s: float) -> Outcome:
        engine = self._engine
        for output in engine.abort(engine.unfinished_ids):
            self._requests.stopped(output)
        stats = engine.stats()
        if stats.blocks.used:
            engine.check()  # says what is wrong: nobody is there to hold them
        engine.close()
        return Outcome(
            system=self._system,
            requests=self._requests.requests(),
            steps=self._steps.steps(),
            end_s=self._clock.now(),
            plugins=engine.facts.plugins,
            cost=self._system.cost,
            reasons=self._requests.reasons,
            preemptions=stats.preemptions,
            prefix_queries=stats.blocks.prefix_queries,
            prefix_hits=stats.blocks.prefix_hits,
            wall_s=wall_s,
        )
