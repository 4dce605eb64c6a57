"""serve: the life of a server process, from the socket to the exit code.

The main thread loads the model and has the signals; the event loop runs in a thread of its own, from before the model
is loaded. So whoever watches the process is answered from the start, and a signal ends a load as it would any program.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import os
import signal
import socket
import sys
import threading
from typing import TYPE_CHECKING

import uvicorn

from paged_core.errors import ConfigError, EngineDeadError
from paged_core.server.connection import Connection
from paged_core.server.descriptors import take_descriptors
from paged_core.server.front import Front

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from fastapi import FastAPI

    from paged_core.engine.aio import AsyncLLM
    from paged_core.server.settings import ServeSettings
    from paged_core.server.state import Server

_WATCH_S = 0.1
_BACKLOG = 2048
_DESCRIPTORS = 1 << 16  # one a connection: clients that say nothing would soon have the usual thousand
_KEEP_ALIVE_S = 75  # longer than clients keep idle connections: who closes first must be the one that sends next
_LAST_WORDS_S = 2  # for error events of what was aborted
LAST_STEP_S = 5.0
"""Seconds that the engine's last step may take at the end."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def bind(settings: ServeSettings) -> socket.socket:
    """The listening socket. ConfigError when the address cannot be had."""
    host, port = settings.host, settings.port
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host}:{port}: {error.strerror or error}; choose another --port"
        ) from error


def serve(
    sock: socket.socket, settings: ServeSettings, load: Callable[[], FastAPI], ready: Callable[[str, Server], None]
) -> int:
    """Listen, `load`, and serve until SIGTERM or SIGINT, or until the engine stops; returns the exit code. `ready` gets
    the URL once requests are taken. To be called in the main thread.

    While loading, a signal ends the process at once. Later the first one drains: /ready turns red, new requests get
    503, those inside may finish within the `drain` setting and are aborted after it. A second one aborts at once.
    Raises EngineDeadError when the engine has stopped, and whatever `load` raises.
    """
    take_descriptors(_DESCRIPTORS)
    process = _Process(settings)
    with process.signals(), process.running(sock):
        app = process.load(load)
        if app is None:
            return 0
        gc.collect()
        gc.freeze()  # what lives now lives on: a large request need not have all of it looked through again and again
        process.enter(app)
        if not process.num_signals:
            ready(_url(sock), app.state.server)
    app.state.server.close()
    failure = app.state.server.llm.failure
    if failure is not None:
        raise EngineDeadError(_in_one_line(failure)) from failure
    return 0


def close(llm: AsyncLLM) -> None:
    """Stop the engine. If it hangs in a step the process ends here, with exit code 1: a thread in the middle of
    something cannot be ended otherwise."""
    if not llm.shutdown(LAST_STEP_S):
        sys.stdout.flush()
        print(f"paged-core: the engine hangs in a step: left after {LAST_STEP_S:.0f} s", file=sys.stderr, flush=True)
        os._exit(1)


class _StoppedError(BaseException):
    """Raised out of a load by a signal; like KeyboardInterrupt not an Exception, which a load may catch."""


class _Process(uvicorn.Server):
    """uvicorn in a thread of its own, with a drain before its shutdown, and an eye on the engine."""

    def __init__(self, settings: ServeSettings) -> None:
        self._front = Front(settings)
        super().__init__(
            uvicorn.Config(
                self._front,
                loop="uvloop",
                http=Connection,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=_KEEP_ALIVE_S,
                timeout_graceful_shutdown=_LAST_WORDS_S,
            )
        )
        self.num_signals = 0
        self._drain_s = settings.drain
        self._server: Server | None = None
        self._loading = self._over = False
        self._error: BaseException | None = None

    # -- the main thread ------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        """Both signals mean the same and are ours in the block."""
        before = {number: signal.signal(number, self.handle_exit) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextlib.contextmanager
    def running(self, sock: socket.socket) -> Iterator[None]:
        """Listen while the block runs, and after it as long as there is something to serve."""
        thread = threading.Thread(target=self._run, args=(sock,), name="paged-core-http", daemon=True)
        thread.start()
        try:
            yield
            self._over = self._server is None
        except BaseException:
            self._over = True
            raise
        finally:
            thread.join()
        if self._error is not None:
            raise self._error

    def load(self, load: Callable[[], FastAPI]) -> FastAPI | None:
        """The application, or None when a signal came first."""
        try:
            self._loading = True
            return load()
        except _StoppedError:
            return None
        finally:
            self._loading = False

    def enter(self, app: FastAPI) -> None:
        """From now on `app` answers."""
        self._server = app.state.server
        app.state.server.phase.draining = self.num_signals > 0
        self._front.app = app

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Count; `main_loop` acts. A load is ended here, and a second signal meanwhile does what it does by default."""
        self.num_signals += 1
        if self._server is not None:
            self._server.phase.draining = True
        if self._loading:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            raise _StoppedError

    # -- the thread of the event loop -----------------------------------------------------------------------------

    def _run(self, sock: socket.socket) -> None:
        try:
            self.run(sockets=[sock])
        except BaseException as error:  # the main thread raises it
            self._error = error
            if self._server is None:
                signal.raise_signal(signal.SIGTERM)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """They are the main thread's."""
        yield

    async def main_loop(self) -> None:
        """Until it is time to go."""
        while self._server is None and not self._over:
            await self._wait()
        if self._server is not None:
            await self._watch(self._server)
            await self._end_all(self._server)

    async def _watch(self, server: Server) -> None:
        end, loop = math.inf, asyncio.get_running_loop()
        while server.llm.is_running and self.num_signals < 2 and loop.time() < end and not self._over:
            await self._wait()
            if self.num_signals:
                end = min(end, loop.time() + self._drain_s)
                if not server.admission.inside:
                    break

    async def _end_all(self, server: Server) -> None:
        """Everybody inside gets a last word, from the engine or, when that hangs, without it."""
        server.phase.draining = True
        server.llm.abort_all()
        loop = asyncio.get_running_loop()
        end = loop.time() + _LAST_WORDS_S
        while server.admission.inside and loop.time() < end:
            await self._wait()
        server.llm.give_up("the engine hangs")

    async def _wait(self) -> None:
        await self.on_tick(0)
        await asyncio.sleep(_WATCH_S)


def _url(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _in_one_line(failure: EngineDeadError) -> str:
    """What happened, and the engine's notes on when."""
    notes = "; ".join(getattr(failure.__cause__, "__notes__", ()))
    return " ".join(f"{failure} ({notes})".split()) if notes else " ".join(str(failure).split())
