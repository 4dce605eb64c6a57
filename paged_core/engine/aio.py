"""AsyncLLM: the engine on a thread of its own, requests as async generators.

Commands (add, abort) travel to the engine thread through a queue and are carried out between steps; outputs travel
back by `loop.call_soon_threadsafe`. Cancelling a generator aborts its request.
"""

from __future__ import annotations

import asyncio
import itertools
import queue
import threading
from typing import TYPE_CHECKING, Any

from paged_core.api.output import RequestOutput
from paged_core.engine.assemble import assemble, load_settings
from paged_core.errors import EngineDeadError, RequestError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from paged_core.api.params import SamplingParams
    from paged_core.engine.engine import Engine

_Item = RequestOutput | BaseException


def run(main: Coroutine[Any, Any, Any]) -> Any:
    """`asyncio.run` on uvloop where it is installed (everywhere but Windows)."""
    try:
        import uvloop
    except ModuleNotFoundError:
        return asyncio.run(main)
    return uvloop.run(main)


class _Stream:
    """Where one request's outputs go."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.items: asyncio.Queue[_Item] = asyncio.Queue()

    def put(self, item: _Item) -> None:
        """Called from the engine thread. A loop that is closed has nobody left to tell."""
        try:
            self.loop.call_soon_threadsafe(self.items.put_nowait, item)
        except RuntimeError:
            if not self.loop.is_closed():
                raise


class AsyncLLM:
    """A model served to many coroutines at once.

        llm = AsyncLLM("smollm2-135m")
        async for output in llm.generate("Hello", SamplingParams(max_tokens=32)):
            ...
        llm.shutdown()

    Keywords as for `LLM`. May be built in any thread, inside or outside a running loop; installs no signal handlers.
    """

    def __init__(self, model: str | None = None, *, engine: Engine | None = None, **settings: Any) -> None:
        self._close: Callable[[], None]
        if engine is None:
            assembly = assemble(load_settings(model=model, **settings))
            self.engine, self._close = assembly.engine, assembly.close
        else:
            self.engine, self._close = engine, engine.close
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._streams: dict[str, _Stream] = {}
        self._ids = itertools.count()
        self._failure: BaseException | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="paged-core-engine", daemon=True)
        self._thread.start()

    async def generate(
        self, prompt: Any, sampling_params: SamplingParams | None = None, request_id: str | None = None, **routing: Any
    ) -> AsyncIterator[RequestOutput]:
        """Yield an output per step, each of the params' output_kind; the last one is `finished`.

        Raises RequestError for an invalid request and EngineDeadError when the engine stops. Leaving the loop early,
        or cancelling the task, aborts the request and frees its blocks.
        """
        self._check_alive()
        key = request_id or f"async-{next(self._ids)}"
        stream = _Stream()
        self._commands.put(lambda: self._add(key, stream, prompt, sampling_params, routing))
        finished = False
        try:
            while not finished:
                item = await stream.items.get()
                if isinstance(item, BaseException):
                    finished = True
                    raise item
                finished = item.finished
                yield item
        finally:
            if not finished:
                self._commands.put(lambda: self._abort(key, stream))

    async def abort(self, request_id: str) -> None:
        """End a request; its generator yields a last output with finish reason "abort". Unknown ids are left alone."""
        self._commands.put(lambda: self._deliver(self.engine.abort([request_id])))

    @property
    def is_running(self) -> bool:
        """Whether the engine thread works."""
        return self._thread.is_alive() and self._failure is None

    def shutdown(self) -> None:
        """Stop the thread and release the model. Unfinished requests end with EngineDeadError. Idempotent."""
        if not self._closed:
            self._closed = True
            self._commands.put(None)
            self._thread.join()

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
        """Carry out what is queued; block while there is nothing to run. False: shut down."""
        while True:
            try:
                command = self._commands.get(block=not self.engine.has_unfinished)
            except queue.Empty:
                return True
            if command is None:
                return False
            command()

    def _add(
        self, key: str, stream: _Stream, prompt: Any, params: SamplingParams | None, routing: dict[str, Any]
    ) -> None:
        try:
            self.engine.add_request(key, prompt, params, stream=True, **routing)
        except RequestError as error:
            stream.put(error)
            return
        self._streams[key] = stream

    def _abort(self, key: str, stream: _Stream) -> None:
        """The caller left. Only if the id is still this caller's."""
        if self._streams.get(key) is stream:
            del self._streams[key]
            self.engine.abort([key])

    def _deliver(self, outputs: list[RequestOutput]) -> None:
        for output in outputs:
            finished = output.finished
            stream = self._streams.pop(output.request_id, None) if finished else self._streams.get(output.request_id)
            if stream is not None:
                stream.put(output)

    def _fail(self, error: EngineDeadError) -> None:
        self._failure = error
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.put(error)

    def _check_alive(self) -> None:
        if self._failure is not None:
            raise EngineDeadError(str(self._failure)) from self._failure
        if self._closed:
            raise EngineDeadError("this AsyncLLM was shut down")
