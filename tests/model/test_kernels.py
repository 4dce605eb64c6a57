"""Kernels are there before weights are; what a model does not call is not loaded."""

from __future__ import annotations

import pytest
import torch

from paged_core.model.kernels import load_kernels
from paged_core.model.linear.choice import NATIVE
from paged_core.model.place import Place
from paged_core.native import matrix


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_products_are_loaded_where_a_native_path_serves(monkeypatch, dtype):
    loaded = []
    monkeypatch.setattr(matrix, "compiled_products", lambda: loaded.append(dtype))
    place = Place(torch.device("cpu"), dtype)
    load_kernels(place)
    assert bool(loaded) == any(not path.lacks(place) for path in NATIVE)


def test_another_device_has_no_kernels(monkeypatch):
    monkeypatch.setattr(matrix, "compiled_products", lambda: pytest.fail("loaded"))
    load_kernels(Place(torch.device("meta"), torch.bfloat16))
