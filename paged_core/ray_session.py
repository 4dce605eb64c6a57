"""Ray, joined or begun on this machine, for the executor of its actors and for the server's replicas.

Nothing leaves the machine unasked: usage statistics are off, and a cluster that is begun here listens on the loopback
interface only. Ray reads these wishes when it is imported: where the program has done so before, its own hold.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import signal
import socket
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from paged_core.errors import ConfigError
from paged_core.settings import prefer_in_environment

if TYPE_CHECKING:
    from collections.abc import Iterator

_STORE_BYTES = 128 << 20
"""Of the object store: messages are small and hardly ever lie there."""
RANK = "paged_core_rank"
"""A resource without limit of a cluster that is begun here: its actors share the processors as processes do."""
_REACH_S = 5.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0"}
_ALONE = {"RAY_AUTH_MODE": "token", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""The latter is Ray's word for "no other machine will join": every port of Ray's is then the loopback interface's."""


def prepare(address: str) -> None:
    """Set what Ray reads when it is imported; whoever imports it at the top of a module calls this before."""
    if "ray" not in sys.modules:
        prefer_in_environment(_ENVIRONMENT if address else {**_ENVIRONMENT, **_ALONE})


def enter(address: str, num_cpus: float, verbose: bool, namespace: str | None = None) -> bool:
    """Make Ray ready in this process, and say whether it must be left again: not where it was ready before.

    `address` of a running cluster's head, `auto` for the one that this machine belongs to; "" begins one here
    with at least `num_cpus` logical processors. `verbose`: what Ray's processes print is shown. `namespace`: of the
    actors of this process; Ray's own choice if None. Signal handlers stay whose they are. Raises ConfigError when no
    cluster answers, or this process is in another one: Ray can be in one at a time.
    """
    prepare(address)
    import ray
    from ray.exceptions import AuthenticationError

    if ray.is_initialized():
        _stay(address, ray.get_runtime_context().gcs_address)
        return False
    how: dict[str, Any] = {"address": address, "namespace": namespace}
    if not address:
        how = {
            **how,
            "address": "local",
            "num_cpus": max(os.cpu_count() or 1, int(num_cpus + 0.99)),
            "resources": {RANK: 1e6},
            "object_store_memory": _STORE_BYTES,
            "include_dashboard": False,
        }
    else:
        _reach(address)
    with _signals_kept():
        try:
            ray.init(**how, log_to_driver=verbose, logging_level=logging.INFO if verbose else logging.WARNING)
        except (ConnectionError, ValueError, AuthenticationError) as error:
            where = f"at {address}" if address else "on this machine"
            raise ConfigError(f"no Ray cluster answers {where}: {str(error).partition(chr(10))[0]}") from error
    return True


def _reach(address: str) -> None:
    """ConfigError when nobody listens at HOST:PORT: Ray itself would try for minutes."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal():
        return
    try:
        socket.create_connection((host, int(port)), _REACH_S).close()
    except OSError as error:
        raise ConfigError(f"no Ray cluster answers at {address}: {error.strerror or error}") from error


def _stay(address: str, joined: str) -> None:
    """ConfigError when `address` is not the head of the cluster that this process has `joined`."""
    if address in ("", "auto"):
        return
    host, _, port = address.rpartition(":")
    joined_host, _, joined_port = joined.rpartition(":")
    if port == joined_port and _may_be_one(host, joined_host):
        return
    why = "a process can be in one cluster at a time"
    raise ConfigError(f"this process is in the Ray cluster at {joined} and cannot join {address}: {why}")


def _may_be_one(host: str, other: str) -> bool:
    """Whether two names of hosts may be the same machine's: a loopback address may be any machine's, here."""
    if host == other:
        return True
    try:
        addresses = [ipaddress.ip_address(socket.gethostbyname(name)) for name in (host, other)]
    except OSError:
        return False
    return addresses[0] == addresses[1] or any(each.is_loopback for each in addresses)


def leave() -> None:
    """Leave the cluster, and end it if this process began it. Idempotent."""
    import ray

    ray.shutdown()


@contextmanager
def entered(address: str, num_cpus: float, verbose: bool) -> Iterator[None]:
    """`enter`, and `leave` at the end where it must be left."""
    ours = enter(address, num_cpus, verbose)
    try:
        yield
    finally:
        if ours:
            leave()


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Ray takes over SIGTERM when it begins; only the main thread may set handlers, and only there Ray does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
