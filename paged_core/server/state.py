"""Server: everything the routes share, built once by `create_app` and found on `app.state.server`."""

from __future__ import annotations

import hashlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Depends, Request

from paged_core.server.errors import ApiError
from paged_core.server.limits import Admission
from paged_core.server.settings import ServeSettings
from paged_core.server.text_threads import TextThreads

if TYPE_CHECKING:
    from collections.abc import Callable

    from paged_core.api.loader import Tokenizer
    from paged_core.engine.config import EngineConfig
    from paged_core.server.backend import Backend
    from paged_core.server.tools.dialect import Dialect


@dataclass(slots=True)
class Phase:
    """Where the server is in its life. `draining`: no new work."""

    draining: bool = False


@dataclass(frozen=True, slots=True)
class Server:
    """Read-only. `admission` counts who is in the house, `phase` says whether more may come, `dialect` how
    the model is told of tools."""

    llm: Backend
    settings: ServeSettings
    names: tuple[str, ...]
    admission: Admission
    dialect: Dialect
    phase: Phase = field(default_factory=Phase)
    started: int = field(default_factory=lambda: int(time.time()))
    texts: TextThreads = field(default_factory=TextThreads)

    @property
    def facts(self) -> EngineConfig:
        """What the engine runs with."""
        return self.llm.engine.facts

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer, safe to use from any thread."""
        return self.llm.engine.tokenizer

    async def in_thread(self, request: Request, work: Callable[..., Any], *arguments: Any) -> Any:
        """Run text work of a request whose body has been read off the event loop."""
        return await self.texts.run(len(await request.body()), work, *arguments)

    def close(self) -> None:
        """End the text threads."""
        self.texts.close()

    def check_model(self, name: str | None) -> str:
        """The name to answer under. ApiError 404 for a model that is not served here."""
        if name is None:
            return self.names[0]
        if name not in self.names:
            message = f"the model {name[:200]!r} does not exist; this server has {', '.join(self.names)}"
            raise ApiError(404, message, param="model", code="model_not_found")
        return name

    def salt(self, tenant: str | None, asked: str | None) -> str | None:
        """The prefix-cache salt of a request. With isolate_keys the operator's part comes first: what a caller adds
        can split the cache of its key further, and never reach another's."""
        if not self.settings.isolate_keys or tenant is None:
            return asked
        return hashlib.sha256(f"{tenant}\n{asked or ''}".encode()).hexdigest()


def the_server(request: Request) -> Server:
    """The dependency of every route."""
    server: Server = request.app.state.server
    return server


TheServer = Annotated[Server, Depends(the_server)]


async def admitted(server: TheServer) -> AsyncIterator[None]:
    """Dependency of the routes that generate: in the house until the last byte of the answer has been sent."""
    if not server.llm.is_running:
        raise ApiError(503, "the engine has stopped; the server's log says why", code="engine_dead")
    with server.admission.enter(1):
        yield
