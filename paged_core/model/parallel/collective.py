"""Collective: what the ranks of a tensor-parallel group do together in a step, and how torch.distributed does it."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

import torch

from paged_core.errors import ConfigError, EngineDeadError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor
    from torch._C._distributed_c10d import Store

    from paged_core.model.parallel.shard import Shard

_NARROW = (torch.bfloat16, torch.float16)


class Collective(Protocol):
    """One rank's end of the group. All ranks call the same in the same order with tensors of the same shape and type.

    Whoever waits for a rank that is gone, or that does not come within the group's time limit, gets EngineDeadError.
    """

    @property
    def rank(self) -> int:
        """From 0."""
        ...

    @property
    def size(self) -> int:
        """Ranks in the group."""
        ...

    def all_reduce(self, x: Tensor) -> Tensor:
        """Add up every rank's `x`, in place; returns it. All ranks get the same bits."""
        ...

    def gather_logits(self, local: Tensor) -> Tensor | None:
        """Every rank's `local` [rows, tokens] side by side in the order of ranks, on rank 0; None on the others."""
        ...


class TorchCollective:
    """Over a process group of torch.distributed, of its own or handed in: never the process's default one.

    A CPU adds up in float32 whatever the type, and rounds once: gloo would round bfloat16 at every rank, which makes
    sums of three ranks half as exact again (errors up to 0.023 instead of 0.015 on normal values). NCCL gets the
    tensors as they are.
    """

    def __init__(self, group: Any) -> None:
        """`group`: a ProcessGroup, or one of its backends (`join`)."""
        self._group = group
        self._rank, self._size = int(group.rank()), int(group.size())

    @property
    def rank(self) -> int:
        """From 0."""
        return self._rank

    @property
    def size(self) -> int:
        """Ranks in the group."""
        return self._size

    def all_reduce(self, x: Tensor) -> Tensor:
        """Add up every rank's `x`, in place; returns it."""
        with _told_of_lost_ranks(self._rank, self._size):
            if x.dtype in _NARROW and x.device.type == "cpu":
                wide = x.float()
                self._group.allreduce([wide]).wait()
                return x.copy_(wide)
            self._group.allreduce([x]).wait()
            return x

    def gather_logits(self, local: Tensor) -> Tensor | None:
        """Every rank's `local` [rows, tokens] side by side on rank 0; None on the others."""
        from torch.distributed import GatherOptions

        parts = [torch.empty_like(local) for _ in range(self._size)] if self._rank == 0 else []
        options = GatherOptions()
        options.rootRank = 0
        with _told_of_lost_ranks(self._rank, self._size):
            self._group.gather([parts] if parts else [], [local.contiguous()], options).wait()
        return torch.cat(parts, dim=1) if parts else None


def join(store: Store, shard: Shard, device: torch.device, timeout_s: float) -> TorchCollective:
    """Meet the other ranks at `store` and form a group with them: gloo for a CPU, NCCL for a GPU.

    Nobody waits longer than `timeout_s`, neither here nor later. Raises EngineDeadError when the others do not come,
    ConfigError where this torch was built without what `device` needs.
    """
    import torch.distributed as dist

    limit = timedelta(seconds=timeout_s)
    with _told_of_lost_ranks(shard.rank, shard.size):
        if device.type == "cpu":
            return TorchCollective(dist.ProcessGroupGloo(store, shard.rank, shard.size, limit))
        if not dist.is_nccl_available():
            raise ConfigError(f"this torch {torch.__version__} was built without NCCL, which ranks on GPUs need")
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = limit
        return TorchCollective(dist.ProcessGroupNCCL(store, shard.rank, shard.size, options))


@contextmanager
def _told_of_lost_ranks(rank: int, size: int) -> Iterator[None]:
    """What torch.distributed raises is a RuntimeError: a peer left, or did not come in time."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise EngineDeadError(f"rank {rank} of {size} lost the others of its group: {reason}") from error
