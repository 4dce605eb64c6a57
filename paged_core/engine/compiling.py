"""Compiling: requests whose grammar is being compiled. They hold up neither the engine's loop nor each other.

Not a queue of the ledger: a request enters the ledger, and hence a scheduler's sight, when its grammar is there. A
grammar that fails sends its request into the ledger as well, where it ends as every other does.
"""

from __future__ import annotations

import concurrent.futures
import copy
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from paged_core.api.structured import FIELD
from paged_core.errors import RequestError

if TYPE_CHECKING:
    from concurrent.futures import Future

    from paged_core.api.loader import Tokenizer
    from paged_core.api.request import Request
    from paged_core.engine.config import EngineConfig
    from paged_core.structured.compiler import GrammarCompiler
    from paged_core.structured.grammar import CompiledGrammar

_IDLE_WAIT_S = 0.01


class Arrival(NamedTuple):
    """A request on its way into the ledger."""

    request: Request
    seed: int
    stream: bool


class Compiling:
    """Who waits for which grammar. The compiler itself is made for the first request that has one."""

    def __init__(self, tokenizer: Tokenizer, facts: EngineConfig) -> None:
        self._tokenizer, self._facts = tokenizer, facts
        self._compiler: GrammarCompiler | None = None
        self._waiting: dict[str, tuple[Arrival, Future[CompiledGrammar]]] = {}

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._waiting

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def ids(self) -> list[str]:
        """Ids of the requests that wait, oldest first."""
        return list(self._waiting)

    def hold(self, arrival: Arrival) -> Arrival | None:
        """The arrival that can go on now (no grammar, or one that is there already), or None: it waits here.

        Raises RequestError when nothing here can serve it.
        """
        wish = arrival.request.params.structured_outputs
        if wish is None:
            return arrival
        from paged_core.structured.spec import grammar_spec

        future = self._opened().submit(grammar_spec(wish, self._facts.structured_backend))
        if future.done() and not future.cancelled() and future.exception() is None:
            return self._bound(arrival, future.result())
        self._waiting[arrival.request.id] = (arrival, future)
        return None

    def ready(self) -> list[tuple[Arrival, str]]:
        """Those that need not wait any more, oldest first, each with its grammar or with the reason why there is none.

        A compiler that cannot start is the engine's misfortune, not the request's, and yet only the request ends.
        """
        done = [request_id for request_id, (_, future) in self._waiting.items() if future.done()]
        return [self._outcome(*self._waiting.pop(request_id)) for request_id in done]

    def drop(self, request_id: str) -> Arrival | None:
        """The request leaves; its grammar is finished for the cache."""
        held = self._waiting.pop(request_id, None)
        return None if held is None else held[0]

    def wait(self) -> None:
        """Nothing else runs: sleep until a grammar is done, but not for long, so that commands are heard."""
        futures = [future for _, future in self._waiting.values()]
        concurrent.futures.wait(futures, _IDLE_WAIT_S, concurrent.futures.FIRST_COMPLETED)

    def close(self) -> None:
        """End the compiling processes. Idempotent."""
        if self._compiler is not None:
            self._compiler.close()

    def _opened(self) -> GrammarCompiler:
        if self._compiler is None:
            from paged_core.structured.child import CompileLimits
            from paged_core.structured.compiler import GrammarCompiler
            from paged_core.structured.vocabulary import vocabulary_of

            facts = self._facts
            vocabulary = vocabulary_of(self._tokenizer, facts.vocab_size)
            if not vocabulary.eos_token_ids:
                raise RequestError("structured_outputs need an end token, and this model's tokenizer has none", FIELD)
            limits = CompileLimits(facts.structured_timeout, facts.structured_memory, facts.structured_cache)
            self._compiler = GrammarCompiler(vocabulary, limits)
        return self._compiler

    def _outcome(self, arrival: Arrival, future: Future[CompiledGrammar]) -> tuple[Arrival, str]:
        error = future.exception()
        if error is None:
            return self._bound(arrival, future.result()), ""
        wish = arrival.request.params.structured_outputs
        assert wish is not None
        return arrival, f"{FIELD}: the {wish.kind} cannot be compiled: {error}"

    def _bound(self, arrival: Arrival, grammar: CompiledGrammar) -> Arrival:
        """The arrival with the grammar as its first logits processor."""
        from paged_core.structured.processor import GrammarProcessor

        params = copy.copy(arrival.request.params)
        first = GrammarProcessor(grammar, jump=self._facts.jump_forward)
        params.logits_processors = [first, *(params.logits_processors or [])]
        return arrival._replace(request=replace(arrival.request, params=params))
