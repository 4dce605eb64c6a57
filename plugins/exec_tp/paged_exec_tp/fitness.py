"""Why ranks of this machine cannot share a model."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paged_core.api.executor import ExecutorNeed


def reasons(need: ExecutorNeed) -> list[str]:
    """Every reason against it."""
    from paged_core.model.parallel.shard import unfit

    found = []
    if os.name != "posix":
        found.append("workers are reached through sockets that only POSIX systems hand to a child process")
    found += unfit(need)
    return found + (_gpu_reasons(need.world_size) if need.device == "cuda" else [])


def _gpu_reasons(world_size: int) -> list[str]:
    import torch
    import torch.distributed

    found = []
    count = torch.cuda.device_count()
    if world_size > count:
        found.append(f"{world_size} ranks need a GPU each, and this machine shows {count}")
    if world_size > 1 and not torch.distributed.is_nccl_available():
        found.append(f"this torch {torch.__version__} was built without NCCL, which ranks on GPUs need")
    return found
