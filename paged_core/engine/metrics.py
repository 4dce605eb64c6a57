"""EngineStats: the engine's inside at one moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from paged_core.api.allocator import BlockStats


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Counts of groups per queue, the pool, and totals since the engine started."""

    num_running: int
    num_waiting: int  # those included whose grammar is being compiled
    num_preempted: int
    num_steps: int
    num_generated: int  # output tokens
    num_computed: int  # tokens put through the model, recomputed ones included
    blocks: BlockStats
    peak_blocks: int
    preemptions: Mapping[str, int]  # by mode
    finished: Mapping[str, int]  # by reason
