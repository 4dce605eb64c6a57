"""`bench sharing --part waste`: memory that paging wastes, which is the empty slots of last blocks, by block size."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from paged_core.bench.report import Column, Table, verdict
from paged_core.bench.saving import service_saving
from paged_core.bench.sharing import samples, services

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from paged_core.bench.sharing import Size
    from paged_core.workload.lengths import Lengths

BLOCK_SIZES = (8, 16, 32)
PAPER = 0.04
"""The paper: under 4 % of memory is wasted, with blocks of 16."""


def waste_table(measured: Sequence[Lengths], size: Size, say: Callable[[str], None]) -> Table:
    """Empty slots over filled ones under the paper's lengths, rates and pool, and under `measured` lengths."""
    columns = (
        Column("lengths", "lengths"),
        Column("prompt_tokens", "prompt", ".0f"),
        Column("output_tokens", "output", ".0f"),
        Column("block_size", "block size"),
        Column("requests", "running", ".1f"),
        Column("waste", "wasted", ".1%"),
        Column("paper", "paper", ".0%"),
        Column("verdict", "verdict"),
    )
    table = Table("Memory wasted in last blocks (no model, OPT-13B's pool and step times)", columns)
    for service in services(measured, size):
        for block_size in BLOCK_SIZES:
            say(f"{service.lengths.name}, blocks of {block_size}")
            random = np.random.default_rng(size.seed)
            found = service_saving(service, samples(1), random, block_size=block_size)
            paper = PAPER if block_size == 16 else None
            told = None if paper is None else verdict(-found.waste, -paper)
            means = service.lengths.means
            table.add(service.lengths.name, *means, block_size, found.mean_requests, found.waste, paper, told)
    table.notes += [
        "Wasted: slots of blocks in use that hold no token, over those that do, summed over steps; one answer a",
        f"prompt, no sharing. The pool is that of 983 blocks of 16 whatever the block size; {size.minutes:g} virtual",
        "minutes.",
    ]
    return table
