"""`paged-core serve`: the model behind OpenAI's API."""

from __future__ import annotations

import logging
from contextlib import ExitStack, closing
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import click

from paged_core.cli.command import Command, Option
from paged_core.cli.options import engine_flags, engine_options, setting_option
from paged_core.cli.report import note
from paged_core.errors import ConfigError
from paged_core.server.settings import ServeSettings

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager

    from fastapi import FastAPI

    from paged_core.cluster.remote import RemoteLLM
    from paged_core.engine.aio import AsyncLLM
    from paged_core.server.backend import Backend
    from paged_core.server.state import Server

SERVER = "Server (also PAGED_SERVE_NAME in the environment, or a line below [serve] in paged.toml)"
_NEEDED = ("fastapi", "uvicorn", "httptools", "prometheus_client", "uvloop")

HELP = """Serve MODEL over HTTP, as OpenAI's API has it.

Listens on this machine only unless --host says otherwise. The line "ready" on standard output has the URL; everything
else goes to standard error. SIGTERM lets running requests finish, a second one does not.
"""


def open_llm(settings: Mapping[str, Any]) -> AsyncLLM:
    """The model, loaded, its engine running. Tests replace this function."""
    from paged_core.engine.aio import AsyncLLM

    return AsyncLLM(**settings)


def open_replicas(engine: Mapping[str, Any], settings: ServeSettings) -> AbstractContextManager[RemoteLLM]:
    """Replicas on Ray, while the block runs."""
    from paged_core.cluster.session import replicas

    return replicas(engine, settings)


def serve(parameters: Mapping[str, Any]) -> int:
    """Listen, load, serve; returns the exit code."""
    level = logging.INFO if parameters["verbose"] else logging.WARNING
    logging.getLogger("paged_core").setLevel(level)
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        names = ", ".join(missing)
        raise ConfigError(f'serving needs packages that are not here ({names}): pip install "paged-core[serve]"')
    settings = ServeSettings.load(**{name: parameters[name] for name in ServeSettings.model_fields})
    if settings.replicas and find_spec("ray") is None:
        raise ConfigError('replicas need a package that is not here (ray): pip install "paged-core[ray]"')
    from paged_core.server.app import create_app
    from paged_core.server.lifecycle import bind, close
    from paged_core.server.lifecycle import serve as run_server

    with ExitStack() as leaving:
        sock = leaving.enter_context(closing(bind(settings)))

        def load() -> FastAPI:
            engine = _engine_settings(parameters)
            llm: Backend
            if settings.replicas:
                llm = leaving.enter_context(open_replicas(engine, settings))
            else:
                llm = alone = open_llm(engine)
                leaving.callback(close, alone)
            for line in llm.engine.facts.describe():
                note(line)
            return create_app(llm, settings)

        return run_server(sock, settings, load, lambda url, server: click.echo(ready_line(url, server)))


def ready_line(url: str, server: Server) -> str:
    """What a script that starts the server waits for."""
    facts = server.facts
    plugins = " ".join(f"{kind}={name}" for kind, name in facts.plugins.items())
    return f"ready: {url} model={','.join(server.names)} kv_tokens={facts.kv_tokens} {plugins}"


def _engine_settings(parameters: Mapping[str, Any]) -> dict[str, Any]:
    flags = engine_flags(parameters)
    named = parameters["model_name"]
    if named is not None and flags.get("model", named) != named:
        raise ConfigError(f"MODEL says {named} and --model says {flags['model']}: give one of them")
    return flags if named is None else {**flags, "model": named}


def _own_options() -> list[click.Parameter]:
    return [
        click.Argument(["model_name"], metavar="[MODEL]", required=False),
        *(setting_option(name, field, SERVER) for name, field in ServeSettings.model_fields.items()),
        Option(
            ["--verbose", "-v"], section=SERVER, is_flag=True, help="Log every request and why plugins were chosen."
        ),
    ]


serve_command = Command("serve", serve, [*_own_options(), *engine_options()], HELP)
