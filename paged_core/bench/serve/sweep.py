"""The sweep: every rate's plan offered to one server, after a warm-up, with what the client itself cost."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from paged_core.bench.serve.client import Client, Target
from paged_core.bench.serve.figures import Slo, Summary, summarize
from paged_core.bench.serve.offer import offer
from paged_core.bench.serve.prompts import Prompts, calibrate
from paged_core.errors import ConfigError
from paged_core.workload.plan import Plan, Workload, plan_of
from paged_core.workload.traces import mean_rate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from paged_core.bench.serve.record import Record, Reply
    from paged_core.workload.traces import Arrival


@dataclass(frozen=True, slots=True)
class Sweep:
    """What to run. `rates` in requests a second; empty takes the trace's own. `warmup` requests go before each rate."""

    target: Target
    workload: Workload
    rates: tuple[float, ...] = ()
    max_concurrency: int | None = None
    warmup: int = 3
    slo: Slo | None = None
    shared_prefix: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """Summaries and records by rate, and the conditions that belong to them."""

    summaries: tuple[Summary, ...]
    records: tuple[tuple[Record, ...], ...]
    conditions: dict[str, Any]


async def run(sweep: Sweep, progress: Callable[[str], None], clock: Callable[[], float] = time.perf_counter) -> Outcome:
    """All rates, one after the other, each when the one before has been answered to the end.

    ConfigError when no server answers, when it serves no model, or when there is nothing to offer.
    """
    async with Client(sweep.target, clock) as client:
        model, limit = _chosen(await client.models(), sweep.target)
        workload = replace(sweep.workload, most_tokens=sweep.workload.most_tokens or limit)
        plans = [plan_of(workload, rate) for rate in sweep.rates or (None,)]
        # Never the texts of an earlier run with the same seed: the server may still have them in its prefix cache.
        prompts = await calibrate(client, model, sweep.target.endpoint, token_hex(8), sweep.shared_prefix)
        version = await client.json_of("GET", "/version")
        runs: list[tuple[float, tuple[Record, ...], float]] = []
        for number, (rate, plan) in enumerate(zip(sweep.rates or (None,), plans, strict=True)):
            used = mean_rate(plan.rows) if rate is None else rate
            progress(f"{used:g} requests/s: {len(plan.rows)} requests in {plan.rows[-1].at_s:.1f} s")
            await _offer(client, model, prompts, _warmup(plan, sweep.warmup), f"warm-up {number}", None, clock)
            found, cpu_s = await _offer(
                client, model, prompts, plan.rows, f"run {number}", sweep.max_concurrency, clock
            )
            runs.append((used, tuple(found), cpu_s))
    told = _conditions(sweep, workload, plans, prompts) | {"model": model}
    told |= {"server version": version["version"]} if version and "version" in version else {}
    # After the connections are closed: where they took every descriptor, not even numpy could open its own files.
    summaries = tuple(summarize(records, rate, sweep.slo, cpu_s) for rate, records, cpu_s in runs)
    return Outcome(summaries, tuple(records for _, records, _ in runs), told)


def _warmup(plan: Plan, count: int) -> list[Arrival]:
    """The first rows, all at once."""
    return [replace(row, at_s=0.0) for row in plan.rows[:count]]


async def _offer(
    client: Client,
    model: str,
    prompts: Prompts,
    rows: Sequence[Arrival],
    name: str,
    max_concurrency: int | None,
    clock: Callable[[], float],
) -> tuple[list[Record], float]:
    """What became of the requests, and the processor time of this process meanwhile, in seconds."""
    # Texts are made before the clock starts: that work is not the server's. Each run has its own, so that a rate does
    # not find the prompts of the one before in the server's prefix cache.
    texts = [prompts.text(row, f"{name}, {i}") for i, row in enumerate(rows)]

    async def send(index: int) -> Reply:
        return await client.ask(model, texts[index], rows[index].output_tokens)

    before = time.process_time()
    records = await offer(rows, send, max_concurrency, clock)
    return records, time.process_time() - before


def _chosen(models: Sequence[dict[str, Any]], target: Target) -> tuple[str, int | None]:
    """The model's name, and the most tokens of a request where the server tells it."""
    if target.model is None:
        if not models:
            raise ConfigError(f"{target.root}/v1/models lists no model: give its name with --model")
        return str(models[0].get("id")), models[0].get("max_model_len")
    limits = [one.get("max_model_len") for one in models if one.get("id") == target.model]
    return target.model, limits[0] if limits else None


def _conditions(sweep: Sweep, workload: Workload, plans: Sequence[Plan], prompts: Prompts) -> dict[str, Any]:
    found: dict[str, Any] = {
        "server": sweep.target.root,
        "endpoint": sweep.target.endpoint,
        "requests": plans[0].source,
        "prompts": prompts.source,
        "ends of text": "ignored" if sweep.target.ignore_eos else "respected",
        "max concurrency": sweep.max_concurrency or "none",
        "warm-up": sweep.warmup,
        "seed": workload.seed,
    }
    if workload.trace is None:
        found["burstiness"] = f"{workload.burstiness:g}"
    if workload.most_tokens:
        found["longest"] = f"{workload.most_tokens} tokens"
        if workload.trace is not None:
            found["longest"] += f", {sum(plan.num_too_long for plan in plans)} left out"
    if sweep.slo is not None:
        found["SLO"] = ", ".join(f"{name} {limit:g} ms" for name, limit in sweep.slo.limits_ms.items())
    if prompts.shared_tokens:
        found["shared prefix"] = f"{prompts.shared_tokens} tokens"
    return found
