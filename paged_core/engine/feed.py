"""Feed: requests reach an engine when its clock says that their time has come (an open loop)."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from paged_core.api.clock import Clock
    from paged_core.api.output import RequestOutput
    from paged_core.engine.engine import Engine

T = TypeVar("T")


def feed(
    engine: Engine, clock: Clock, coming: Iterable[tuple[float, T]], add: Callable[[T], None], until: float
) -> Iterator[list[RequestOutput]]:
    """Step until everything is answered or the clock reads `until`; yields the outputs of every step.

    `coming`: (seconds, what `add` is given to queue it), by time. They come between two steps, the earliest once its
    time has passed. With nothing to do the clock sleeps until the next one, never beyond `until`.
    """
    rest = iter(coming)
    following = next(rest, None)
    while clock.now() < until:
        while following is not None and following[0] <= clock.now():
            add(following[1])
            following = next(rest, None)
        if engine.has_unfinished:
            yield engine.step()
        elif following is None:
            return
        else:
            clock.sleep_until(min(until, following[0]))
