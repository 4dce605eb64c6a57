"""How products are cut into items, and products on several threads. What they give: tests/model/test_linear.py."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from paged_core.model.linear.native import NativeLinear, NativePairsLinear, NativeQuadsLinear
from paged_core.model.place import Place
from paged_core.native.matrix import FEW_ROWS, ITEM_ROWS, Products, products_of_this_thread, work_items
from paged_core.native.team import Team

PATHS: list[tuple[type[NativeLinear], str]] = [(NativePairsLinear, "none"), (NativeQuadsLinear, "int8")]


def need(path: type[NativeLinear], quantization: str) -> None:
    if missing := path.lacks(Place(torch.device("cpu"), torch.bfloat16, quantization)):
        pytest.skip(f"{path.name}: {missing}")


def made(path: type[NativeLinear], quantization: str, outputs: int, inputs: int) -> NativeLinear:
    need(path, quantization)
    return path((torch.randn(outputs, inputs) * inputs**-0.5).bfloat16())


@pytest.mark.parametrize("workers", [1, 2, 3, 16])
@pytest.mark.parametrize("num_panels", [1, 2, 3, 18, 96, 1536])
@pytest.mark.parametrize("rows", [1, 6, FEW_ROWS, FEW_ROWS + 1, ITEM_ROWS, 200, 513])
def test_items_cover_every_row_of_every_panel_once(rows: int, num_panels: int, workers: int) -> None:
    covered = np.zeros((num_panels, rows), dtype=np.int64)
    for first_panel, panel_end, first_row, row_end in work_items(rows, num_panels, workers).tolist():
        assert 0 < row_end - first_row <= ITEM_ROWS
        covered[first_panel:panel_end, first_row:row_end] += 1
    assert (covered == 1).all()


def test_the_last_items_of_few_rows_are_short() -> None:
    """Nobody waits long for the one that works last."""
    lengths = np.diff(work_items(1, 96, 2)[:, :2], axis=1).ravel()
    assert lengths[0] == 24
    assert lengths[-1] <= 2


@pytest.mark.parametrize("path, quantization", PATHS, ids=["bf16", "int8"])
@pytest.mark.parametrize("rows", [1, 5, 40, 150])
def test_threads_change_no_bit(path: type[NativeLinear], quantization: str, rows: int) -> None:
    layer = made(path, quantization, 640, 576)
    x = torch.randn(rows, 576).bfloat16()
    alone, several = Products(Team(1)), Products(Team(3))
    assert torch.equal(alone.multiply(x, layer.weight), several.multiply(x, layer.weight))


@pytest.mark.parametrize("path, quantization", PATHS, ids=["bf16", "int8"])
def test_a_long_row_is_summed_in_one_order_however_many_rows_there_are(
    path: type[NativeLinear], quantization: str
) -> None:
    """Longer than a segment: sums go through memory between segments."""
    need(path, quantization)
    weight, x = (torch.randn(96, 5632) / 75).bfloat16(), torch.randn(130, 5632).bfloat16()
    layer = path(weight)
    together = layer(x)
    assert torch.equal(torch.cat([layer(row[None]) for row in x]), together)
    torch.testing.assert_close(together.double(), x.double() @ weight.double().T, atol=6e-2, rtol=6e-2)


@pytest.mark.parametrize("path, quantization", PATHS, ids=["bf16", "int8"])
def test_a_gate_is_what_separate_operators_make_of_gate_and_up(path: type[NativeLinear], quantization: str) -> None:
    need(path, quantization)
    torch.manual_seed(5)
    weight, bias = (torch.randn(192, 64) / 8).bfloat16(), torch.randn(192).bfloat16()
    gate, up = path(weight, bias)(x := torch.randn(70, 64).bfloat16()).chunk(2, dim=-1)
    gated = path(weight, bias, is_gated=True)(x)
    torch.testing.assert_close(gated, torch.nn.functional.silu(gate) * up, atol=1e-2, rtol=1e-2)
    assert (gated != torch.nn.functional.silu(gate) * up).float().mean() < 2e-2, "but for the exponential's last digit"
    assert path(weight, bias).weight.width == 192
    assert gated.shape == (70, 96)


@pytest.mark.parametrize("path, quantization", PATHS, ids=["bf16", "int8"])
def test_wide_is_the_same_number_in_float32(path: type[NativeLinear], quantization: str) -> None:
    layer = made(path, quantization, 100, 64)
    x = torch.randn(9, 64).bfloat16()
    out = torch.full((9, 100), torch.nan)
    assert layer.wide(x, out) is out
    assert torch.equal(out, layer(x).float())


@pytest.mark.parametrize("path, quantization", PATHS, ids=["bf16", "int8"])
def test_a_row_that_is_not_finite_is_spoiled_alone(path: type[NativeLinear], quantization: str) -> None:
    layer = made(path, quantization, 64, 256)
    x = torch.randn(8, 256).bfloat16()
    clean = layer(x)
    x[3, 200] = torch.nan
    spoiled = layer(x)
    assert spoiled[3].isnan().all()
    assert torch.equal(spoiled[[0, 1, 2, 4, 5, 6, 7]], clean[[0, 1, 2, 4, 5, 6, 7]])


def test_zeros_give_zeros() -> None:
    layer = made(NativeQuadsLinear, "int8", 64, 256)
    assert not layer(torch.zeros(2, 256, dtype=torch.bfloat16)).any()


def test_two_threads_of_the_program_share_no_scratch() -> None:
    layer = made(NativeQuadsLinear, "int8", 512, 576)
    inputs = [torch.randn(64, 576).bfloat16() for _ in range(2)]
    wanted = [layer(x) for x in inputs]
    wrong: list[int] = []

    def work(i: int) -> None:
        wrong.extend(i for _ in range(50) if not torch.equal(layer(inputs[i]), wanted[i]))

    workers = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong
    assert products_of_this_thread() is products_of_this_thread()
