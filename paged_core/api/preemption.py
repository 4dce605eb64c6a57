"""Preemption: how a group leaves the pool and what that costs (paper, section 4.5).

A preemption plugin chooses a mode and prices it; it moves nothing. The ledger asks the allocator for swap pairs, the
executor moves the bytes. A swap that finds no host room degrades to recompute: nothing raises out of the step loop
because memory is short. Generated tokens always stay; recompute computes prompt and output again.

Capabilities: swap, recompute (the modes it may choose).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from paged_core.api.request import Group

Mode = Literal["swap", "recompute"]


@dataclass(frozen=True, slots=True)
class PreemptionNeed:
    """What the engine asks. Rates are estimates for pricing: bytes and tokens per second."""

    block_size: int
    block_bytes: int
    num_host_blocks: int
    swap_bytes_per_s: float = 10e9
    prefill_tokens_per_s: float = 1000.0
    required: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Eviction:
    """The chosen mode and its expected cost in seconds, leaving and coming back together."""

    mode: Mode
    cost_s: float


class Preemption(ABC):
    """Chooses how groups leave."""

    @abstractmethod
    def evict(self, group: Group, num_blocks: int, host_free: int) -> Eviction:
        """Choose for `group`, which holds `num_blocks` distinct device blocks while `host_free` host blocks are free.

        Also called to price a group that then stays (`View.eviction_cost`): it may not count on being obeyed.
        """


def num_recomputed_tokens(group: Group) -> int:
    """Computed tokens that dropping `group` throws away; a span shared by branches counts once."""
    live = set(group.live)
    return sum(max(0, seq.num_computed - (seq.divergence if seq.parent in live else 0)) for seq in live)
