"""Traffic: requests played through an engine over the shadow executor, whose tokens depend on every slot they read."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from paged_conformance.benches.recorder import Recorder
from paged_core.api.allocator import AllocatorNeed
from paged_core.api.params import SamplingParams
from paged_core.testing.build import EngineShape, build_engine
from paged_core.testing.overlapped import Overlapped
from paged_core.testing.shadow import ShadowExecutor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from paged_core.api.output import RequestOutput
    from paged_core.api.scheduler import Scheduler
    from paged_core.engine.engine import Engine
    from paged_core.plugins import Plugins

IDLE_LIMIT = 8
"""Steps in a row that compute nothing before a run is broken off."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request: its prompt, how many tokens it wants, the step before which it arrives, and how urgent it is."""

    id: str
    prompt: tuple[int, ...]
    num_tokens: int
    at: int = 0
    priority: int = 0


@dataclass(slots=True)
class Play:
    """What a run left behind. `error` is what broke it off; the engine is then dead or stuck."""

    engine: Engine
    executor: ShadowExecutor
    recorder: Recorder
    tokens: dict[str, list[int]] = field(default_factory=dict)
    preemptions: dict[str, int] = field(default_factory=dict)
    aborted: set[str] = field(default_factory=set)
    num_steps: int = 0
    error: str | None = None

    def assert_law(self, law: str, title: str) -> None:
        """Assert that no decision broke `law` of `benches.judges`."""
        breach = self.recorder.breaches.get(law)
        assert breach is None, f"{title}: {breach}"

    def assert_sound(self) -> None:
        """Assert that the run came to its end."""
        assert self.error is None, self.error


def shape_for(plugins: Plugins, **sizes: object) -> EngineShape:
    """An engine shape whose unnamed plugins are the registry's best; the allocator can swap where one can."""
    shape = EngineShape(alloc="auto", sched="auto", preempt="auto")
    for name, value in sizes.items():
        setattr(shape, name, value)
    if shape.alloc == "auto":
        need = AllocatorNeed(shape.num_blocks, 0, shape.block_size, 2 * shape.max_num_seqs, shape.max_model_len)
        able = [record for record in plugins.of_kind("alloc") if "swap" in record.provider.capabilities]
        fitting = [record.name for record in able if plugins.judge(record, need).ok]
        shape.alloc = fitting[0] if fitting else "auto"
    return shape


def preempting_by(plugins: Plugins, mode: str) -> str:
    """The best preemption plugin that declares `mode` ("swap" or "recompute"). LookupError where there is none."""
    for record in plugins.of_kind("preempt"):
        if mode in record.provider.capabilities:
            return record.name
    raise LookupError(f"no preemption plugin that declares {mode!r} is registered")


def play(
    plugins: Plugins,
    shape: EngineShape,
    asks: Sequence[Ask],
    *,
    aborts: Mapping[int, Sequence[str]] | None = None,
    wrap: Callable[[Scheduler], Scheduler] = lambda inner: inner,
    step_s: float = 0.001,
    in_flight: int = 1,
) -> Play:
    """Run `asks` to the end on a fresh engine; `aborts`: step -> ids that are aborted before it.

    `wrap` wraps the scheduler inside the recorder. `in_flight` 2: a step is submitted before the last was collected.
    """
    made: list[Recorder] = []

    def record(inner: Scheduler) -> Scheduler:
        made.append(Recorder(wrap(inner), chunked=shape.chunked_prefill))
        return made[0]

    executor = ShadowExecutor(shape.block_size, step_s=step_s)
    overlapped = Overlapped(executor, shape.block_size)
    engine = build_engine(executor if in_flight == 1 else overlapped, shape, plugins=plugins, wrap_scheduler=record)
    overlapped.watch(engine)
    run = Play(engine, executor, made[0])
    try:
        _drive(run, sorted(asks, key=lambda ask: ask.at), aborts or {})
    except Exception as error:  # what the engine raised is the verdict on the plugin; assert_sound repeats it
        run.error = f"the engine broke off at step {run.num_steps}: {type(error).__name__}: {error}"
    return run


