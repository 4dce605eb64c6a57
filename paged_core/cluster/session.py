"""From `paged-core serve --replicas N` to replicas that answer, and back: Ray, the application, its end."""

from __future__ import annotations

import logging
import os
import signal
import threading
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from paged_core.cluster.fleet import ENGINE, Fleet
from paged_core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from paged_core.cluster.remote import RemoteLLM
    from paged_core.server.settings import ServeSettings

log = logging.getLogger("paged_core.cluster")
news = logging.getLogger("paged_core.news")
_STORE_BYTES = 128 << 20
"""Of the object store: messages are small and never lie there."""
_LAST_WORDS_S = 5.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token"}
_ALONE = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""Ray's word for "no other machine will join": every port of Ray's is then the loopback interface's."""


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
            logging.getLogger("ray.serve").setLevel(logging.WARNING)
        serve.start(proxy_location="Disabled", logging_config={"log_level": "INFO"})
        name = f"paged-core-{uuid.uuid4().hex[:8]}"
        try:
            handle = _deploy(fleet, name)
            yield RemoteLLM(handle, fleet, handle.facts.remote().result())
        finally:
            _delete(name, settings.drain)


def _deploy(fleet: Fleet, name: str) -> Any:
    from ray import serve

    number = f"{fleet.least}" if fleet.most == fleet.least else f"{fleet.least} to {fleet.most}"
    news.info("starting %s replicas of %s on Ray", number, fleet.name)
    try:
        return serve.run(fleet.engines(), name=name, route_prefix=None)
    except RuntimeError as error:
        status = serve.status().applications.get(name)
        told = status.deployments[ENGINE].message if status and ENGINE in status.deployments else str(error)
        raise ConfigError(f"the replicas cannot start: {reason_in(told)}") from error


def _delete(name: str, drain_s: float) -> None:
    """Let Ray drain and stop the replicas. Not for ever: where Ray itself was stopped first nobody would answer."""
    from ray import serve

    deleting = threading.Thread(target=serve.delete, args=(name,), name="paged-core-end", daemon=True)
    deleting.start()
    deleting.join(drain_s + _LAST_WORDS_S)
    if deleting.is_alive():
        log.warning("Ray has not ended the application %s in %.0f s: left", name, drain_s + _LAST_WORDS_S)


def reason_in(message: str) -> str:
    """The line of Ray's report on a replica that says what went wrong there: the exception, without its traceback."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    raised = [line for line in lines if line.partition(":")[0].endswith(("Error", "Exception"))]
    line = (raised or lines or ["no reason is known"])[-1]
    kind, colon, rest = line.partition(": ")
    return rest if colon and "." in kind and " " not in kind else line


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
