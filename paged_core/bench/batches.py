"""`bench model`: one model at several batch sizes and widths of its weights, decoding, held against the floor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from paged_core.bench.floor import replay
from paged_core.bench.peers import WEIGHTS
from paged_core.bench.report import Column, Table, verdict
from paged_core.bench.shapes import PREFIX
from paged_core.bench.speed import LOWEST_ID, Bench, greedy
from paged_core.bench.stub import Arrival
from paged_core.bench.timing import Measurement
from paged_core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from paged_core.bench.peaks import Peaks
    from paged_core.bench.report import Report

GOALS = {PREFIX + "llama-1.1b": 0.85}
"""Share of the floor, by model."""
_PROMPT = 32


@dataclass(frozen=True, slots=True)
class Choice:
    """Which widths and batch sizes, how many tokens each sequence decodes, how often, and the seed of its prompts."""

    weights: tuple[str, ...] = tuple(WEIGHTS)
    batches: tuple[int, ...] = (1, 16)
    answer: int = 64
    rounds: int = 5
    seed: int = 0


def batches_report(settings: Mapping[str, Any], choice: Choice, say: Callable[[str], None]) -> Report:
    """Tokens a second of every width and batch size, and the peaks they are held against.

    One engine a width, one after the other. ConfigError when a batch is more than the engine runs at once.
    """
    columns = (
        Column("weights", "weights"),
        Column("batch", "batch"),
        Column("per_s", "decode tok/s", ".1f"),
        Column("step_ms", "ms / step", ".2f"),
        Column("floor_per_s", "floor tok/s", ".1f"),
        Column("share", "of floor", ".0%"),
        Column("goal", "goal", ".0%"),
        Column("verdict", "verdict"),
        Column("spread", "spread", ".0%"),
        Column("load_s", "load s", ".1f"),
    )
    table = Table("Decoding in batches", columns)
    peaks: Peaks | None = None
    for name in choice.weights:
        say(f"loading {name} weights")
        with Bench({**settings, **WEIGHTS[name]}, say, peaks) as bench:
            peaks = bench.peaks
            for batch in choice.batches:
                table.add(name, batch, *_row(bench, batch, choice))
            report = bench.report("bench model", table, weights=", ".join(choice.weights), seed=choice.seed)
    table.notes += [
        f"Medians of {choice.rounds} rounds, greedy, {choice.answer} tokens a sequence, timed from the second on.",
        "Floor: this schedule at the peaks below. Load: weights and KV pool.",
    ]
    return report


def _row(bench: Bench, batch: int, choice: Choice) -> tuple[str | float | None, ...]:
    bench.say(f"batch {batch}")
    seconds, floor = decoding(bench, batch, choice)
    steps = choice.answer - 1
    speed, share = batch * steps / seconds.median, floor / seconds.median
    goal = GOALS.get(bench.engine.facts.model)
    held = (batch * steps / floor, share, goal, verdict(share, goal))
    return speed, seconds.median / steps * 1e3, *held, seconds.spread, bench.llm.timings["weights and KV pool"]


def decoding(bench: Bench, batch: int, choice: Choice) -> tuple[Measurement, float]:
    """Seconds in which `batch` sequences decode all tokens but their first, and the least that this can take."""
    facts = bench.engine.facts
    most = min(facts.max_num_seqs, facts.token_budget)
    if batch > most:
        raise ConfigError(f"a batch of {batch} is more than the engine runs at once ({most}): raise --max-num-seqs")
    length = min(_PROMPT, facts.token_budget // batch)  # all prompts in one step, so that all decode together
    prompts = np.random.default_rng(choice.seed).integers(LOWEST_ID, facts.vocab_size, (batch, length)).tolist()
    bench.answers(prompts, choice.answer)
    seconds = Measurement(tuple(_decoded(bench, prompts, choice.answer) for _ in range(choice.rounds)))
    ends = replay(facts, bench.floor, [Arrival(0.0, prompt, greedy(choice.answer)) for prompt in prompts])
    assert len(ends) == choice.answer, "the prompts took more than one step"
    return seconds, ends[-1] - ends[0]


def _decoded(bench: Bench, prompts: Sequence[Sequence[int]], answer: int) -> float:
    times = bench.answers(prompts, answer)
    first = [one.first_token_time for one in times if one.first_token_time is not None]
    end = [one.finished_time for one in times if one.finished_time is not None]
    return max(end) - max(first)
