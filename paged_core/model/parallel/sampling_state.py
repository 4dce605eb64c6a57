"""The rare part of a step's message: rows that start, with all that their sampling needs, and prompt log-probabilities.

Parameters are plain values, but logits processors are objects, and what is heavy about them is often shared: a compiled
grammar by all requests that want it, its vocabulary by all grammars. An object whose class says `travels_once` is sent
when it is first met and named by a number from then on. What cannot be restored where it arrives fails its request and
nobody else's.
"""

from __future__ import annotations

import copy
import io
import pickle
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from paged_core.api.batch import PromptRows, RowStart
from paged_core.api.logits import LogitsProcessor
from paged_core.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from paged_core.api.params import SamplingParams

KEPT_BYTES = 1 << 28
"""Of pickled shared objects that workers keep for requests to come."""


class StateWriter:
    """Knows which shared objects the workers have. Keeps them alive as long as that, so that no id is used twice."""

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self._kept_bytes = kept_bytes
        self._sent: OrderedDict[int, tuple[int, int, object]] = OrderedDict()  # id -> number, bytes, the object
        self._next = 0

    def write(self, started: Sequence[RowStart], prompt_rows: Sequence[PromptRows]) -> bytes:
        """Both as bytes; none where there is nothing."""
        if not started and not prompt_rows:
            return b""
        new: list[tuple[int, bytes]] = []
        forgotten = self._forgotten()
        rows = [self._row(start, new) for start in started]
        return pickle.dumps((forgotten, new, rows, [tuple(each) for each in prompt_rows]), protocol=5)

    def _row(self, start: RowStart, new: list[tuple[int, bytes]]) -> tuple[Any, ...]:
        params, processors = start.params, b""
        if params.logits_processors:
            processors = self._pickled(params.logits_processors, new)
            params = copy.copy(params)
            params.logits_processors = None
        return (*start._replace(params=params), processors)

    def _pickled(self, value: object, new: list[tuple[int, bytes]]) -> bytes:
        file = io.BytesIO()
        _Pickler(file, self, value, new).dump(value)
        return file.getvalue()

    def number(self, shared: object, new: list[tuple[int, bytes]]) -> int:
        """The number of a shared object; one that was not sent yet goes into `new`, behind what it consists of."""
        if id(shared) not in self._sent:
            data = self._pickled(shared, new)
            new.append((self._next, data))
            self._sent[id(shared)] = (self._next, len(data), shared)
            self._next += 1
        self._sent.move_to_end(id(shared))
        return self._sent[id(shared)][0]

    def _forgotten(self) -> list[int]:
        """Numbers of the shared objects that were not used for longest, if there are too many bytes of them."""
        total, dropped = sum(size for _, size, _ in self._sent.values()), []
        while total > self._kept_bytes:
            _, (number, size, _) = self._sent.popitem(last=False)
            dropped.append(number)
            total -= size
        return dropped


class StateReader:
    """Restores what a `StateWriter` wrote, message by message."""

    def __init__(self) -> None:
        self._shared: dict[int, object] = {}

    def read(self, data: memoryview, draws: bool) -> tuple[list[RowStart], list[PromptRows]]:
        """Rows that start, unless this rank does not sample, and prompt rows."""
        forgotten, new, rows, prompt_rows = pickle.loads(data)
        if not draws:
            return [], [PromptRows(*each) for each in prompt_rows]
        for number in forgotten:
            self._shared.pop(number, None)
        for number, pickled in new:
            self._shared[number] = self._restored(pickled)
        return [self._start(*row) for row in rows], [PromptRows(*each) for each in prompt_rows]

    def _restored(self, pickled: bytes) -> object:
        try:
            return _Unpickler(io.BytesIO(pickled), self._shared).load()
        except Exception as error:
            return LostProcessor(f"{type(error).__name__}: {error}")

    def _start(self, row: int, params: SamplingParams, *rest: Any) -> RowStart:
        *others, processors = rest
        if processors:
            restored = self._restored(processors)
            params.logits_processors = [restored] if isinstance(restored, LostProcessor) else restored  # type: ignore[assignment]
        return RowStart(row, params, *others)


def check_travels(params: SamplingParams) -> None:
    """RequestError where a logits processor of the request cannot be sent to another process."""
    for processor in params.logits_processors or ():
        kind = type(processor)
        if kind.__module__ == "__main__":
            raise RequestError(
                f"{kind.__name__} is defined in the program that was started, which worker processes do not run: move "
                "it to a module that they can import",
                "logits_processors",
            )
        try:
            StateWriter().number(processor, [])
        except Exception as error:
            raise RequestError(
                f"{kind.__name__} cannot be sent to the worker process that samples ({type(error).__name__}: {error}): "
                "give it a state that can be pickled",
                "logits_processors",
            ) from error


class _Pickler(pickle.Pickler):
    """Names shared objects by number, but not the one it was made for."""

    def __init__(self, file: io.BytesIO, writer: StateWriter, root: object, new: list[tuple[int, bytes]]) -> None:
        super().__init__(file, protocol=5)
        self._writer, self._root, self._new = writer, root, new

    def persistent_id(self, value: Any) -> int | None:
        if value is self._root or not getattr(type(value), "travels_once", False):
            return None
        return self._writer.number(value, self._new)


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, shared: dict[int, object]) -> None:
        super().__init__(file)
        self._shared = shared

    def persistent_load(self, number: int) -> object:
        value = self._shared[number]
        if isinstance(value, LostProcessor):
            raise pickle.UnpicklingError(value.reason)
        return value


class LostProcessor(LogitsProcessor):
    """Stands where something could not be restored, and fails the draw."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def apply(self, logits: Tensor) -> None:
        """Raises what the request is told."""
        raise RequestError(f"it cannot be restored in the process that samples: {self.reason}", "logits_processors")
