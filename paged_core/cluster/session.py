"""From `paged-core serve --replicas N` to replicas that answer, and back: Ray, the application, its end."""

from __future__ import annotations

import logging
import threading
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from paged_core.cluster.deploying import deploy
from paged_core.cluster.fleet import Fleet
from paged_core.ray_session import entered

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from paged_core.cluster.remote import RemoteLLM
    from paged_core.server.settings import ServeSettings

log = logging.getLogger("paged_core.cluster")
_LAST_WORDS_S = 10.0
_CONTROLLER = "SERVE_CONTROLLER_ACTOR"


@contextmanager
def replicas(flags: Mapping[str, Any], settings: ServeSettings) -> Iterator[RemoteLLM]:
    """The replicas in the block, all of them ready when it begins, none left after it. Joins `settings.ray_address`, or
    starts a cluster on this machine that ends with the block. Raises ConfigError, or whatever a replica raised when it
    loaded, in one line."""
    from paged_core.cluster.remote import RemoteLLM

    fleet = Fleet.plan(flags, settings)
    verbose = log.isEnabledFor(logging.INFO)
    with entered(settings.ray_address or "", fleet.cpus * fleet.most, verbose):
        from ray import serve

        if not verbose:
            logging.getLogger("ray.serve").setLevel(logging.ERROR)  # what matters we say ourselves
        stays = bool(settings.ray_address) and not _serves()  # Serve would, without the HTTP proxies others may want
        serve.start(proxy_location="Disabled", logging_config={"log_level": "INFO"})
        name = f"paged-core-{uuid.uuid4().hex[:8]}"
        try:
            handle = deploy(fleet, name)
            yield RemoteLLM(handle, fleet, handle.facts.remote().result())
        finally:
            _end(name, stays)


def _serves() -> bool:
    """Whether Ray Serve runs in this cluster."""
    from ray.util import list_named_actors

    return any(actor["name"] == _CONTROLLER for actor in list_named_actors(all_namespaces=True))


def _end(name: str, stays: bool) -> None:
    """Let Ray stop the replicas, which nobody uses any more, and Serve itself if it stays and nobody else uses it. Not
    for ever: where Ray was stopped first, by a signal to all processes, nobody would answer."""
    from ray import serve

    def end() -> None:
        serve.delete(name)
        if stays and not serve.status().applications:
            serve.shutdown()

    ending = threading.Thread(target=end, name="paged-core-end", daemon=True)
    ending.start()
    ending.join(_LAST_WORDS_S)
    if ending.is_alive():
        log.warning("Ray has not ended the application %s in %.0f s: left", name, _LAST_WORDS_S)
