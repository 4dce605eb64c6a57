"""Calibration: the steps of a real engine on this machine, measured kind by kind, and the costs that explain them.

What is timed is `Engine.step`, so the engine's own work is in it. Every kind of step occurs once a round, in an order
that changes from round to round; its time is the median over the rounds.
"""

from __future__ import annotations

import random
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from paged_core.api.params import SamplingParams
from paged_core.costs.fitted import Error, Fitted, error, fit
from paged_core.costs.work import StepWork, work_of
from paged_core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from paged_core.api.batch import StepPlan, StepResult
    from paged_core.engine.engine import Engine

_DECODES = 4  # steps of decodes measured a round
_MOST_CONTEXT = 3072  # tokens attended to by a step of decodes: contexts have to be computed first
_HELD_OUT = 3  # every third scenario is kept from the fit


class Scenario(NamedTuple):
    """`decodes` sequences of `context` tokens decode; with `prompts`, such prompts are computed beside them."""

    decodes: int
    context: int
    prompts: tuple[int, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Tokens that the pool has to hold."""
        return self.decodes * (self.context + 2 * _DECODES) + sum(self.prompts)


def scenarios(token_budget: int, max_num_seqs: int, pool_tokens: int, max_len: int) -> list[Scenario]:
    """Prompts alone, decodes alone and both, in sizes that fit such an engine: a few dozen."""
    prompts: list[tuple[int, ...]] = [(n,) for n in (4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024)]
    prompts += [(16,) * 4, (32,) * 4, (64,) * 2, (64,) * 6, (128,) * 3]
    found = [Scenario(0, 0, each) for each in prompts]
    for count in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64):
        found += [Scenario(count, context) for context in (16, 128, 512) if count * context <= _MOST_CONTEXT]
    for count in (1, 4, 8, 16):
        found += [Scenario(count, 32, (length,)) for length in (8, 32, 96, 192, 400)]

    def fits(one: Scenario) -> bool:
        longest = max((one.context + 2 * _DECODES if one.decodes else 0, *one.prompts))
        beside = not one.decodes or one.decodes + sum(one.prompts) <= token_budget
        many = one.decodes + len(one.prompts) <= max_num_seqs
        return many and beside and longest < max_len and one.num_tokens <= 0.8 * pool_tokens

    return [one for one in found if fits(one)]


@dataclass(frozen=True, slots=True)
class Measured:
    """Kinds of steps: their work, the median seconds, and the scenario (its place) each belongs to."""

    works: list[StepWork]
    seconds: list[float]
    places: list[int]

    def part(self, held_out: bool) -> tuple[list[StepWork], list[float]]:
        """Those that fits are judged by, or those that they are made from."""
        chosen = [i for i, place in enumerate(self.places) if (place % _HELD_OUT == 1) == held_out]
        return [self.works[i] for i in chosen], [self.seconds[i] for i in chosen]


class Stopwatch:
    """Steps an engine and times it. `clock` counts seconds. The engine has nothing else to do meanwhile."""

    def __init__(self, engine: Engine, clock: Callable[[], float]) -> None:
        self._engine = engine
        self._clock = clock
        self._seen: list[StepWork] = []
        self._count = 0
        engine.observe(self)

    def run(self, scenario: Scenario) -> list[tuple[StepWork, float]]:
        """The work and seconds of the steps that `scenario` is about."""
        engine = self._engine
        for _ in range(scenario.decodes):
            self._add(scenario.context, 100)
        while scenario.decodes and self._step()[0].prefill_tokens:
            pass  # prompts of those that decode
        for length in scenario.prompts:
            self._add(length, 1)
        taken = []
        for _ in range(_DECODES):
            taken.append(self._step())
            if scenario.prompts and not taken[-1][0].prefill_tokens:
                taken.pop()
                break
            if not engine.has_unfinished:
                break
        engine.abort(engine.unfinished_ids)
        while engine.has_unfinished:
            engine.step()
        return taken

    def __call__(self, plan: StepPlan, result: StepResult, *_: object) -> None:
        """The engine's watcher: a step was committed."""
        self._seen.append(work_of(plan))

    def _step(self) -> tuple[StepWork, float]:
        """One step's work, and its seconds."""
        self._seen.clear()
        begin = self._clock()
        while not self._seen:
            self._engine.step()
        return self._seen[-1], self._clock() - begin

    def _add(self, length: int, max_tokens: int) -> None:
        """A request whose prompt nobody else has."""
        self._count += 1
        draw = random.Random(self._count)
        vocabulary = self._engine.facts.vocab_size
        prompt = [draw.randrange(3, vocabulary) for _ in range(length)]
        params = SamplingParams(temperature=1.0, max_tokens=max_tokens, ignore_eos=True, detokenize=False)
        self._engine.add_request(f"calibrate-{self._count}", prompt, params)


def measure(
    engine: Engine,
    wanted: Sequence[Scenario],
    rounds: int,
    clock: Callable[[], float],
    after_round: Callable[[int], None],
) -> Measured:
    """Run all scenarios `rounds` times, after a few that warm up. `after_round` is told how many rounds are done."""
    watch, order = Stopwatch(engine, clock), random.Random(0)
    for one in wanted[:: max(1, len(wanted) // 6)]:
        watch.run(one)
    taken: list[list[list[tuple[StepWork, float]]]] = [[] for _ in wanted]
    for i in range(rounds):
        engine.observe(watch)
        for place in order.sample(range(len(wanted)), len(wanted)):
            taken[place].append(watch.run(wanted[place]))
        after_round(i + 1)
    found = Measured([], [], [])
    for place, runs in enumerate(taken):
        for steps in zip(*runs, strict=True):
            found.works.append(steps[0][0])
            found.seconds.append(statistics.median(seconds for _, seconds in steps))
            found.places.append(place)
    return found


def fitted(measured: Measured, source: str) -> tuple[Fitted, Error, Error]:
    """Costs, how far off they are on the steps they were made from, and on the scenarios held out.

    Judged on what was held out, then made again from everything.
    """
    works, seconds = measured.part(held_out=False)
    if not measured.part(held_out=True)[0]:
        raise ConfigError("too few kinds of steps fit this engine to hold some out: give it a larger pool")
    judged = fit(works, seconds, source)
    off = error(judged, *measured.part(held_out=True))
    final = fit(measured.works, measured.seconds, source)
    return final, error(final, measured.works, measured.seconds), off
