"""RemoteLLM: what `AsyncLLM` is for one engine, for the replicas behind a handle of Ray Serve."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from paged_core.cluster.order import Order, prefix_keys
from paged_core.cluster.wire import Accepted, Answer, Begun, Joiner
from paged_core.errors import EngineDeadError, RequestError
from paged_core.server.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping, Sequence

    from ray.serve.handle import DeploymentHandle

    from paged_core.api.loader import Tokenizer
    from paged_core.api.output import RequestOutput
    from paged_core.api.params import SamplingParams
    from paged_core.cluster.fleet import Fleet
    from paged_core.cluster.wire import Told
    from paged_core.engine.config import EngineConfig
    from paged_core.engine.engine import Engine

log = logging.getLogger("paged_core.cluster")
_T = TypeVar("_T")
_NUM_TRIES = 2


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What is known of the replicas' engines, which are alike."""

    facts: EngineConfig
    tokenizer: Tokenizer


class ReplicaLostError(Exception):
    """The replica that had the call is gone."""


class RemoteLLM:
    """Sends each call to one of the replicas; a `Backend` of the server.

    A call whose replica dies before any output went to the caller is sent to another one, once. A later death, and a
    second one, ends it with 503 `replica_died`. A call that no replica takes within the `stall` setting
    ends with 503 `no_replica`.
    """

    def __init__(self, handle: DeploymentHandle[Any], fleet: Fleet, facts: EngineConfig) -> None:
        self.engine = EngineFacts(replace(facts, model=fleet.name), fleet.tokenizer)
        self._handle = handle
        self._calls = handle.options(stream=True)
        self._most_replicas = fleet.most
        self._patience_s = fleet.serve.stall
        self._source = uuid.uuid4().hex
        self._waiting: dict[Order, float] = {}  # no replica has taken them: since when
        self._responses: set[Any] = set()
        self._lost: set[str] = set()
        self._ending: ApiError | EngineDeadError | None = None

    async def generate_all(
        self,
        prompts: Sequence[Any],
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        **routing: Any,
    ) -> AsyncGenerator[tuple[int, RequestOutput], None]:
        """As `AsyncLLM.generate_all`, for prompts of token ids. Leaving early aborts the requests."""
        from paged_core.api.params import SamplingParams

        params = SamplingParams() if sampling_params is None else sampling_params
        end = None if routing.get("timeout") is None else time.monotonic() + routing["timeout"]
        ids = [prompt["prompt_token_ids"] for prompt in prompts]
        has_told = False
        for attempt in range(1, _NUM_TRIES + 1):
            order, joiner = self._order(ids, params, routing), Joiner(ids)
            if end is not None:
                routing = {**routing, "timeout": max(0.0, end - time.monotonic())}
            try:
                async with aclosing(self._told(order, prompts, params, routing)) as messages:
                    async for message in messages:
                        if isinstance(message, Answer):
                            has_told = True
                            yield message.index, joiner.join(message)
                return
            except ReplicaLostError as error:
                order.was_lost = True
                self._mourn(order.replica, error)
                if has_told or attempt == _NUM_TRIES:
                    when = "while it answered" if has_told else "before it answered, and so did another one"
                    why = f"the replica died {when}: the request may be sent again"
                    raise ApiError(503, why, code="replica_died", headers={"Retry-After": "1"}) from error
                log.info("a request of the replica %s goes to another one", order.replica)
            finally:
                order.has_ended = True

    async def ask_all(self, question: Callable[[Engine], _T]) -> Mapping[str, _T]:
        """The answers of all replicas that live, by their names."""
        found = await self._handle.broadcast("ask", question).results_async(return_exceptions=True)
        answers = dict(sorted(pair for pair in found if not isinstance(pair, BaseException)))
        if not answers:
            raise ApiError(503, "no replica is there to answer", code="no_replica", headers={"Retry-After": "5"})
        return answers

    @property
    def max_num_seqs(self) -> int:
        """Sequences that can run at a time in as many replicas as there may be."""
        return self.engine.facts.max_num_seqs * self._most_replicas

    @property
    def is_running(self) -> bool:
        """Whether calls are taken. Replicas may be few or none for a while: Ray brings them back."""
        return self._ending is None

    @property
    def failure(self) -> EngineDeadError | None:
        """None: there is always hope."""
        return None

    @property
    def silent_s(self) -> float:
        """Seconds that the oldest call which no replica has taken waits for one; 0 while there is none."""
        oldest = min(self._waiting.values(), default=None)
        return 0.0 if oldest is None else time.monotonic() - oldest

    def abort_all(self) -> None:
        """End every call: those inside get 503 `shutting_down`."""
        self._end(ApiError(503, "the server is shutting down", code="shutting_down"))

    def give_up(self, reason: str) -> None:
        """End every call with EngineDeadError."""
        self._end(EngineDeadError(reason))

    # -- one call ---------------------------------------------------------------------------------------------------

    def _order(self, ids: Sequence[Sequence[int]], params: SamplingParams, routing: Mapping[str, Any]) -> Order:
        facts = self.engine.facts
        root = (routing.get("cache_salt"), routing.get("adapter"))
        keys = (prefix_keys(each, facts.block_size, root) for each in ids if facts.prefix_cache)
        return Order(tuple(keys), sum(map(len, ids)), len(ids) * params.num_sequences, self._source)

    async def _told(
        self, order: Order, prompts: Sequence[Any], params: SamplingParams, routing: Mapping[str, Any]
    ) -> AsyncGenerator[Told, None]:
        """What the replica says. ReplicaLostError when it dies, RequestError when it refuses the request."""
        if self._ending is not None:
            raise self._ending
        response = self._calls.generate.remote(order, prompts, params, routing)
        self._responses.add(response)
        self._waiting[order] = time.monotonic()
        is_over = False
        try:
            while (message := await self._next(response, order)) is not None:
                if isinstance(message, Begun | Answer):
                    order.has_begun = True
                if isinstance(message, Accepted | Begun | Answer):
                    yield message
                else:
                    raise RequestError(message.message, message.field)
            is_over = True
        finally:
            self._waiting.pop(order, None)
            self._responses.discard(response)
            if not is_over:
                response.cancel()

    async def _next(self, response: Any, order: Order) -> Told | None:
        from ray.exceptions import RayError, RayTaskError
        from ray.serve.exceptions import RayServeException, RequestCancelledError

        waits = order in self._waiting
        try:
            async with asyncio.timeout(self._patience_s if waits else None):
                message: Told = await anext(response)
        except StopAsyncIteration:
            return None
        except TimeoutError:
            reason = f"no replica has taken the request in {self._patience_s:.0f} s"
            raise ApiError(503, reason, code="no_replica", headers={"Retry-After": "5"}) from None
        except RequestCancelledError as error:
            raise self._ending or ReplicaLostError(str(error)) from error
        except RayTaskError as error:
            if isinstance(error.cause, EngineDeadError):
                raise ReplicaLostError(str(error.cause)) from error
            raise
        except (RayError, RayServeException) as error:
            raise ReplicaLostError(str(error)) from error
        self._waiting.pop(order, None)
        return message

    def _mourn(self, replica: str | None, error: ReplicaLostError) -> None:
        """Tell of a death, once."""
        if replica is not None and replica not in self._lost:
            self._lost.add(replica)
            reason = str(error).partition("\n")[0]
            log.warning("the replica %s died (%s): requests that were being answered have failed", replica, reason)

    def _end(self, why: ApiError | EngineDeadError) -> None:
        self._ending = self._ending or why
        for response in list(self._responses):
            response.cancel()
