"""What the engine counts as Prometheus' metrics: names, units, labels. docs/serve.md lists them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from prometheus_client.metrics_core import Metric

    from paged_core.engine.config import EngineConfig
    from paged_core.engine.engine import Engine
    from paged_core.engine.metrics import EngineStats
    from paged_core.engine.tallies import TallySheet

PREFIX = "paged:"

HISTOGRAMS: tuple[tuple[str, str, str], ...] = (
    ("time_to_first_token_seconds", "time_to_first_token", "From a request's arrival to its first token."),
    ("inter_token_latency_seconds", "inter_token_latency", "From one token of a sequence to the next."),
    ("time_per_output_token_seconds", "time_per_output_token", "Mean time of a request's tokens after the first."),
    ("request_time_per_output_token_seconds", "time_per_output_token", "The same, under vLLM's newer name."),
    ("e2e_request_latency_seconds", "e2e_latency", "From a request's arrival to its end."),
    ("request_queue_time_seconds", "queue_time", "From a request's arrival to the first step it ran in."),
    ("request_prefill_time_seconds", "prefill_time", "From the first step a request ran in to its first token."),
    ("request_decode_time_seconds", "decode_time", "From a request's first token to its end."),
    ("request_inference_time_seconds", "inference_time", "From the first step a request ran in to its end."),
    ("request_prompt_tokens", "prompt_tokens", "Prompt tokens of a request that ended."),
    ("request_generation_tokens", "generation_tokens", "Output tokens of a request that ended, all answers."),
    ("iteration_tokens_total", "iteration_tokens", "Tokens put through the model in one step."),
)
"""(name, name of the tally, what it is)."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The engine at one moment, read in its own thread."""

    facts: EngineConfig
    stats: EngineStats
    sheet: TallySheet

    @classmethod
    def of(cls, engine: Engine) -> Reading:
        """Read it."""
        return cls(engine.facts, engine.stats(), engine.tallies())


