"""AsyncLLM: the engine on a thread of its own, requests as async generators.

Commands (add, abort, questions) travel to the engine thread through a queue and are carried out between steps; outputs
travel back through mailboxes. Cancelling a generator aborts its request.
"""

from __future__ import annotations

import asyncio
import itertools
import queue
import threading
import time
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from paged_core.api.output_kind import RequestOutputKind
from paged_core.engine.assemble import assemble, load_settings
from paged_core.engine.mailbox import Mailbox, tell, wake_all
from paged_core.errors import EngineDeadError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence

    from paged_core.api.output import RequestOutput
    from paged_core.api.params import SamplingParams
    from paged_core.engine.engine import Engine

    Watcher = Callable[[Engine, list[RequestOutput]], None]

_T = TypeVar("_T")
_LOOK_S = 2.0
"""While nothing runs the engine looks so often whether everything it needs is still there."""


def run(main: Coroutine[Any, Any, Any]) -> Any:
    """`asyncio.run` on uvloop where it is installed (everywhere but Windows)."""
    try:
        import uvloop
    except ModuleNotFoundError:
        return asyncio.run(main)
    return uvloop.run(main)


@dataclass(frozen=True, slots=True)
class _Command:
    """What the engine thread shall do, and whom to tell when it cannot any more."""

    run: Callable[[], None]
    refuse: Callable[[BaseException], None]


@dataclass(frozen=True, slots=True)
class _Call:
    """One call of `generate_all`: a request for every prompt, all added or none."""

    keys: list[str]
    prompts: Sequence[Any]
    params: SamplingParams | None
    routing: dict[str, Any]
    box: Mailbox


