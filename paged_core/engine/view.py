"""LedgerView: the ledger's books as a scheduler sees them during one `decide`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paged_core.api.scheduler import View

if TYPE_CHECKING:
    from collections.abc import Callable

    from paged_core.api.allocator import Scratch
    from paged_core.api.request import Group
    from paged_core.engine.queues import Queues


class LedgerView(View):
    """One step's view. Holds no copies of the queues: valid until the ledger applies the decision."""

    __slots__ = (
        "_price",
        "max_num_seqs",
        "now",
        "num_decode_tokens",
        "num_free_seqs",
        "preempted",
        "prefilling",
        "running",
        "scratch",
        "step",
        "token_budget",
        "waiting",
    )

    def __init__(
        self, queues: Queues, scratch: Scratch, limits: tuple[int, int], moment: tuple[float, int], price: Price
    ) -> None:
        self.now, self.step = moment
        self.token_budget, self.max_num_seqs = limits
        self.scratch = scratch
        self.running = queues.running
        self.preempted = queues.preempted
        self.prefilling = queues.prefilling.values()
        self.num_decode_tokens = len(queues.decode_rows)
        self.num_free_seqs = self.max_num_seqs - queues.num_reserved
        self.waiting = queues.waiting.values() if queues.num_free_rows >= self.num_free_seqs else ()
        self._price = price

    def eviction_cost(self, group: Group) -> float:
        """Seconds the preemption plugin expects leaving and coming back to cost."""
        return self._price(group)


if TYPE_CHECKING:
    Price = Callable[[Group], float]
