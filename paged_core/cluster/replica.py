"""EngineReplica: one engine as a deployment of Ray Serve."""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from paged_core.api.output_kind import RequestOutputKind
from paged_core.cluster.policy import Load
from paged_core.cluster.wire import Accepted, Begun, Cutter, Refused, Told
from paged_core.engine.aio import AsyncLLM
from paged_core.errors import EngineDeadError, RequestError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence

    from paged_core.api.output import RequestOutput
    from paged_core.api.params import SamplingParams
    from paged_core.cluster.order import Order
    from paged_core.engine.config import EngineConfig
    from paged_core.engine.engine import Engine

log = logging.getLogger("paged_core.cluster")
_T = TypeVar("_T")
_PACE_S = 0.02
"""Between two looks at outputs that grow: every message costs Ray 0.3 ms, and a slow reader gets longer ones."""
_LAST_STEP_S = 5.0


class EngineReplica:
    """An engine, its outputs streamed to whoever holds a handle. Ray asks `check_health`, restarts what is ill, and
    drains what it stops."""

    def __init__(self, settings: Mapping[str, Any], stall_s: float) -> None:
        """Loads the model. `settings` are `AsyncLLM`'s; a step that takes longer than `stall_s` is an illness."""
        _log_through_ray()
        self._stall_s = stall_s
        self._loads: dict[str, Load] = {}
        self._is_closing = False
        self._llm = AsyncLLM(**settings)

    async def generate(
        self, order: Order, prompts: Sequence[Any], params: SamplingParams, routing: Mapping[str, Any]
    ) -> AsyncGenerator[Told, None]:
        """As `AsyncLLM.generate_all`, each step as a message. Ray cancels it when the caller leaves, which aborts the
        requests."""
        with self._carrying(order) as begun:
            yield Accepted()
            cutter = Cutter()
            try:
                async with aclosing(self._outputs(prompts, params, routing)) as outputs:
                    async for index, output in outputs:
                        if begun():
                            yield Begun()
                        if output.finished or params.output_kind is RequestOutputKind.CUMULATIVE:
                            yield cutter.cut(index, output)
            except RequestError as error:
                yield Refused(str(error), error.field)
            except EngineDeadError as error:
                self._end_process(error)
                raise

    async def _outputs(
        self, prompts: Sequence[Any], params: SamplingParams, routing: Mapping[str, Any]
    ) -> AsyncGenerator[tuple[int, RequestOutput], None]:
        """Cumulative outputs, also where the last ones are all that is asked for: the first of them tells that the
        prefill is over. Each prompt has one in a round, and rounds keep their distance."""
        looked = params.clone()
        looked.output_kind = RequestOutputKind.CUMULATIVE
        unfinished, seen = set(range(len(prompts))), set()
        async with aclosing(self._llm.generate_all(prompts, looked, **routing)) as outputs:
            async for index, output in outputs:
                seen.add(index)
                if output.finished:
                    unfinished.discard(index)
                yield index, output
                if unfinished and seen >= unfinished:
                    seen.clear()
                    await asyncio.sleep(_PACE_S)

    async def facts(self) -> EngineConfig:
        """What the engine runs with."""
        return self._llm.engine.facts

    async def ask(self, question: Callable[[Engine], _T]) -> tuple[str, _T]:
        """The replica's name, and the answer of its engine."""
        from ray import serve

        return serve.get_replica_context().replica_id.unique_id, await self._llm.ask(question)

    async def check_health(self) -> None:
        """Asked by Ray. Raises when the engine has stopped or hangs in a step: this replica will be replaced."""
        if self._llm.failure is not None:
            raise self._llm.failure
        if self._llm.silent_s > self._stall_s:
            raise TimeoutError(f"the engine has not finished a step for {self._llm.silent_s:.0f} s")

    def record_routing_stats(self) -> dict[str, Any]:
        """Asked by Ray, for all routers."""
        facts = self._llm.engine.facts
        loads = {source: (load.num_tokens, load.num_seqs) for source, load in self._loads.items()}
        return {"loads": loads, "num_blocks": facts.num_blocks, "block_size": facts.block_size}

    def __del__(self) -> None:
        """Called by Ray once nothing runs here any more."""
        self._is_closing = True
        if hasattr(self, "_llm"):
            self._llm.shutdown(_LAST_STEP_S)

    def _end_process(self, error: EngineDeadError) -> None:
        """An engine that has stopped by itself is of no use, and its idleness would attract every call until the next
        health check. Ray sees the process end at once: callers are told, and a new replica starts."""
        if not self._is_closing:
            log.error("%s: this replica ends", error, exc_info=error)
            os._exit(1)

    @contextmanager
    def _carrying(self, order: Order) -> Iterator[Callable[[], bool]]:
        """Count the order while the block runs; what is yielded is to be called with
        every output, and true at the first: the prefill is over."""
        tokens, is_new = order.num_tokens, True

        def add(num_tokens: int, num_seqs: int) -> None:
            load = self._loads.get(order.source, Load()) + Load(num_tokens, num_seqs)
            self._loads[order.source] = load
            if load == Load():
                del self._loads[order.source]

        def begun() -> bool:
            nonlocal tokens, is_new
            add(-tokens, 0)
            tokens, was_new = 0, is_new
            is_new = False
            return was_new

        add(tokens, order.num_seqs)
        try:
            yield begun
        finally:
            add(-tokens, -order.num_seqs)


def _log_through_ray() -> None:
    """Our loggers write where the replica's own lines go: Ray's log files, by Ray's format."""
    ours, theirs = logging.getLogger("paged_core"), logging.getLogger("ray.serve")
    ours.setLevel(logging.INFO)
    for handler in theirs.handlers:
        if handler not in ours.handlers:
            ours.addHandler(handler)
