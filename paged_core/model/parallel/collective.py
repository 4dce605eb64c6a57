"""Collective: what the ranks of a tensor-parallel group do together in a step, and how torch.distributed does it."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

import torch

from paged_core.device.stream import CudaAccelerator
from paged_core.errors import ConfigError, EngineDeadError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor
    from torch._C._distributed_c10d import Store

    from paged_core.model.parallel.shard import Shard


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

    On a CPU ranks send each other what they have, and each adds up in the order of ranks, in float32, and rounds once.
    gloo's own sum rounds bfloat16 at every rank, and its order depends on where in the tensor a number lies: a row's
    result would depend on its neighbours. For the few rows of a decoding step it also takes longer, for every number
    goes round twice. NCCL adds up by itself, in an order of its own choice.
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
        """Add up every rank's `x` [rows, size], in place; returns it."""
        if x.device.type == "cpu":
            return x.copy_(self._sum(x.contiguous()))
        with _told_of_lost_ranks(self._rank, self._size):
            self._group.allreduce([x]).wait()
        return x

    def _sum(self, x: Tensor) -> Tensor:
        """float32."""
        parts = x.new_empty((self._size * len(x), *x.shape[1:]))
        with _told_of_lost_ranks(self._rank, self._size):
            self._group._allgather_base(parts, x).wait()
        first, *others = parts.view(self._size, *x.shape).unbind()
        total = first.float()
        for other in others:
            total += other
        return total

    def gather_logits(self, local: Tensor) -> Tensor | None:
        """Every rank's `local` [rows, tokens] side by side on rank 0; None on the others."""
        from torch.distributed import GatherOptions

        parts = [torch.empty_like(local) for _ in range(self._size)] if self._rank == 0 else []
        options = GatherOptions()
        options.rootRank = 0
        with _told_of_lost_ranks(self._rank, self._size):
            self._group.gather([parts] if parts else [], [local.contiguous()], options).wait()
        return torch.cat(parts, dim=1) if parts else None


def join(
    store: Store, shard: Shard, device: torch.device, timeout_s: float, address: str = "127.0.0.1"
) -> TorchCollective:
    """Meet the other ranks at `store` and form a group with them: gloo for a CPU, NCCL for a GPU.

    `address`: where the others reach this rank, for gloo, which listens there and nowhere else. Nobody waits longer
    than `timeout_s`, neither here nor later. Raises EngineDeadError when the others do not come, ConfigError where this
    torch was built without what `device` needs.
    """
    from torch import distributed

    dist: Any = distributed  # its annotations lack the options
    limit = timedelta(seconds=timeout_s)
    with _told_of_lost_ranks(shard.rank, shard.size):
        if device.type == "cpu":
            gloo = dist.ProcessGroupGloo._Options()
            gloo._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]
            gloo._timeout = limit
            return TorchCollective(dist.ProcessGroupGloo(store, shard.rank, shard.size, gloo))
        if not dist.is_nccl_available():
            raise ConfigError(f"this torch {torch.__version__} was built without NCCL, which ranks on GPUs need")
        nccl = dist.ProcessGroupNCCL.Options()
        nccl._timeout = limit
        collective = TorchCollective(dist.ProcessGroupNCCL(store, shard.rank, shard.size, nccl))
        # NCCL connects the ranks when they first meet: better here than in the middle of loading
        collective.gather_logits(collective.all_reduce(torch.zeros((1, 1), device=device)))
        CudaAccelerator(device).synchronize()
        return collective


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
