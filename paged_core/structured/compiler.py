"""GrammarCompiler: compiled grammars by spec, from a cache or from processes that compile off the engine's loop."""

from __future__ import annotations

import threading
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from paged_core.structured.backends import open_backend
from paged_core.structured.child import Child, CompileLimits

if TYPE_CHECKING:
    from paged_core.structured.grammar import Backend, CompiledGrammar
    from paged_core.structured.spec import GrammarSpec
    from paged_core.structured.vocabulary import Vocabulary

NUM_CHILDREN = 2
"""One grammar that runs into its limit holds up one process; the other goes on."""

MAX_CACHED = 512


class GrammarCompiler:
    """Futures of compiled grammars. Nothing is started before the first grammar; one thread calls, the work is done
    in others, each with a child process of its own. A child that fails is replaced at the next grammar."""

    def __init__(self, vocabulary: Vocabulary, limits: CompileLimits) -> None:
        self._vocabulary, self._limits = vocabulary, limits
        self._threads = ThreadPoolExecutor(NUM_CHILDREN, thread_name_prefix="paged-core-grammar")
        self._lock = threading.Lock()
        self._children: list[Child] = []
        self._idle: list[Child] = []
        self._backends: dict[str, Backend] = {}
        self._closed = False
        self._cache: OrderedDict[GrammarSpec, Future[CompiledGrammar]] = OrderedDict()
        self.num_compiled = 0

    def submit(self, spec: GrammarSpec) -> Future[CompiledGrammar]:
        """The grammar of `spec`: done at once if it is cached, shared if somebody waits for it already.

        The future fails with GrammarError when the grammar cannot be had. Failures are not remembered.
        """
        future = self._cache.get(spec)
        if future is None or (future.done() and (future.cancelled() or future.exception() is not None)):
            future = self._cache[spec] = self._threads.submit(self._work, spec)
        self._cache.move_to_end(spec)
        self._shrink()
        return future

    @property
    def num_cached(self) -> int:
        """Grammars that are kept or being made."""
        return len(self._cache)

    def close(self) -> None:
        """End all processes; what still compiles fails. Idempotent."""
        with self._lock:
            self._closed = True
            for child in self._children:
                child.kill()
        self._threads.shutdown(wait=True, cancel_futures=True)
        for child in self._children:
            child.close()
        self._children.clear()
        self._idle.clear()
        self._cache.clear()

    def _work(self, spec: GrammarSpec) -> CompiledGrammar:
        child = self._take()
        try:
            payload = child.compile(spec)
        finally:
            self._put_back(child)
        with self._lock:  # backends are not built twice, and a second load waits milliseconds
            self.num_compiled += 1
            if spec.backend not in self._backends:
                self._backends[spec.backend] = open_backend(spec.backend, self._vocabulary)
            return self._backends[spec.backend].load(spec, payload)

    def _take(self) -> Child:
        with self._lock:
            if self._idle:
                return self._idle.pop()
            child = Child(self._vocabulary, self._limits)
            self._children.append(child)
            if self._closed:
                child.kill()
            return child

    def _put_back(self, child: Child) -> None:
        with self._lock:
            if child.alive:
                self._idle.append(child)
                return
            if not self._closed:
                self._children.remove(child)
                child.close()

    def _shrink(self) -> None:
        """Drop what was not asked for longest, until the finished ones fit the cache. The newest is never dropped."""
        sizes = {spec: _num_bytes(future) for spec, future in self._cache.items()}
        total = sum(sizes.values())
        for spec, num_bytes in list(sizes.items())[:-1]:
            if total <= self._limits.cache_bytes and len(self._cache) <= MAX_CACHED:
                return
            if self._cache[spec].done():
                del self._cache[spec]
                total -= num_bytes


def _num_bytes(future: Future[CompiledGrammar]) -> int:
    ready = future.done() and not future.cancelled() and future.exception() is None
    return future.result().num_bytes if ready else 0
