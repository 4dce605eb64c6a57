"""Actors: a group of ranks in a Ray cluster, each an actor in a bundle of one placement group."""

from __future__ import annotations

import os
import signal
import socket
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from paged_core.errors import ConfigError, PluginLoadError
from paged_core.model.parallel.transport import Arrival
from paged_core.ray_session import RANK
from paged_exec_ray import session
from paged_exec_ray.rank import Rank, Where

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from paged_core.api.executor import ExecutorNeed
    from paged_core.model.parallel.worker import Place
    from paged_exec_ray import RaySettings

_INLINE_BYTES = 64 << 10
"""Ray sends larger arguments through the object store; then once for all ranks."""
_KILL_S = 5.0
_THREADS = {"work": 1, "pulse": 1}


def launch(need: ExecutorNeed, settings: RaySettings) -> Actors:
    """Enter Ray and start the ranks. Raises ConfigError where the cluster has no room for them, PluginLoadError where
    one cannot start."""
    size, on_gpu = need.world_size, need.device == "cuda"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    cpus = settings.cpus_per_rank or (1.0 if on_gpu else float(max(1, (need.threads or cores) // size)))
    threads = need.threads if on_gpu else max(1, int(cpus))
    session.enter(settings.address)
    takes = {RANK: 1.0} if RANK in ray.cluster_resources() else {"CPU": cpus}
    bundle = {**takes, **({"GPU": 1.0} if on_gpu else {})}
    group = _placed([bundle] * size, settings)
    kind: Any = ray.remote(
        num_cpus=takes.get("CPU", 0), num_gpus=int(on_gpu), max_restarts=0, concurrency_groups=_THREADS
    )(Rank)
    ranks: list[Any] = []
    try:
        for rank in range(size):
            strategy = PlacementGroupSchedulingStrategy(group, rank)
            ranks.append(kind.options(scheduling_strategy=strategy).remote(rank, size, threads, settings.model_paths))
        where: list[Where] = ray.get([_aside(rank.where) for rank in ranks], timeout=settings.start_timeout_s)
    except BaseException as error:  # Ctrl-C as well: a cluster that was there before would keep the room taken
        _end_all(ranks, group)
        if not isinstance(error, RayError | TimeoutError):
            raise
        late = isinstance(error, GetTimeoutError)
        why = f"did not come up in {settings.start_timeout_s:g} s" if late else f"cannot start: {_reason(error)}"
        raise PluginLoadError(f"a rank of exec_ray {why}; every node needs the same paged-core") from error
    return Actors(ranks, where, group)


def _placed(bundles: list[dict[str, float]], settings: RaySettings) -> PlacementGroup:
    """Room for the bundles, held until it is removed."""
    group = placement_group(bundles, strategy=settings.strategy)
    is_placed = False
    try:
        is_placed = group.wait(settings.place_timeout_s)
    finally:
        if not is_placed:
            remove_placement_group(group)
    if not is_placed:
        free = {name: ray.available_resources().get(name, 0.0) for name in bundles[0]}
        raise ConfigError(
            f"the Ray cluster has no room for {len(bundles)} ranks of {_resources(bundles[0])} ({settings.strategy}) "
            f"after {settings.place_timeout_s:g} s: free are {_resources(free)} on {_num_nodes()} nodes; start more "
            "(ray start --address=...), or lower --tensor-parallel-size or cpus_per_rank of exec_ray"
        )
    return group


def _resources(amounts: Mapping[str, float]) -> str:
    return " and ".join(f"{amount:g} {name}" for name, amount in amounts.items())


def _num_nodes() -> int:
    return sum(bool(node["Alive"]) for node in ray.nodes())


class Actors:
    """`Transport` over calls of actors. A rank is given a message once all have done the one before: Ray keeps order
    among small arguments only."""

    def __init__(self, ranks: Sequence[Any], where: Sequence[Where], group: PlacementGroup) -> None:
        self.size = len(ranks)
        self.host = where[0].address
        self._ranks, self._where, self._group = ranks, where, group
        self._calls: dict[ray.ObjectRef[list[bytes]], int] = {}
        self._arrived: list[Arrival] = []
        self._gone: dict[int, str] = {}
        self._is_closed = False
        session.USERS.add(self)

    def post(self, message: bytes, limit_s: float) -> None:
        """By a call of each actor."""
        if self._calls:
            self._harvest(len(self._calls), limit_s)
        if self._calls:
            raise TimeoutError
        argument = message if len(message) <= _INLINE_BYTES else ray.put(message)
        self._calls = {
            actor.obey.options(concurrency_group="work").remote(argument): rank
            for rank, actor in enumerate(self._ranks)
            if rank not in self._gone
        }

    def wait(self, limit_s: float) -> list[Arrival]:
        """What the calls that ended have returned."""
        deadline = time.monotonic() + limit_s
        while not self._arrived and self._calls and (left := deadline - time.monotonic()) > 0:
            self._harvest(1, left)
        if not self._arrived and not self._calls:
            time.sleep(max(0.0, deadline - time.monotonic()))  # nothing can come: who asks waits for what does not
        arrived, self._arrived = self._arrived, []
        return arrived

    def _harvest(self, count: int, limit_s: float) -> None:
        """Take the results of the calls that end until `count` have, or `limit_s` is over."""
        ray.wait(list(self._calls), num_returns=count, timeout=limit_s)
        ended, _ = ray.wait(list(self._calls), num_returns=len(self._calls), timeout=0)
        for call in ended:
            rank = self._calls.pop(call)
            try:
                self._arrived += [Arrival(rank, message) for message in ray.get(call)]
            except RayError as error:
                self._gone[rank] = _reason(error)
                self._arrived.append(Arrival(rank, None))

    def name(self, rank: int) -> str:
        """With host and process."""
        return f"rank {rank} of {self.size} (process {self._where[rank].process} on {self._where[rank].host})"

    def end(self, rank: int) -> str:
        """As Ray tells it."""
        return f"was lost: {self._gone[rank]}"

    def places(self, limit_s: float) -> dict[int, Place]:
        """Of those whose other thread answers."""
        calls = {_aside(actor.place): rank for rank, actor in enumerate(self._ranks) if rank not in self._gone}
        ended, _ = ray.wait(list(calls), num_returns=len(calls), timeout=limit_s) if calls else ([], [])
        found: dict[int, Place] = {}
        for call in ended:
            with suppress(RayError):  # gone since: who is not in the answer is told as such
                found[calls[call]] = ray.get(call)
        return found

    def processes(self) -> tuple[int, ...]:
        """Those of this machine that have not ended."""
        return tuple(process for process in self._local() if _runs(process))

    def close(self, grace_s: float) -> None:
        """Actors that wait for work leave by themselves when they are told; the others are killed."""
        session.USERS.discard(self)
        if self._is_closed or not ray.is_initialized():
            return
        self._is_closed = True
        try:
            if grace_s and not self._gone:
                ending = [actor.__ray_terminate__.remote() for actor in self._ranks]
                ray.wait(ending, num_returns=len(ending), timeout=grace_s)
        finally:
            _end_all(self._ranks, self._group)
        deadline = time.monotonic() + _KILL_S
        while (left := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.02)
        for process in left:  # a stopped process hears nobody but the kernel
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def _local(self) -> list[int]:
        here = socket.gethostname()
        return [where.process for where in self._where if where.host == here]


def _aside(method: Any) -> Any:
    """Call it in the thread that never works."""
    return method.options(concurrency_group="pulse").remote()


def _end_all(ranks: Sequence[Any], group: PlacementGroup) -> None:
    try:
        for actor in ranks:
            ray.kill(actor)
    finally:
        remove_placement_group(group)


def _runs(process: int) -> bool:
    """Whether a process of this machine is there and has not ended: one that Ray has not reaped yet has."""
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] != b"Z"
    except (FileNotFoundError, ProcessLookupError):  # gone before the file was opened, or before it was read
        return False


def _reason(error: BaseException) -> str:
    """The line of Ray's long message that tells the cause."""
    text = str(error)
    for mark in ("Worker exit detail: ", "The actor is dead because "):
        if isinstance(error, RayActorError) and mark in text:
            text = text.rpartition(mark)[2]
            break
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [type(error).__name__]
    return lines[0] if isinstance(error, RayActorError) and "Traceback" not in text else lines[-1]
