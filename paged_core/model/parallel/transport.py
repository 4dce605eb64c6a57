"""Transport: how the workers of a group are started and reached. An executor plugin brings one."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from paged_core.model.parallel.worker import Place


class Arrival(NamedTuple):
    """A message of `rank`; None: its process is gone, and nothing will come of it any more."""

    rank: int
    message: bytes | None


class Transport(Protocol):
    """Workers 0 .. size - 1, in processes that are starting or run. Messages of one worker keep their order."""

    @property
    def size(self) -> int:
        """Ranks."""
        ...

    @property
    def host(self) -> str:
        """The address at which the other ranks reach rank 0."""
        ...

    def post(self, message: bytes, limit_s: float) -> None:
        """Send the same bytes to every rank. A rank that is gone is found by `wait`.

        Raises TimeoutError when one has not taken them after `limit_s`.
        """
        ...

    def wait(self, limit_s: float) -> list[Arrival]:
        """What came in, or [] after `limit_s`. Every rank's end is told once."""
        ...

    def name(self, rank: int) -> str:
        """The rank and where it runs, for people: "rank 1 of 2 (process 1234)"."""
        ...

    def end(self, rank: int) -> str:
        """How a rank that is gone ended, as the rest of a sentence: "was killed by SIGKILL"."""
        ...

    def places(self, limit_s: float) -> Mapping[int, Place]:
        """Where each rank is, of those that answer within `limit_s`; one that is stuck does not."""
        ...

    def processes(self) -> tuple[int, ...]:
        """Process ids of workers of this machine."""
        ...

    def close(self, grace_s: float) -> None:
        """End all workers: gently for `grace_s`, then not. Idempotent; afterwards none is left."""
        ...
