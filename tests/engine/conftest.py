from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from paged_core.api.params import SamplingParams
from paged_core.structured.child import CompileLimits
from paged_core.structured.compiler import GrammarCompiler
from paged_core.structured.vocabulary import vocabulary_of
from paged_core.testing.build import EngineShape, build_engine, default_plugins, torch_sampler
from paged_core.testing.overlapped import Overlapped
from paged_core.testing.shadow import ShadowExecutor
from paged_core.testing.shadow_logits import ShadowLogits
from paged_core.testing.tokenizer import ByteTokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from paged_core.api.executor import Executor
    from paged_core.api.output import RequestOutput
    from paged_core.engine.engine import Engine

MAX_STEPS = 5000


def drain(engine: Engine, max_steps: int = MAX_STEPS) -> dict[str, RequestOutput]:
    """Step until idle; every finished output by request id. Fails rather than hangs."""
    finished: dict[str, RequestOutput] = {}
    for _ in range(max_steps):
        if not engine.has_unfinished:
            engine.check()
            return finished
        for output in engine.step():
            if output.finished:
                finished[output.request_id] = output
    raise AssertionError(f"not idle after {max_steps} steps: {engine.stats()}")


def overlapping(executor: Executor, shape: EngineShape, in_flight: int, **how: Any) -> Engine:
    """An engine over `executor` that has `in_flight` steps, 1 or 2, submitted and not collected."""
    if in_flight == 1:
        return build_engine(executor, shape, **how)
    overlapped = Overlapped(executor, shape.block_size)
    engine = build_engine(overlapped, shape, **how)
    overlapped.watch(engine)
    return engine


@pytest.fixture(name="drain")
def drain_fixture() -> Callable[..., dict[str, RequestOutput]]:
    return drain


@pytest.fixture(scope="session")
def plugins() -> Any:
    return default_plugins()


@pytest.fixture
def shadow(plugins: Any) -> Callable[..., Engine]:
    """Build an engine over a ShadowExecutor: keyword arguments are those of EngineShape; with `in_flight` 2 an audited
    executor takes two steps at a time."""

    def build(wrap: Any = None, in_flight: int = 1, **shape: Any) -> Engine:
        made = EngineShape(**shape)
        executor = ShadowExecutor(made.block_size)
        return overlapping(executor, made, in_flight, plugins=plugins, wrap_scheduler=wrap)

    return build


@pytest.fixture(scope="session")
def grammars() -> Iterator[GrammarCompiler]:
    """One compiler for all engines of this session that speak ByteTokenizer's 320 tokens."""
    compiler = GrammarCompiler(vocabulary_of(ByteTokenizer(), 320), CompileLimits(60.0, 1 << 30, 1 << 28))
    yield compiler
    compiler.close()


@pytest.fixture(scope="session")
def logits(plugins: Any, grammars: GrammarCompiler) -> Callable[..., Engine]:
    """Build an engine over ShadowLogits with sample_torch: keyword arguments are those of EngineShape and `in_flight`,
    as for `shadow`."""

    def build(wrap: Any = None, in_flight: int = 1, **shape: Any) -> Engine:
        made = EngineShape(**shape)
        executor = ShadowLogits(made.block_size, torch_sampler(made, plugins))
        return overlapping(executor, made, in_flight, plugins=plugins, wrap_scheduler=wrap, grammars=grammars)

    return build


@pytest.fixture
def cold(shadow: Callable[..., Engine]) -> Callable[..., list[int]]:
    """Tokens of one prompt alone on a fresh engine: prefix cache off, ample pool."""

    def run(prompt: list[int], max_tokens: int) -> list[int]:
        engine = shadow(prefix_cache=False, num_blocks=256)
        engine.add_request("cold", prompt, SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True))
        return drain(engine)["cold"].outputs[0].token_ids

    return run
