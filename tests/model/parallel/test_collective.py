"""TorchCollective over gloo: what it computes, and what becomes of ranks left alone. Ranks are threads here."""

from __future__ import annotations

import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import distributed

from paged_core.errors import ConfigError, EngineDeadError
from paged_core.model.parallel.collective import TorchCollective, join
from paged_core.model.parallel.shard import Shard

if TYPE_CHECKING:
    from collections.abc import Callable

CPU = torch.device("cpu")


def group(size: int, work: Callable[[TorchCollective], Any], timeout_s: float = 60) -> list[Any]:
    """Every rank's `work`, or the error that it ends with."""
    store = distributed.HashStore()

    def rank(number: int) -> Any:
        try:
            with torch.inference_mode():
                return work(join(distributed.PrefixStore("test", store), Shard(number, size), CPU, timeout_s))
        except EngineDeadError as error:
            return error

    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(rank, range(size)))


def values(rank: int, rows: int = 40, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(rows, 65, generator=torch.Generator().manual_seed(rank)).to(dtype)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_sums_are_those_of_all_ranks_in_place_and_the_same_everywhere(size: int) -> None:
    def work(collective: TorchCollective) -> torch.Tensor:
        x = values(collective.rank)
        assert collective.all_reduce(x) is x
        return x

    sums = group(size, work)
    torch.testing.assert_close(sums[0], sum(values(rank) for rank in range(size)))
    assert all(torch.equal(total, sums[0]) for total in sums)


def test_a_rows_sum_does_not_depend_on_the_rows_beside_it() -> None:
    def work(collective: TorchCollective) -> list[torch.Tensor]:
        x = values(collective.rank)
        return [collective.all_reduce(x[begin:end].clone()) for begin, end in ((0, 40), (0, 1), (7, 19), (39, 40))]

    whole, *parts = group(3, work)[0]
    for (begin, end), part in zip(((0, 1), (7, 19), (39, 40)), parts, strict=True):
        assert torch.equal(part, whole[begin:end])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_types_are_added_up_in_float32_and_rounded_once(dtype: torch.dtype) -> None:
    sums = group(3, lambda collective: collective.all_reduce(values(collective.rank, dtype=dtype)))
    exact = sum(values(rank, dtype=dtype).float() for rank in range(3))
    assert torch.equal(sums[0], exact.to(dtype))


def test_sums_take_what_lies_apart_in_memory() -> None:
    sums = group(2, lambda collective: collective.all_reduce(values(collective.rank).t()))
    torch.testing.assert_close(sums[1], (values(0) + values(1)).t())


def test_logits_come_together_on_rank_0_in_the_order_of_ranks() -> None:
    gathered = group(3, lambda collective: collective.gather_logits(values(collective.rank, rows=4)[:, :5]))
    assert torch.equal(gathered[0], torch.cat([values(rank, rows=4)[:, :5] for rank in range(3)], dim=1))
    assert gathered[1] is None
    assert gathered[2] is None


def test_a_process_group_that_is_handed_in_serves_as_well() -> None:
    store = distributed.HashStore()
    backend = distributed.ProcessGroupGloo(store, 0, 1)
    handed = distributed.ProcessGroup(store, 0, 1)
    handed._set_default_backend(distributed.ProcessGroup.BackendType.GLOO)
    handed._register_backend(CPU, distributed.ProcessGroup.BackendType.GLOO, backend)
    for process_group in (backend, handed):
        collective = TorchCollective(process_group)
        assert (collective.rank, collective.size) == (0, 1)
        assert torch.equal(collective.all_reduce(values(0)), values(0))
        assert torch.equal(collective.gather_logits(values(0)), values(0))
    assert not distributed.is_initialized(), "the process's default group is somebody else's"


def test_whoever_waits_for_a_rank_that_does_not_come_is_told_in_time() -> None:
    def work(collective: TorchCollective) -> Any:
        if collective.rank == 1:
            done.wait(60)
            return collective  # keeps its connections until then
        begin = time.monotonic()
        with pytest.raises(EngineDeadError, match=r"rank \d of 3 lost the others of its group: .*[Tt]imed? ?out"):
            collective.all_reduce(values(collective.rank))
        waited.append(time.monotonic() - begin)
        if len(waited) == 2:
            done.set()
        return None

    done, waited = threading.Event(), []
    group(3, work, timeout_s=1)
    assert len(waited) == 2
    assert max(waited) < 30


def test_whoever_waits_for_a_rank_that_left_is_told_at_once() -> None:
    def left(collective: TorchCollective) -> Any:
        if collective.rank == 0:
            return collective.all_reduce(values(0))
        collective._group = None
        return None

    begin = time.monotonic()
    error = group(2, left, timeout_s=300)[0]
    assert isinstance(error, EngineDeadError)
    assert re.match(r"rank 0 of 2 lost the others of its group: ", str(error))
    assert isinstance(error.__cause__, RuntimeError)
    assert time.monotonic() - begin < 60


def test_a_group_that_does_not_assemble_is_told_in_time() -> None:
    begin = time.monotonic()
    with pytest.raises(EngineDeadError, match="rank 0 of 2 lost the others"):
        join(distributed.HashStore(), Shard(0, 2), CPU, timeout_s=1)
    assert time.monotonic() - begin < 30


@pytest.mark.skipif(distributed.is_nccl_available(), reason="this torch has NCCL")
def test_a_torch_without_nccl_says_so_when_ranks_are_gpus() -> None:
    with pytest.raises(ConfigError, match="built without NCCL"):
        join(distributed.HashStore(), Shard(), torch.device("cuda", 0), timeout_s=1)
