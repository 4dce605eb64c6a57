"""What an engine orders its workers to do besides steps, and what they answer. One answer from each rank an order."""

from __future__ import annotations

import mmap
import traceback
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from paged_core.errors import EngineDeadError, PagedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from paged_core.api.executor import ExecutorNeed, Span

_NO_MEMORY = ("can't allocate memory", "not enough memory", "std::bad_alloc", "out of memory")
_ROOM = 1 << 24


@dataclass(frozen=True, slots=True)
class Muster:
    """Make the plugins ready and say what fits; loads no weights. Answered by `Report`.

    `need` is the whole group's, its memory too. `recipe` makes the engine's plugin registry again
    (`PluginRegistry.recipe`); `versions` are those of the plugins that the worker will use, by name. `levels` of
    loggers: what the engine would show.
    """

    need: ExecutorNeed
    recipe: Mapping[str, Any]
    versions: Mapping[str, str]
    levels: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Report:
    """Blocks that fit into this rank's share of the memory, and its bytes of one block over all layers.

    `port`: where rank 0 waits for the others; 0 from them, and where ranks share a board.
    """

    num_blocks: int
    num_host_blocks: int
    block_bytes: int
    port: int = 0


@dataclass(frozen=True, slots=True)
class Start:
    """Meet the others at `host`:`port`, load the weights, allocate both pools. Answered by `Ready`."""

    num_blocks: int
    num_host_blocks: int
    tables: tuple[int, int]
    host: str
    port: int
    limit_s: float


@dataclass(frozen=True, slots=True)
class Ready:
    """The rank is ready for steps."""


@dataclass(frozen=True, slots=True)
class TakeSpans:
    """Answered by `Timed`."""


@dataclass(frozen=True, slots=True)
class Timed:
    """What was timed since the last call, and the rank's meetings since it started: how many, and their seconds."""

    spans: list[Span]
    num_meetings: int
    meeting_s: float


@dataclass(frozen=True, slots=True)
class Said:
    """A log record of the worker; no answer to anything."""

    logger: str
    level: int
    text: str


@dataclass(frozen=True, slots=True)
class Failure:
    """The order or step failed.

    `kind` and `text` of the exception; `is_paged`: it is one of `paged_core.errors`; `is_echo`: it only says that
    another rank is gone; `no_memory`: memory ran out here.
    """

    kind: str
    text: str
    trace: str
    is_paged: bool = False
    is_echo: bool = False
    no_memory: bool = False

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """What to tell of `error`."""
        lines = str(error).strip().splitlines() or [""]
        paged, no_memory = isinstance(error, PagedError), any(map(_ran_out, _chain(error)))
        no_memory = no_memory or (isinstance(error, RuntimeError) and not _has_room())
        return cls(
            kind=type(error).__name__,
            text=str(error) if paged else lines[0],
            trace="".join(traceback.format_exception(error)),
            is_paged=paged,
            is_echo=isinstance(error, EngineDeadError) and not no_memory,
            no_memory=no_memory,
        )


def _has_room() -> bool:
    """Whether the system still gives memory: libraries word it in many ways that it does not (oneDNN: "could not create
    a primitive")."""
    try:
        mmap.mmap(-1, _ROOM).close()
    except OSError:
        return False
    return True


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _ran_out(error: BaseException) -> bool:
    text = str(error).lower()
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(phrase in text for phrase in _NO_MEMORY)
    )