class AsyncLLM:
    """A model served to many coroutines at once.

        llm = AsyncLLM("smollm2-135m")
        async for output in llm.generate("Hello", SamplingParams(max_tokens=32)):
            ...
        llm.shutdown()

    Keywords as for `LLM`. May be built in any thread, inside or outside a running loop; installs no signal handlers.
    `watchers` are called in the engine's thread with the outputs of every step and every abort, all of them though a
    reader may skip some; they must be quick and must not raise. Append to the list before the first request.
    """

    def __init__(self, model: str | None = None, *, engine: Engine | None = None, **settings: Any) -> None:
        self._close: Callable[[], None]
        if engine is None:
            assembly = assemble(load_settings(model=model, **settings))
            self.engine, self._close = assembly.engine, assembly.close
        else:
            self.engine, self._close = engine, engine.close
        self.watchers: list[Watcher] = []
        self._commands: queue.SimpleQueue[_Command | None] = queue.SimpleQueue()
        self._readers: dict[str, tuple[Mailbox, int, bool]] = {}  # by request: where to, which prompt, deltas
        self._boxes: set[Mailbox] = set()  # of all calls that wait for outputs
        self._ids = itertools.count()
        self._lock = threading.Lock()  # no command is put into the queue of a thread that has ended
        self._failure: EngineDeadError | None = None
        self._closed = False
        self._beat: float | None = None
        self._thread = threading.Thread(target=self._serve, name="paged-core-engine", daemon=True)
        self._thread.start()

    async def generate(
        self, prompt: Any, sampling_params: SamplingParams | None = None, request_id: str | None = None, **routing: Any
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yield outputs of the params' output_kind; the last one is `finished`. Of cumulative outputs a reader that is
        slower than the engine gets the newest only. `routing` as for `Engine.add_request`, or `timeout` in seconds
        instead of a deadline.

        Raises RequestError for an invalid request and EngineDeadError when the engine stops. Leaving the loop early,
        or cancelling the task, aborts the request and frees its blocks.
        """
        async with aclosing(self.generate_all([prompt], sampling_params, request_id, **routing)) as outputs:
            async for _, output in outputs:
                yield output

    async def generate_all(
        self,
        prompts: Sequence[Any],
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        **routing: Any,
    ) -> AsyncGenerator[tuple[int, RequestOutput], None]:
        """As `generate` for several prompts at once: yields (index of the prompt, output) until all are finished.

        When one of them is invalid none is run. With `request_id` the requests are called request_id, request_id-1, ...
        """
        first = request_id or f"async-{next(self._ids)}"
        keys = [first if i == 0 else f"{first}-{i}" for i in range(len(prompts))]
        call = _Call(keys, prompts, sampling_params, routing, Mailbox())
        self._command(_Command(lambda: self._add(call), lambda error: self._refuse(call, error)))
        unfinished = set(range(len(prompts)))
        self._boxes.add(call.box)
        try:
            while unfinished:
                for index, output in await call.box.take():
                    if output.finished:
                        unfinished.discard(index)
                    yield index, output
        finally:
            self._boxes.discard(call.box)
            if unfinished and self.is_running:
                self._commands.put(_Command(lambda: self._leave(call), _nobody))

    async def abort(self, request_id: str) -> None:
        """End a request; its generator yields a last output with finish reason "abort". Unknown ids are left alone."""
        self._command(_Command(lambda: self._deliver(self.engine.abort([request_id])), _nobody))

    def abort_all(self) -> None:
        """End every request, from any thread: their generators yield last outputs with finish reason "abort". Does
        nothing when the engine has stopped."""
        with self._lock:
            if self._failure is None and not self._closed:
                work = _Command(lambda: self._deliver(self.engine.abort(self.engine.unfinished_ids)), _nobody)
                self._commands.put(work)

    def give_up(self, reason: str) -> None:
        """Let everybody who waits for outputs have EngineDeadError, from any thread and without the engine's, which may
        hang. Their requests are aborted if it goes on."""
        error = EngineDeadError(reason)
        wake_all([box for box in list(self._boxes) if box.fail(error)])

    async def ask(self, question: Callable[[Engine], _T]) -> _T:
        """The answer of `question`, put to the engine in its own thread between two steps. EngineDeadError when there
        is none any more; what the question raises is raised here."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[_T] = loop.create_future()

        def reply(value: Any, error: BaseException | None = None) -> None:
            tell(loop, _settle, answer, value, error)

        def put() -> None:
            try:
                value = question(self.engine)
            except Exception as error:
                reply(None, error)
            else:
                reply(value)

        self._command(_Command(put, lambda error: reply(None, error)))
        return await answer

    async def ask_all(self, question: Callable[[Engine], _T]) -> dict[str, _T]:
        """As `ask`, in the form of a backend with several engines: this one has no name."""
        return {"": await self.ask(question)}

    @property
    def max_num_seqs(self) -> int:
        """Sequences that can run at a time."""
        return self.engine.facts.max_num_seqs

    @property
    def is_running(self) -> bool:
        """Whether the engine thread works."""
        return self._thread.is_alive() and self._failure is None

    @property
    def failure(self) -> EngineDeadError | None:
        """Why the engine stopped, its cause chained; None while it works."""
        return self._failure

    @property
    def silent_s(self) -> float:
        """Seconds since the engine thread last began a step or obeyed a command; 0 while it waits for work."""
        beat = self._beat
        return 0.0 if beat is None else time.monotonic() - beat

    def shutdown(self, timeout: float | None = None) -> bool:
        """Stop the thread and release the model. Unfinished requests end with EngineDeadError. Idempotent. Waits for
        the step that runs; False: it was still running after `timeout` seconds."""
        if not self._closed:
            self._closed = True
            self._commands.put(None)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _command(self, command: _Command) -> None:
        with self._lock:
            if self._failure is not None:
                raise EngineDeadError(str(self._failure)) from self._failure
            if self._closed:
                raise EngineDeadError("this AsyncLLM was shut down")
            self._commands.put(command)

    # -- the engine thread ----------------------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            while self._obey():
                self._deliver(self.engine.step())
            self._fail(EngineDeadError("the engine was shut down"))
        except BaseException as error:  # everyone who waits must hear of it, whatever it was
            failure = EngineDeadError(f"the engine stopped: {error}")
            failure.__cause__ = error
            self._fail(failure)
        finally:
            self._close()

    def _obey(self) -> bool:
        """Carry out what is queued; wait while there is nothing to run. False: shut down."""
        while True:
            busy = self.engine.has_unfinished
            self._beat = time.monotonic() if busy else None
            try:
                command = self._commands.get(block=not busy, timeout=_LOOK_S)
            except queue.Empty:
                if busy:
                    return True
                self.engine.look()
                continue
            if command is None:
                return False
            self._beat = time.monotonic()
            command.run()

    def _add(self, call: _Call) -> None:
        delta = call.params is not None and call.params.output_kind is RequestOutputKind.DELTA
        routing = dict(call.routing)
        if (timeout := routing.pop("timeout", None)) is not None:
            routing["deadline"] = self.engine.now + timeout
        for i, (key, prompt) in enumerate(zip(call.keys, call.prompts, strict=True)):
            try:
                self.engine.add_request(key, prompt, call.params, stream=True, **routing)
            except Exception as error:  # whatever is wrong with one request is told to its caller alone
                self._leave(call)
                self._refuse(call, error)
                return
            self._readers[key] = (call.box, i, delta)

    def _refuse(self, call: _Call, error: BaseException) -> None:
        if call.box.fail(error):
            wake_all([call.box])

    def _leave(self, call: _Call) -> None:
        """The caller left, or cannot be served. Only those whose ids are still this call's."""
        mine = [key for key in call.keys if key in self._readers and self._readers[key][0] is call.box]
        for key in mine:
            del self._readers[key]
        self._deliver(self.engine.abort(mine))

    def _deliver(self, outputs: list[RequestOutput]) -> None:
        asleep = []
        for output in outputs:
            key = output.request_id
            reader = self._readers.pop(key, None) if output.finished else self._readers.get(key)
            if reader is not None and reader[0].put(reader[1], output, delta=reader[2]):
                asleep.append(reader[0])
        if asleep:
            wake_all(asleep)
        if outputs:
            for watcher in self.watchers:
                watcher(self.engine, outputs)

    def _fail(self, error: EngineDeadError) -> None:
        with self._lock:
            self._failure = error
        while not self._commands.empty():
            command = self._commands.get_nowait()
            if command is not None:
                command.refuse(error)
        readers, self._readers = self._readers, {}
        wake_all([box for box, _, _ in readers.values() if box.fail(error)])


def _settle(answer: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    if answer.done():
        return  # who asked has left
    if error is None:
        answer.set_result(value)
    else:
        answer.set_exception(error)


def _nobody(error: BaseException) -> None:
    """Nobody waits for this command's outcome."""