def _drive(run: Play, asks: Sequence[Ask], aborts: Mapping[int, Sequence[str]]) -> None:
    pending, idle = list(reversed(asks)), 0
    limit = 200 + 40 * sum(len(ask.prompt) + ask.num_tokens for ask in asks)
    while pending or run.engine.has_unfinished:
        while pending and pending[-1].at <= run.num_steps:
            submit(run.engine, pending.pop())
        run.aborted |= {one.request_id for one in run.engine.abort(aborts.get(run.num_steps, ()))}
        before, busy = len(run.recorder.notes), run.engine.has_unfinished
        _collect(run, run.engine.step())
        run.num_steps += 1
        notes = run.recorder.notes
        idle = idle + 1 if busy and len(notes) > before and not notes[-1].tokens and not notes[-1].resume else 0
        if idle == IDLE_LIMIT or run.num_steps == limit:
            waiting = ", ".join(run.engine.unfinished_ids[:6])
            run.error = f"progress: after {run.num_steps} steps nothing more happens and {waiting} are unfinished"
            return
    run.engine.check()


def submit(engine: Engine, ask: Ask) -> None:
    """Queue one request, greedy, to be answered in full."""
    params = SamplingParams(temperature=0, max_tokens=ask.num_tokens, ignore_eos=True, detokenize=False)
    engine.add_request(ask.id, list(ask.prompt), params, priority=ask.priority)


def _collect(run: Play, outputs: Sequence[RequestOutput]) -> None:
    for output in outputs:
        if output.finished:
            run.tokens[output.request_id] = list(output.outputs[0].token_ids)
            run.preemptions[output.request_id] = output.metrics.num_preemptions if output.metrics else 0


def undisturbed(plugins: Plugins, asks: Sequence[Ask], block_size: int = 4) -> dict[str, list[int]]:
    """The tokens of `asks` where nothing is ever short: ample pool and budget, no prefix cache, the registry's best."""
    max_len = max(len(ask.prompt) + ask.num_tokens for ask in asks)
    num_seqs = min(64, len(asks))
    shape = shape_for(
        plugins,
        block_size=block_size,
        num_blocks=num_seqs * (max_len // block_size + 2),
        num_host_blocks=0,
        max_model_len=max_len,
        max_num_seqs=num_seqs,
        token_budget=num_seqs * max_len,
        prefix_cache=False,
    )
    engine = build_engine(ShadowExecutor(block_size), shape, plugins=plugins)
    found: dict[str, list[int]] = {}
    for ask in asks:
        submit(engine, ask)
    while engine.has_unfinished:
        found |= {one.request_id: list(one.outputs[0].token_ids) for one in engine.step() if one.finished}
    assert engine.stats().preemptions == {"swap": 0, "recompute": 0}, "the reference run itself was preempted"
    return found


def random_asks(seed: int, num_steps: int, rate: float, *, max_prompt: int = 30, max_tokens: int = 24) -> list[Ask]:
    """Arrivals over `num_steps` steps, `rate` a step on average; half of the prompts share a beginning."""
    dice = random.Random(seed)
    asks: list[Ask] = []
    for step in range(num_steps):
        if dice.random() >= rate:
            continue
        length = dice.randint(1, max_prompt)
        head = [dice.randint(1, 3)] * dice.randint(1, max_prompt) if dice.random() < 0.5 else []
        prompt = (head + [dice.randint(1, 90) for _ in range(length)])[:length]
        asks.append(Ask(f"r{len(asks)}", tuple(prompt), dice.randint(1, max_tokens), step))
    return asks


def random_aborts(seed: int, asks: Sequence[Ask], share: float) -> dict[int, list[str]]:
    """Some of `asks` are given up a little after they came."""
    dice = random.Random(seed)
    found: dict[int, list[str]] = {}
    for ask in asks:
        if dice.random() < share:
            found.setdefault(ask.at + dice.randint(0, 60), []).append(ask.id)
    return found
