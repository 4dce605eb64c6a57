"""`bench latency` and `bench throughput`: a real model, held against the floor of the peaks measured beside it."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from paged_core.api.params import SamplingParams
from paged_core.bench.conditions import conditions
from paged_core.bench.floor import floor_of, replay
from paged_core.bench.peaks import measure_peaks
from paged_core.bench.report import Column, Report, Table
from paged_core.bench.stub import Arrival
from paged_core.bench.timing import measure
from paged_core.engine.assemble import locate
from paged_core.engine.hardware import choose_device
from paged_core.engine.llm import LLM
from paged_core.errors import ConfigError
from paged_core.plugins import bootstrap
from paged_core.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from paged_core.api.output import RequestMetrics
    from paged_core.bench.floor import Floor
    from paged_core.bench.peaks import Peaks
    from paged_core.engine.engine import Engine

ANSWER = 64
"""Tokens of the answer whose latency is taken."""
LOWEST_ID = 3
"""Below lie control tokens in the vocabularies at hand."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests that are all there at the start: ids of each prompt, and how many tokens to answer."""

    name: str
    prompts: list[list[int]]
    outputs: list[int]

    def arrivals(self) -> list[Arrival]:
        """All at once, greedy, to the full length."""
        pairs = zip(self.prompts, self.outputs, strict=True)
        return [Arrival(0.0, prompt, greedy(output)) for prompt, output in pairs]


def greedy(output: int) -> SamplingParams:
    """Exactly `output` tokens, of which no text is made."""
    return SamplingParams(temperature=0, max_tokens=output, ignore_eos=True, detokenize=False)


def mixed(count: int, vocab_size: int, seed: int) -> Workload:
    """`count` requests of random ids with lengths as in a chat service: lognormal, means 161 and 338, 4 to 512."""
    random = np.random.default_rng(seed)
    lengths = [np.clip(random.lognormal(np.log(mean) - 0.5, 1.0, count), 4, 512).astype(int) for mean in (161, 338)]
    prompts = [random.integers(LOWEST_ID, vocab_size, length).tolist() for length in lengths[0]]
    return Workload(f"mixed, seed {seed}", prompts, lengths[1].tolist())


def read_workload(path: Path) -> Workload:
    """`{"requests": [{"prompt": [ids], "out": tokens}]}`. ConfigError when the file is not that."""
    try:
        requests = json.loads(path.read_text())["requests"]
        return Workload(path.name, [one["prompt"] for one in requests], [int(one["out"]) for one in requests])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f'{path} is no workload {{"requests": [{{"prompt": [ids], "out": n}}]}}: {error}') from error


class Bench:
    """A model that is loaded, the peaks measured beside it, and the floor they make. A context manager.

    `peaks`: those measured just before, for a second model in the same run.
    """

    def __init__(self, settings: Mapping[str, Any], say: Callable[[str], None], peaks: Peaks | None = None) -> None:
        self.say = say
        # on a GPU before the engine takes its memory, on a CPU with the threads that the engine has set
        if peaks is None and choose_device(Settings.load(device=settings.get("device")).device) == "cuda":
            peaks = self._measured("cuda")
        self.llm = LLM(**dict(settings, prefix_cache=False))
        self.peaks = peaks or self._measured("cpu")
        spec = locate(self.llm.settings, bootstrap(self.llm.settings)).spec
        self.floor: Floor = floor_of(spec, self.engine.facts, self.peaks)

    def _measured(self, device: str) -> Peaks:
        self.say("measuring the peaks of this machine")
        return measure_peaks(device=device)

    @property
    def engine(self) -> Engine:
        """The engine that runs."""
        return self.llm.engine

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        self.llm.close()

    def report(self, command: str, table: Table, **more: Any) -> Report:
        """`table` and the peaks, under the conditions of this run."""
        threads = self.llm.settings.threads or "default"
        return Report(command, conditions(self.engine.facts, threads=threads, **more), [table, self.peaks.table()])

    def answer(self, prompt: Sequence[int], output: int) -> RequestMetrics:
        """Times of one request that runs alone."""
        return self.answers([prompt], output)[0]

    def answers(self, prompts: Sequence[Sequence[int]], output: int) -> list[RequestMetrics]:
        """Times of requests that run together, each answered with `output` tokens, in the order of their ends."""
        for i, prompt in enumerate(prompts):
            self.engine.add_request(f"bench-{i}", list(prompt), greedy(output))
        found: list[RequestMetrics] = []
        while self.engine.has_unfinished:
            found += [one.metrics for one in self.engine.step() if one.finished and one.metrics is not None]
        return found


