"""Ingress: the OpenAI app as a deployment of Ray Serve, in front of the engines' deployment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paged_core.cluster.fleet import Fleet
from paged_core.cluster.remote import RemoteLLM
from paged_core.server.app import create_app
from paged_core.server.settings import ServeSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastapi import FastAPI
    from ray.serve.handle import DeploymentHandle


class Ingress:
    """Answers HTTP requests that Ray's proxies receive. Several may run; each has a router of its own."""

    async def __init__(  # type: ignore[misc]  # Ray awaits it
        self, engines: DeploymentHandle[Any], flags: Mapping[str, Any], serve: Mapping[str, Any]
    ) -> None:
        """Waits for the first engine."""
        fleet = Fleet.plan(flags, ServeSettings.load(**serve))
        self._app = create_app(RemoteLLM(engines, fleet, await engines.facts.remote()), fleet.serve)

    def __serve_build_asgi_app__(self) -> FastAPI:
        """Asked by Ray, once."""
        return self._app
