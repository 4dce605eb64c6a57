"""Trace: spans of time by name, written as a Chrome trace (chrome://tracing, https://ui.perfetto.dev).

Off, it costs nothing: what is to be timed is wrapped when the program starts, and only then.
"""

from __future__ import annotations

import json
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from paged_core.api.executor import Span

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

MOST_SPANS = 1_000_000
_MOST_ROWS = MOST_SPANS // 250  # of a few hundred spans each


class Trace:
    """Spans of one place (engine, executor), the latest million of them."""

    def __init__(self) -> None:
        self._spans: deque[Span] = deque(maxlen=MOST_SPANS)
        self._rows: deque[tuple[Sequence[str], NDArray[np.int64]]] = deque(maxlen=_MOST_ROWS)

    def timed(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        """`function`, every call of which is a span."""
        now, append = time.perf_counter_ns, self._spans.append

        def call(*args: Any, **keywords: Any) -> Any:
            begin = now()
            try:
                return function(*args, **keywords)
            finally:
                append(Span(name, begin, now() - begin))

        return call

    def watch(self, owner: Any, names: Mapping[str, str]) -> None:
        """Time calls of attributes of `owner`: attribute -> span name. An attribute that is None stays so."""
        for attribute, name in names.items():
            if (function := getattr(owner, attribute)) is not None:
                setattr(owner, attribute, self.timed(function, name))

    def add(self, names: Sequence[str], begins: NDArray[np.int64]) -> None:
        """Spans that follow each other: name i from begins[i] to begins[i + 1], in nanoseconds of `perf_counter_ns`.

        They become objects when they are taken: a step of hundreds would pay a few percent for it.
        """
        self._rows.append((names, begins))

    def take(self) -> list[Span]:
        """The spans since the last call."""
        spans = list(self._spans)
        for names, begins in self._rows:
            times = begins.tolist()
            spans += [Span(name, t, end - t) for name, t, end in zip(names, times[:-1], times[1:], strict=True)]
        self._spans.clear()
        self._rows.clear()
        return spans

    def __len__(self) -> int:
        """Spans held."""
        return len(self._spans) + sum(len(names) for names, _ in self._rows)


def write_chrome_trace(path: Path, places: Mapping[str, list[Span]]) -> None:
    """Write the spans of each place as one track. Times are microseconds from the first span on."""
    start = min((span.begin for spans in places.values() for span in spans), default=0)
    events: list[dict[str, Any]] = []
    for track, (place, spans) in enumerate(places.items(), start=1):
        events.append({"ph": "M", "pid": 1, "tid": track, "name": "thread_name", "args": {"name": place}})
        events += [
            {
                "ph": "X",
                "pid": 1,
                "tid": track,
                "name": span.name,
                "ts": (span.begin - start) / 1e3,
                "dur": span.duration / 1e3,
            }
            for span in spans
        ]
    path.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}), encoding="utf-8")