@dataclass(frozen=True, slots=True, eq=False)
class Families:
    """A collector of one reading; every sample has the label `model_name`."""

    reading: Reading
    model_name: str

    def collect(self) -> Iterator[Metric]:
        """All families."""
        yield from self._queues()
        yield from self._pool()
        yield from self._sharing()
        yield from self._preemptions()
        yield from self._totals()
        for name, tally, what in HISTOGRAMS:
            yield self._histogram(name, tally, what)
        yield self._config()

    def _queues(self) -> Iterator[Metric]:
        stats = self.reading.stats
        yield self._gauge("num_requests_running", "Requests that run.", stats.num_running)
        yield self._gauge("num_requests_waiting", "Requests that wait for their turn or grammar.", stats.num_waiting)
        yield self._gauge("num_requests_preempted", "Requests that ran and wait to go on.", stats.num_preempted)

    def _pool(self) -> Iterator[Metric]:
        blocks = self.reading.stats.blocks
        used = blocks.used / blocks.total if blocks.total else 0.0
        yield self._gauge("kv_cache_usage_perc", "Share of the KV blocks that requests hold, 0 to 1.", used)
        states = {
            "free": blocks.free - blocks.cached_free,
            "cached": blocks.cached_free,
            "private": blocks.used - blocks.shared,
            "shared": blocks.shared,
        }
        yield self._gauge("kv_blocks", "Device blocks by state; their sum is the pool.", states, "state")
        host = {"free": blocks.host_free, "used": blocks.host_total - blocks.host_free}
        yield self._gauge("kv_host_blocks", "Host blocks by state.", host, "state")
        waste = blocks.tail_waste_slots
        yield self._gauge("kv_tail_waste_slots", "Token slots at the ends of last blocks that hold none.", waste)

    def _sharing(self) -> Iterator[Metric]:
        blocks = self.reading.stats.blocks
        yield self._gauge("kv_blocks_saved", "Blocks it would take more without sharing.", blocks.saved)
        most = len(blocks.ref_counts)
        refs = {f"{k}+" if k == most else str(k): num for k, num in enumerate(blocks.ref_counts, 1)}
        yield self._gauge("kv_block_refs", "Device blocks by the number of their references.", refs, "refs")
        yield self._counter("cow_copies", "Blocks copied because one of several holders wrote.", blocks.num_copies)
        yield self._counter("prefix_cache_queries", "Tokens looked up in the prefix cache.", blocks.prefix_queries)
        yield self._counter("prefix_cache_hits", "Tokens found in the prefix cache.", blocks.prefix_hits)
        yield self._counter("prefix_cache_evictions", "Cached blocks given up for others.", blocks.num_evictions)

    def _preemptions(self) -> Iterator[Metric]:
        stats = self.reading.stats
        yield self._counter("num_preemptions", "Requests that had to make room, by kind.", stats.preemptions, "kind")
        what = "Tokens whose keys and values left the device to make room; recomputed or swapped back."
        yield self._counter("preemption_tokens", what, stats.preempted_tokens, "kind")
        what = "What preemptions were expected to cost, leaving and coming back."
        yield self._counter("preemption_seconds", what, stats.preemption_s, "kind")

    def _totals(self) -> Iterator[Metric]:
        stats, sheet = self.reading.stats, self.reading.sheet
        what = "Requests that ended, each once, by reason."
        yield self._counter("request_success", what, sheet.finished, "finished_reason")
        yield self._counter("prompt_tokens", "Prompt tokens of requests that began to answer.", sheet.num_prompt)
        yield self._counter("generation_tokens", "Output tokens.", stats.num_generated)
        yield self._counter("computed_tokens", "Tokens put through the model.", stats.num_computed)
        yield self._counter("engine_steps", "Steps of the engine.", stats.num_steps)
        yield self._counter("engine_busy_seconds", "Time in steps.", stats.busy_s)

    def _config(self) -> Metric:
        facts = self.reading.facts
        names = ("block_size", "num_blocks", "num_host_blocks", "kv_dtype", "max_model_len", "max_num_seqs")
        values = {name: str(getattr(facts, name)) for name in (*names, "token_budget", "prefix_cache")}
        values |= {f"plugin_{kind}": name for kind, name in facts.plugins.items()}
        family = InfoMetricFamily(PREFIX + "cache_config", "What the engine runs with.", labels=["model_name"])
        family.add_metric([self.model_name], values)
        return family

    def _histogram(self, name: str, tally: str, what: str) -> Metric:
        found = self.reading.sheet.distributions[tally]
        bounds = [*map(str, found.bounds), "+Inf"]
        buckets = list(zip(bounds, accumulate(found.counts), strict=True))
        family = HistogramMetricFamily(PREFIX + name, what, labels=["model_name"])
        family.add_metric([self.model_name], buckets, found.total)
        return family

    def _gauge(self, name: str, what: str, value: float | Mapping[str, float], label: str = "") -> Metric:
        return self._fill(GaugeMetricFamily(PREFIX + name, what, labels=self._labels(label)), value)

    def _counter(self, name: str, what: str, value: float | Mapping[str, float], label: str = "") -> Metric:
        return self._fill(CounterMetricFamily(PREFIX + name, what, labels=self._labels(label)), value)

    def _fill(self, family: GaugeMetricFamily | CounterMetricFamily, value: float | Mapping[str, float]) -> Metric:
        """One sample, or one for every value of the other label."""
        values = {(): value} if isinstance(value, int | float) else {(key,): one for key, one in value.items()}
        for key, one in values.items():
            family.add_metric([self.model_name, *key], one)
        return family

    @staticmethod
    def _labels(label: str) -> list[str]:
        return ["model_name", *([label] if label else [])]


@dataclass(frozen=True, slots=True, eq=False)
class ManyFamilies:
    """A collector of the readings of several engines: one family each, whose samples have the label `replica`."""

    readings: Mapping[str, Reading]
    model_name: str

    def collect(self) -> Iterator[Metric]:
        """All families."""
        collected = (Families(reading, self.model_name).collect() for reading in self.readings.values())
        for families in zip(*collected, strict=True):
            for name, family in zip(self.readings, families, strict=True):
                labelled = [sample._replace(labels={**sample.labels, "replica": name}) for sample in family.samples]
                family.samples = labelled
            families[0].samples = [sample for family in families for sample in family.samples]
            yield families[0]


def all_families(readings: Mapping[str, Reading], model_name: str) -> Families | ManyFamilies:
    """A collector of what was read of one engine without a name, or of several by their names."""
    alone = readings.get("")
    return ManyFamilies(readings, model_name) if alone is None else Families(alone, model_name)
