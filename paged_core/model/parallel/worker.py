"""Worker: one rank of a group, which obeys messages. How it is started and reached is others' affair.

    Muster -> Report      plugins, attention, how many blocks fit
    Start  -> Ready       meet the other ranks, load this rank's weights, allocate its pools
    step   -> result      from rank 0; the others compute the same step and say nothing

A worker never allocates blocks: it mirrors the engine's tables.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from paged_core.errors import PluginLoadError
from paged_core.model.parallel.message import ANSWER, STEP, StepReader, kind_of, pack, unpack, write_result
from paged_core.model.parallel.orders import Failure, Muster, Ready, Report, Said, Start, TakeSpans, Timed

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from paged_core.api.executor import ExecutorNeed
    from paged_core.model.parallel.collective import Collective
    from paged_core.model.parallel.shard import Shard
    from paged_core.model.resident import Resident
    from paged_core.plugins import Plugins

_PARTS = ("loader", "attn", "sampler")
_BACKLOG = 128


@dataclass(slots=True)
class Place:
    """Where a worker is: the step it works on or did last, and how often it has met the others. Any thread may read.

    `meeting_s`: seconds of those meetings, waiting included.
    """

    step: int = -1
    num_meetings: int = 0
    meeting_s: float = 0.0


class Worker:
    """Rank `shard.rank`. `address`: the one of this machine at which the other ranks reach it. `threads`: to compute
    with. `say` takes messages that answer nothing (log records). `board`: a descriptor of the `Board` that all ranks
    share, if they are on one machine and compute on its processor."""

    def __init__(
        self, shard: Shard, address: str, threads: int, say: Callable[[bytes], None], board: int | None = None
    ) -> None:
        self._shard, self._address, self._threads, self._say = shard, address, threads, say
        self._board = board
        self.place = Place()
        self._store: Any = None
        self._resident: Resident | None = None
        self._reader: StepReader | None = None
        self._obeys: dict[type, Callable[[Any], object]] = {
            Muster: self._muster,
            Start: self._start,
            TakeSpans: self._spans,
        }

    def obey(self, message: bytes | bytearray) -> bytes | None:
        """The answer to a message; of a step only rank 0 has one. What goes wrong is an answer, too."""
        try:
            if kind_of(message) == STEP:
                return self._step(message)
            order = unpack(message)
            return pack(ANSWER, self._obeys[type(order)](order))
        except (Exception, SystemExit) as error:
            return pack(ANSWER, Failure.of(error))

    def _step(self, message: bytes | bytearray) -> bytes | None:
        assert self._resident is not None
        assert self._reader is not None
        plan = self._reader.read(message)
        self.place.step = plan.step
        result = self._resident.collect(self._resident.submit(plan))
        return write_result(result) if self._shard.rank == 0 else None

    def _muster(self, order: Muster) -> Report:
        for name, level in order.levels.items():
            logging.getLogger(name).setLevel(level)
        logging.getLogger("paged_core").addHandler(_Teller(self._say))
        from paged_core.plugins import bootstrap
        from paged_core.settings import Settings

        plugins = bootstrap(Settings.model_construct(**order.recipe))
        check_plugins(plugins, {getattr(order.need, part) for part in _PARTS}, order.versions)
        opens = self._shard.rank == 0 and self._shard.size > 1 and self._board is None
        port = self._listen() if opens else 0
        import torch

        if self._threads:
            torch.set_num_threads(self._threads)
        if order.need.device == "cuda":
            torch.cuda.set_device(self._shard.rank % torch.cuda.device_count())
        from paged_core.model.resident import Resident

        size = self._shard.size
        need = replace(
            order.need,
            threads=self._threads,
            kv_memory_bytes=order.need.kv_memory_bytes // size,
            host_memory_bytes=order.need.host_memory_bytes // size,
        )
        self._resident = Resident(need, plugins, self._shard)
        fits = self._resident.capacity()
        return Report(fits.num_blocks, fits.num_host_blocks, fits.block_bytes, port)

    def _listen(self) -> int:
        """Open the place where ranks meet, on a port that the system gives: nobody can take it in between."""
        listening = socket.create_server((self._address, 0), backlog=_BACKLOG)
        port = int(listening.getsockname()[1])
        self._store = _tcp_store()(
            self._address, port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach()
        )
        return port

    def _start(self, order: Start) -> Ready:
        assert self._resident is not None
        self._reader = StepReader(order.tables, draws=self._shard.rank == 0)
        collective = self._join(order) if self._shard.size > 1 else None
        self._resident.start(order.num_blocks, order.num_host_blocks, self._reader.tables, collective)
        return Ready()

    def _join(self, order: Start) -> Collective:
        if self._board is not None:
            from paged_core.model.parallel.board import BoardCollective

            return CountedCollective(BoardCollective(self._board, self._shard, order.limit_s), self.place)
        import torch

        from paged_core.model.parallel.collective import join

        store = self._store or _tcp_store()(order.host, order.port, is_master=False, wait_for_workers=False)
        assert self._resident is not None
        device = torch.device("cpu" if self._resident.accelerator is None else "cuda")
        return CountedCollective(join(store, self._shard, device, order.limit_s, self._address), self.place)

    def _spans(self, order: TakeSpans) -> Timed:
        del order
        spans = [] if self._resident is None else self._resident.spans()
        return Timed(spans, self.place.num_meetings, self.place.meeting_s)


def at_home(need: ExecutorNeed, model: str) -> ExecutorNeed:
    """The need on a machine that has its own cache folder, and the model as `model`."""
    from paged_core.settings import cache_dir

    return replace(need, model=model, cache_dir=str(cache_dir()))


def _tcp_store() -> Any:
    import torch.distributed

    return torch.distributed.TCPStore  # type: ignore[attr-defined]


class CountedCollective:
    """Counts and times meetings in `place`: of ranks that wait for each other, the one with the fewest is late."""

    def __init__(self, inner: Collective, place: Place) -> None:
        self._inner, self._place = inner, place

    @property
    def rank(self) -> int:
        """The inner one's."""
        return self._inner.rank

    @property
    def size(self) -> int:
        """The inner one's."""
        return self._inner.size

    def all_reduce(self, x: Tensor) -> Tensor:
        """Counted and timed, then passed on."""
        self._place.num_meetings += 1
        begin = time.perf_counter()
        total = self._inner.all_reduce(x)
        self._place.meeting_s += time.perf_counter() - begin
        return total

    def gather_logits(self, local: Tensor) -> Tensor | None:
        """Counted and timed, then passed on."""
        self._place.num_meetings += 1
        begin = time.perf_counter()
        logits = self._inner.gather_logits(local)
        self._place.meeting_s += time.perf_counter() - begin
        return logits


def check_plugins(plugins: Plugins, names: set[str], versions: Any) -> None:
    """Raises PluginLoadError that says which of `names` this process lacks or has in another version, and where."""
    where = f"the worker process {os.getpid()} on {socket.gethostname()}"
    for name in sorted(names):
        record = plugins.records.get(name)
        if record is None:
            reasons = [fault.reason for fault in plugins.faults if fault.name == name]
            why = f": {'; '.join(reasons)}" if reasons else ""
            raise PluginLoadError(f"{where} lacks the plugin {name}, which the engine has{why}; install it there, too")
        if record.version != versions.get(name, record.version):
            raise PluginLoadError(
                f"{where} has the plugin {name} in version {record.version}, the engine in {versions[name]}; install "
                "the same in both"
            )


class _Teller(logging.Handler):
    """Sends log records to the engine, which knows what to show."""

    def __init__(self, say: Callable[[bytes], None]) -> None:
        super().__init__()
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        self._say(pack(ANSWER, Said(record.name, record.levelno, record.getMessage())))