def latency_table(bench: Bench, lengths: Sequence[int], rounds: int, seed: int) -> Table:
    """First token and decoding of one request alone, for several prompt lengths; those that do not fit are cut."""
    columns = (
        Column("prompt_tokens", "prompt", ","),
        Column("first_ms", "first token ms", ".1f"),
        Column("first_floor_ms", "floor ms", ".1f"),
        Column("first_share", "of floor", ".0%"),
        Column("prefill_per_s", "prefill tok/s", ",.0f"),
        Column("decode_per_s", "decode tok/s", ".1f"),
        Column("decode_floor_per_s", "floor tok/s", ".1f"),
        Column("decode_share", "of floor", ".0%"),
    )
    table = Table("Latency of one request", columns)
    random = np.random.default_rng(seed)
    facts = bench.engine.facts
    most = min(facts.max_model_len, facts.num_blocks * facts.block_size) - ANSWER
    for length in dict.fromkeys(min(length, most) for length in lengths):
        bench.say(f"{length} prompt tokens")
        prompt = random.integers(LOWEST_ID, facts.vocab_size, length).tolist()
        bench.answer(prompt, ANSWER)
        times = [_phases(bench.answer(prompt, ANSWER)) for _ in range(rounds)]
        first, decode = (statistics.median(phase) for phase in zip(*times, strict=True))
        ends = replay(facts, bench.floor, [Arrival(0.0, [1] * length, greedy(ANSWER))])
        first_floor, decode_floor = ends[-ANSWER], ends[-1] - ends[-ANSWER]
        row = (length, first * 1e3, first_floor * 1e3, first_floor / first, length / first)
        table.add(*row, (ANSWER - 1) / decode, (ANSWER - 1) / decode_floor, decode_floor / decode)
    table.notes.append(
        f"Medians of {rounds} rounds, {ANSWER} tokens each, greedy. Floor: this schedule at the peaks below."
    )
    return table


def _phases(metrics: RequestMetrics) -> tuple[float, float]:
    assert metrics.first_token_time is not None
    assert metrics.finished_time is not None
    return metrics.first_token_time - metrics.arrival_time, metrics.finished_time - metrics.first_token_time


def throughput_table(bench: Bench, workload: Workload, rounds: int) -> Table:
    """Many requests at once: output tokens a second, and the share of the floor."""
    columns = (
        Column("workload", "workload"),
        Column("requests", "requests"),
        Column("prompt_tokens", "prompt", ","),
        Column("output_tokens", "output", ","),
        Column("seconds", "seconds", ".2f"),
        Column("per_s", "output tok/s", ".0f"),
        Column("floor_seconds", "floor s", ".2f"),
        Column("share", "of floor", ".0%"),
        Column("spread", "spread", ".0%"),
    )
    table = Table("Throughput of many requests at once", columns)
    bench.say("warming up")
    _run(bench.engine, Workload("warm-up", workload.prompts[:4], [4] * len(workload.prompts[:4])))
    bench.say(f"{rounds} rounds of {len(workload.prompts)} requests")
    seconds = measure(lambda: _run(bench.engine, workload), rounds, warmups=0)
    floor = replay(bench.engine.facts, bench.floor, workload.arrivals())[-1]
    prompt_tokens, output_tokens = sum(map(len, workload.prompts)), sum(workload.outputs)
    row = (workload.name, len(workload.prompts), prompt_tokens, output_tokens, seconds.median)
    table.add(*row, output_tokens / seconds.median, floor, floor / seconds.median, seconds.spread)
    table.notes.append(
        f"Median of {rounds} rounds, greedy, end of sequence ignored. Floor: this schedule at the peaks below."
    )
    return table


def _run(engine: Engine, workload: Workload) -> None:
    for i, one in enumerate(workload.arrivals()):
        engine.add_request(f"throughput-{i}", one.prompt, one.params)
    while engine.has_unfinished:
        engine.step()
