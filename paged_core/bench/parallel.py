"""`bench tp`: what it costs a step that ranks share it, beside the same model in one process, taken in turns."""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from paged_core.api.batch import StepPlan
from paged_core.bench.conditions import conditions
from paged_core.bench.report import Column, Report, Table
from paged_core.bench.speed import LOWEST_ID, greedy
from paged_core.bench.timing import Measurement
from paged_core.engine.assemble import assemble, load_settings
from paged_core.errors import ConfigError
from paged_core.model.parallel.executor import ParallelExecutor, Traffic
from paged_core.model.parallel.shard import fitting_sizes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


_PROMPT = 16
_EMPTY_STEPS = 200


@dataclass(frozen=True, slots=True)
class Choice:
    """Batch sizes, how many tokens each sequence decodes, how often, and the seed of the prompts."""

    batches: tuple[int, ...] = (1, 8, 32, 128)
    answer: int = 24
    rounds: int = 5
    seed: int = 0


class Contestant:
    """An engine of one process or of several ranks, and its executor."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        assembly = assemble(load_settings(**settings))
        self.engine, self.executor = assembly.engine, assembly.executor
        self.sizes = fitting_sizes(assembly.spec)
        self.close = assembly.close
        self._count = 0

    def decode_step_s(self, prompts: Sequence[Sequence[int]], answer: int) -> list[float]:
        """Seconds of every step in which all prompts decode."""
        engine = self.engine
        for prompt in prompts:
            engine.add_request(str(self._count), list(prompt), greedy(answer))
            self._count += 1
        engine.step()  # all prompts at once
        times = []
        while engine.has_unfinished:
            begin = time.perf_counter()
            engine.step()
            times.append(time.perf_counter() - begin)
        return times

    def empty_step_s(self) -> float:
        """Seconds of a step in which nothing is computed: the message there and the answer back."""
        times = []
        for _ in range(_EMPTY_STEPS):
            begin = time.perf_counter()
            self.executor.collect(self.executor.submit(StepPlan.empty()))
            times.append(time.perf_counter() - begin)
        return statistics.median(times)

    def cpu_s(self) -> float | None:
        """Processor seconds so far, of this process and all ranks; None where the system does not tell."""
        files = [Path(f"/proc/{pid}/task").glob("*/schedstat") for pid in self.executor.processes()]
        try:
            others = sum(int(file.read_text().split()[0]) for group in files for file in group)
        except OSError:
            return None
        return time.process_time() + others / 1e9

    def traffic(self) -> Traffic:
        """What ranks have told each other."""
        assert isinstance(self.executor, ParallelExecutor)
        return self.executor.traffic()


def parallel_report(settings: Mapping[str, Any], choice: Choice, say: Callable[[str], None]) -> Report:
    """Decode steps at every batch size. Without a tensor_parallel_size, of the smallest above 1 that works.

    ConfigError when there is none, or a batch is more than the engine runs at once.
    """
    say("loading the model in one process")
    one = Contestant({**settings, "tensor_parallel_size": 1, "executor": "auto"})
    several = None
    try:
        size = settings.get("tensor_parallel_size") or _smallest(one.sizes)
        say(f"loading it over {size} ranks")
        several = Contestant({**settings, "tensor_parallel_size": size, "executor": "tp"})
        table = _table(one, several, size, choice, say)
        facts = several.engine.facts
        more = {"ranks": size, "threads": f"{settings.get('threads', 'all')}, divided among the ranks"}
        return Report("bench tp", conditions(facts, seed=choice.seed, **more), [table])
    finally:
        one.close()
        if several is not None:
            several.close()


def _smallest(sizes: Sequence[int]) -> int:
    if len(sizes) < 2:
        raise ConfigError("this model cannot be shared: one rank is all that its heads allow")
    return sizes[1]


def _table(one: Contestant, several: Contestant, size: int, choice: Choice, say: Callable[[str], None]) -> Table:
    columns = (
        Column("batch", "batch"),
        Column("one_ms", "one process ms", ".2f"),
        Column("ranks_ms", f"{size} ranks ms", ".2f"),
        Column("ratio", "ratio", ".2f"),
        Column("one_cpu_ms", "processor ms", ".2f"),
        Column("ranks_cpu_ms", f"of {size} ranks", ".2f"),
        Column("control_ms", "message, answer ms", ".3f"),
        Column("bytes", "bytes", ","),
        Column("meetings", "meetings", ".0f"),
        Column("meeting_ms", "in meetings ms", ".2f"),
        Column("share", "of the step", ".0%"),
        Column("spread", "spread", ".0%"),
    )
    table = Table(f"A decode step over {size} ranks beside one process", columns)
    control = several.empty_step_s()
    for batch in choice.batches:
        say(f"batch {batch}")
        table.add(batch, *_row(one, several, control, batch, choice))
    table.notes += [
        f"Medians of {choice.rounds} rounds in turns, greedy, {choice.answer} tokens a sequence. Processor: time of",
        "all processes together, which busy neighbours hardly change. Message, answer: a step that computes nothing.",
        "Meetings: sums over ranks and gathering of logits, as rank 0 sees them, waiting for slower ranks included.",
        "Ranks of one machine share its cores: where those are few there is nothing to gain.",
    ]
    return table


def _row(one: Contestant, several: Contestant, control: float, batch: int, choice: Choice) -> tuple[float, ...]:
    facts = several.engine.facts
    if batch > min(facts.max_num_seqs, facts.token_budget):
        raise ConfigError(f"a batch of {batch} is more than the engine runs at once: raise --max-num-seqs")
    length = max(1, min(_PROMPT, facts.token_budget // batch))
    prompts = np.random.default_rng(choice.seed).integers(LOWEST_ID, facts.vocab_size, (batch, length)).tolist()
    for each in (one, several):
        each.decode_step_s(prompts, 4)  # whatever is made at first use
    samples: dict[Contestant, list[float]] = {one: [], several: []}
    cpu = dict.fromkeys(samples, 0.0)
    before = several.traffic()
    for _ in range(choice.rounds):
        for each, found in samples.items():
            begin = each.cpu_s()
            found.append(statistics.median(each.decode_step_s(prompts, choice.answer)))
            end = each.cpu_s()
            cpu[each] += math.nan if begin is None or end is None else end - begin
    after, steps = several.traffic(), choice.rounds * choice.answer
    alone, shared = (Measurement(tuple(found)) for found in samples.values())
    num_bytes, meetings, meeting_s = ((end - begin) / steps for begin, end in zip(before, after, strict=True))
    return (
        alone.median * 1e3,
        shared.median * 1e3,
        shared.median / alone.median,
        *(seconds / steps * 1e3 for seconds in cpu.values()),
        control * 1e3,
        round(num_bytes),
        meetings,
        meeting_s * 1e3,
        meeting_s / shared.median,
        shared.spread,
    )
