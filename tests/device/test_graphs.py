from __future__ import annotations

import logging

import pytest
import torch

from paged_core.device.graphs import LARGEST, Graphs, batch_sizes
from paged_core.testing.accelerator import FakeAccelerator


def adding(total: torch.Tensor, sizes: list[int]):
    """Work that adds its batch size to `total`; `sizes` lists what was prepared."""

    def prepare(size: int):
        sizes.append(size)
        return lambda: total.add_(size)

    return prepare


def test_sizes_are_few_at_first_and_bounded():
    assert batch_sizes(1) == [1]
    assert batch_sizes(20) == [1, 2, 4, 8, 16, 20]
    assert batch_sizes(256)[-3:] == [240, 248, 256]
    assert batch_sizes(100_000)[-1] == LARGEST
    assert len(batch_sizes(100_000)) < 60


def test_a_batch_takes_the_smallest_graph_that_holds_it():
    total, prepared = torch.zeros(1), []
    graphs = Graphs(FakeAccelerator(is_eager=True))
    assert graphs.size_for(1) is None
    graphs.capture([1, 4, 16], adding(total, prepared))
    assert prepared == [16, 4, 1]  # the largest first
    assert [graphs.size_for(n) for n in (1, 2, 4, 5, 16, 17)] == [1, 4, 4, 16, 16, None]
    assert total.item() == 21  # done once before it is captured
    graphs.replay(4)
    assert total.item() == 25


def test_where_capturing_fails_there_are_no_graphs_and_the_reason_is_logged_once(caplog):
    device = FakeAccelerator(is_eager=True)
    device.refuses_capture = True
    graphs = Graphs(device)
    with caplog.at_level(logging.WARNING, "paged_core.device"):
        graphs.capture([1, 2], adding(torch.zeros(1), []))
    assert len(graphs) == 0
    assert graphs.size_for(1) is None
    (record,) = caplog.records
    assert record.message == (
        "steps run without CUDA graphs: capturing 2 sequences failed: "
        "RuntimeError: operation not permitted when stream is capturing"
    )


def test_what_fails_before_capturing_is_an_error():
    def prepare(size):
        def broken():
            raise ZeroDivisionError

        return broken

    with pytest.raises(ZeroDivisionError):
        Graphs(FakeAccelerator(is_eager=True)).capture([1], prepare)


def test_start_and_end_are_told_with_time_and_memory(caplog):
    with caplog.at_level(logging.INFO, "paged_core.news"):
        Graphs(FakeAccelerator(is_eager=True)).capture([1, 2], adding(torch.zeros(1), []))
    assert caplog.records[0].message == "capturing decode steps of 2 sizes up to 2 sequences"
    assert caplog.records[1].message.startswith("captured 2 steps in ")
    assert caplog.records[1].message.endswith(" MiB")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_replay_sees_what_lies_in_its_buffers_now():
    from paged_core.device.stream import CudaAccelerator

    device = torch.device("cuda")
    static, out = torch.zeros(4, device=device), torch.zeros(4, device=device)
    graphs = Graphs(CudaAccelerator(device))
    graphs.capture([2, 4], lambda size: lambda: out[:size].copy_(static[:size] * 2))
    static.fill_(3.0)
    graphs.replay(2)
    assert out.tolist() == [6.0, 6.0, 0.0, 0.0]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_work_that_asks_the_device_for_a_number_cannot_be_captured(caplog):
    from paged_core.device.stream import CudaAccelerator

    x = torch.ones(4, device="cuda")
    graphs = Graphs(CudaAccelerator(x.device))
    with caplog.at_level(logging.WARNING, "paged_core.device"):
        graphs.capture([1], lambda size: lambda: x.add_(x.sum().item()))
    assert len(graphs) == 0
    assert "capturing 1 sequences failed" in caplog.text
    assert x.add(1).sum().item() > 0  # the device goes on working
