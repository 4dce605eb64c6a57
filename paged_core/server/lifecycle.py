"""serve: the life of a server process, from the socket to the exit code."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import socket
from typing import TYPE_CHECKING

import uvicorn

from paged_core.errors import ConfigError
from paged_core.server.connection import Connection

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from fastapi import FastAPI

    from paged_core.server.settings import ServeSettings
    from paged_core.server.state import Server

_WATCH_S = 0.1
_BACKLOG = 2048
_KEEP_ALIVE_S = 75  # longer than clients keep idle connections: who closes first must be the one that sends next
_LAST_WORDS_S = 2  # for error events of what was aborted


def bind(settings: ServeSettings) -> socket.socket:
    """The listening socket, before anything heavy is loaded; who connects meanwhile waits. ConfigError when the address
    cannot be had."""
    host, port = settings.host, settings.port
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host}:{port}: {error.strerror or error}; choose another --port"
        ) from error


def serve(app: FastAPI, sock: socket.socket, ready: Callable[[str], None]) -> int:
    """Serve until SIGTERM or SIGINT, or until the engine stops; returns the exit code. `ready` gets the URL.

    The first signal drains: /ready turns red, new requests get 503, those inside may finish within the `drain` setting
    and are aborted after it. A second signal aborts at once.
    """
    gc.collect()
    gc.freeze()  # what lives now lives on: a large request need not have all of it looked through again and again
    process = _Process(app)
    process.announce = lambda: ready(_url(sock))
    process.run(sockets=[sock])
    return 0 if app.state.server.llm.failure is None else 1


class _Process(uvicorn.Server):
    """uvicorn with a drain before its shutdown, and an eye on the engine."""

    def __init__(self, app: FastAPI) -> None:
        super().__init__(
            uvicorn.Config(
                app,
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
        self.announce: Callable[[], None] = lambda: None
        self._server: Server = app.state.server
        self._signals = 0

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Both signals mean the same; they are ours until the end, and are not raised again afterwards."""
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Count; `main_loop` acts."""
        self._signals += 1
        self._server.phase.draining = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then say so."""
        await super().startup(sockets)
        self.announce()

    async def main_loop(self) -> None:
        """Until it is time to go."""
        loop = asyncio.get_running_loop()
        end: float | None = None
        while self._server.llm.is_running:
            await self.on_tick(0)
            await asyncio.sleep(_WATCH_S)
            if self._signals and end is None:
                end = loop.time() + self._server.settings.drain
            if end is not None and (not self._server.admission.inside or loop.time() >= end or self._signals > 1):
                break
        self._server.phase.draining = True
        self._server.llm.abort_all()


def _url(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
