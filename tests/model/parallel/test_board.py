"""A board of shared memory: sums and gathered logits as the contract has them, by threads that stand in for ranks."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from paged_core.errors import EngineDeadError
from paged_core.model.parallel import board as board_module
from paged_core.model.parallel.board import SLOT_BYTES, BoardCollective, make_board, why_not
from paged_core.model.parallel.shard import Shard

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "there is a board here")


@pytest.fixture(params=[2, 3])
def ranks(request):
    """All ends of a board, and a way to let each do something at the same time."""
    descriptor = make_board(request.param)
    ends = [BoardCollective(os.dup(descriptor), Shard(rank, request.param), 20.0) for rank in range(request.param)]
    os.close(descriptor)
    for end in ends:
        end._spins = 0  # threads of one interpreter wait for each other better asleep
    with ThreadPoolExecutor(request.param) as threads:
        yield ends, lambda work: list(threads.map(work, ends))


def numbers(rank, *shape, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(rank)).to(dtype)


def added(ends, *shape, dtype=torch.float32):
    """In the order of ranks, in float32, rounded once."""
    total = torch.zeros(*shape)
    for end in ends:
        total = total + numbers(end.rank, *shape, dtype=dtype).float()
    return total.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 64), (7, 33), (3, SLOT_BYTES // 4)])
def test_every_rank_has_the_same_sum_in_place(ranks, dtype, shape):
    ends, together = ranks

    def work(end):
        x = numbers(end.rank, *shape, dtype=dtype)
        assert end.all_reduce(x) is x
        return x

    wanted = added(ends, *shape, dtype=dtype)
    assert all(torch.equal(x, wanted) for x in together(work))


def test_many_sums_after_another_never_mix(ranks):
    ends, together = ranks

    def work(end):
        found = []
        for i in range(100):
            found.append(end.all_reduce(torch.full((2, 3), float(i * (end.rank + 1)))))
            if i % 10 == 0:
                end.gather_logits(torch.full((1, 2), float(i)))
        return torch.stack(found)

    factor = sum(range(1, len(ends) + 1))
    wanted = torch.arange(100.0).mul(factor)[:, None, None].expand(100, 2, 3)
    assert all(torch.equal(found, wanted) for found in together(work))


def test_a_view_is_added_to_where_it_lies(ranks):
    ends, together = ranks

    def work(end):
        whole = numbers(end.rank, 4, 10)
        end.all_reduce(whole[:, ::2])
        return whole

    for end, whole in zip(ends, together(work), strict=True):
        assert torch.equal(whole[:, ::2], added(ends, 4, 10)[:, ::2])
        assert torch.equal(whole[:, 1::2], numbers(end.rank, 4, 10)[:, 1::2])


@pytest.mark.parametrize("rows", [1, 5, 3 * SLOT_BYTES // 4096])
def test_logits_lie_side_by_side_on_rank_zero_alone(ranks, rows):
    """More than a slot holds come in pieces."""
    ends, together = ranks
    first, *others = together(lambda end: end.gather_logits(numbers(end.rank, rows, 1000)))
    assert others == [None] * (len(ends) - 1)
    assert torch.equal(first, torch.cat([numbers(end.rank, rows, 1000) for end in ends], dim=1))


def test_logits_after_another_never_mix(ranks):
    """Those who only give may not run ahead of rank 0, which is slow here."""
    ends, together = ranks

    def work(end):
        found = []
        for i in range(12):
            found.append(end.gather_logits(torch.full((1, 2), float(100 * end.rank + i))))
            time.sleep(0.005 if end.rank == 0 else 0)
        return found

    first, *_ = together(work)
    for i, logits in enumerate(first):
        assert logits.tolist() == [[100.0 * end.rank + i for end in ends for _ in range(2)]]


def test_whoever_waits_too_long_says_for_whom(ranks, monkeypatch):
    ends, _ = ranks
    monkeypatch.setattr(board_module, "_YIELDS", 0)
    ends[0]._timeout_s = 0.05
    with pytest.raises(EngineDeadError, match=r"rank 0 of \d lost others of its group: 1.* did not come"):
        ends[0].all_reduce(torch.ones(1, 4))
