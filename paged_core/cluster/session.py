"""From `paged-core serve --replicas N` to replicas that answer, and back: Ray, the application, its end."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from paged_core.cluster.deploying import deploy
from paged_core.cluster.fleet import Fleet
from paged_core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from paged_core.cluster.remote import RemoteLLM
    from paged_core.server.settings import ServeSettings

log = logging.getLogger("paged_core.cluster")
_STORE_BYTES = 128 << 20
"""Of the object store: messages are small and never lie there."""
_LAST_WORDS_S = 10.0
_REACH_S = 5.0
_CONTROLLER = "SERVE_CONTROLLER_ACTOR"
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0"}
_ALONE = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_AUTH_MODE": "token"}
"""Ray's word for "no other machine will join": its ports are the loopback interface's then. And they want a token."""


@contextmanager
def replicas(flags: Mapping[str, Any], settings: ServeSettings) -> Iterator[RemoteLLM]:
    """The replicas in the block, all of them ready when it begins, none left after it. Joins `settings.ray_address`, or
    starts a cluster on this machine that ends with the block. Raises ConfigError, or whatever a replica raised when it
    loaded, in one line."""
    from paged_core.cluster.remote import RemoteLLM

    fleet = Fleet.plan(flags, settings)
    with _ray(fleet):
        from ray import serve

        if not log.isEnabledFor(logging.INFO):
            logging.getLogger("ray.serve").setLevel(logging.ERROR)  # what matters we say ourselves
        is_ours = not _serves()
        serve.start(proxy_location="Disabled", logging_config={"log_level": "INFO"})
        name = f"paged-core-{uuid.uuid4().hex[:8]}"
        try:
            handle = deploy(fleet, name)
            yield RemoteLLM(handle, fleet, handle.facts.remote().result())
        finally:
            _end(name, is_ours)


def _serves() -> bool:
    """Whether Ray Serve runs in this cluster."""
    from ray.util import list_named_actors

    return any(actor["name"] == _CONTROLLER for actor in list_named_actors(all_namespaces=True))


def _end(name: str, is_ours: bool) -> None:
    """Let Ray stop the replicas, which nobody uses any more, and Serve itself where it is ours and nobody else uses it:
    it has no HTTP proxies, which the next one may want. Not for ever: where Ray was stopped first, by a signal to all
    processes, nobody would answer."""
    from ray import serve

    def end() -> None:
        serve.delete(name)
        if is_ours and not serve.status().applications:
            serve.shutdown()

    ending = threading.Thread(target=end, name="paged-core-end", daemon=True)
    ending.start()
    ending.join(_LAST_WORDS_S)
    if ending.is_alive():
        log.warning("Ray has not ended the application %s in %.0f s: left", name, _LAST_WORDS_S)


def _reach(address: str) -> None:
    """ConfigError when nobody listens at HOST:PORT: Ray itself would try for minutes."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal():
        return
    try:
        socket.create_connection((host, int(port)), _REACH_S).close()
    except OSError as error:
        raise ConfigError(f"no Ray cluster answers at {address}: {error.strerror or error}") from error


@contextmanager
def _ray(fleet: Fleet) -> Iterator[None]:
    """Ray, joined or started. Signals stay whose they are."""
    address = fleet.serve.ray_address
    for name, value in (_ENVIRONMENT if address else {**_ENVIRONMENT, **_ALONE}).items():
        os.environ.setdefault(name, value)
    import ray

    how: dict[str, Any] = {"address": address}
    if not address:
        how = {
            "address": "local",
            "num_cpus": max(os.cpu_count() or 1, int(fleet.cpus * fleet.most + 0.99)),
            "object_store_memory": _STORE_BYTES,
            "include_dashboard": False,
        }
    else:
        _reach(address)
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    verbose = log.isEnabledFor(logging.INFO)
    try:
        ray.init(**how, log_to_driver=verbose, logging_level=logging.INFO if verbose else logging.WARNING)
    except ConnectionError as error:
        raise ConfigError(f"no Ray cluster answers at {address}: {str(error).partition(chr(10))[0]}") from error
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    try:
        yield
    finally:
        ray.shutdown()
