"""What a decode step costs with this allocator or scheduler: no hook, and few Python objects.

Counts, never times. The bounds are three to five times what a step takes with alloc_cow and sched_fcfs (13 KiB, 1.3
objects kept): they are there to find the step that turns its tables into lists or keeps what it saw, not to rank.
"""

from __future__ import annotations

import gc
import sys
import tracemalloc
from dataclasses import replace
from typing import TYPE_CHECKING

import pluggy

from paged_conformance.marks import layer
from paged_conformance.oracles.allocator_shape import Shape
from paged_core.api.params import SamplingParams
from paged_core.api.provider import Provider
from paged_core.testing.build import EngineShape, build_engine
from paged_core.testing.shadow import ShadowExecutor

if TYPE_CHECKING:
    from types import FrameType

    from paged_conformance.candidate import Candidate
    from paged_core.engine.engine import Engine

pytestmark = layer("cost")

NUM_SEQS = 8
WARM_STEPS = 20
STEPS = 60
MAX_PEAK_BYTES = 64 * 1024  # transient, a step of NUM_SEQS sequences: engine, executor and plugin together
MAX_KEPT_OBJECTS = 4  # a sequence and step: what outlives the step, such as pieces of output text


def decoding_engine(candidate: Candidate) -> Engine:
    """An engine in the midst of decoding NUM_SEQS sequences; without audits, as in production."""
    size = Shape().need(candidate).block_size if candidate.kind == "alloc" else EngineShape().block_size
    length = WARM_STEPS + 2 * STEPS + 40
    shape = EngineShape(
        num_blocks=(NUM_SEQS + 1) * -(-length // size),
        block_size=size,
        max_model_len=length,
        max_num_seqs=NUM_SEQS,
        prefix_cache=candidate.kind != "alloc" or candidate.has("prefix_cache"),
    )
    setattr(shape, candidate.kind, candidate.name)
    engine = build_engine(ShadowExecutor(size), shape, plugins=candidate.plugins)
    engine.facts = replace(engine.facts, audit=False)
    params = SamplingParams(temperature=0, max_tokens=WARM_STEPS + 2 * STEPS, ignore_eos=True)
    for number in range(NUM_SEQS):
        engine.add_request(f"r{number}", [65 + number] * (8 + number), params)
    for _ in range(WARM_STEPS):
        engine.step()
    return engine


def hooks_called(candidate: Candidate) -> list[str]:
    """What ran in STEPS decode steps though no hook and no provider may run while a request is in flight."""
    engine, called = decoding_engine(candidate), []
    provider = type(candidate.provider)
    cold = {
        function.__code__
        for function in (pluggy.HookCaller.__call__, provider.probe, provider.create, Provider.missing_capabilities)
    }

    def profile(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code in cold:
            called.append(frame.f_code.co_qualname)

    sys.setprofile(profile)
    try:
        for _ in range(STEPS):
            engine.step()
        candidate.plugins.judge(candidate.record, None)  # the watch sees what it is to see
    finally:
        sys.setprofile(None)
    assert called[-1].endswith("probe"), "the watch is blind"
    return called[:-1]


def peak_bytes(candidate: Candidate) -> int:
    """The most that any of STEPS decode steps had allocated at one time beyond what it found."""
    engine, peaks = decoding_engine(candidate), []
    tracemalloc.start()
    try:
        for _ in range(STEPS):
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            engine.step()
            peaks.append(tracemalloc.get_traced_memory()[1] - before)
    finally:
        tracemalloc.stop()
    return max(peaks)


def kept_objects(candidate: Candidate) -> float:
    """Memory blocks of Python that a sequence's decode step leaves behind, on average."""
    engine = decoding_engine(candidate)
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(STEPS):
        engine.step()
    gc.collect()
    return (sys.getallocatedblocks() - before) / (STEPS * NUM_SEQS)


def test_decoding_with_this_allocator_calls_no_hook(alloc: Candidate) -> None:
    called = hooks_called(alloc)
    assert not called, f"rule: hooks are cold, but {STEPS} decode steps called {called}"


def test_decoding_with_this_scheduler_calls_no_hook(sched: Candidate) -> None:
    called = hooks_called(sched)
    assert not called, f"rule: hooks are cold, but {STEPS} decode steps called {called}"


def test_a_decode_step_of_this_allocator_allocates_little(alloc: Candidate) -> None:
    peak = peak_bytes(alloc)
    assert peak <= MAX_PEAK_BYTES, f"a decode step of {NUM_SEQS} sequences took {peak} bytes, not {MAX_PEAK_BYTES}"


def test_a_decode_step_of_this_scheduler_allocates_little(sched: Candidate) -> None:
    peak = peak_bytes(sched)
    assert peak <= MAX_PEAK_BYTES, f"a decode step of {NUM_SEQS} sequences took {peak} bytes, not {MAX_PEAK_BYTES}"


def test_decode_steps_of_this_allocator_leave_nothing_behind(alloc: Candidate) -> None:
    kept = kept_objects(alloc)
    assert kept <= MAX_KEPT_OBJECTS, f"each sequence's decode step keeps {kept:.1f} objects, not {MAX_KEPT_OBJECTS}"


def test_decode_steps_of_this_scheduler_leave_nothing_behind(sched: Candidate) -> None:
    kept = kept_objects(sched)
    assert kept <= MAX_KEPT_OBJECTS, f"each sequence's decode step keeps {kept:.1f} objects, not {MAX_KEPT_OBJECTS}"
