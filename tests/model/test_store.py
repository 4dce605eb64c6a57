"""Linear layers are made when their last parameter arrives, in whatever order parameters come."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from paged_core.model.place import Place
from paged_core.model.spec import spec_from_hf
from paged_core.model.store import WeightStore
from paged_core.model.weights import expected_shapes
from paged_core.testing.tiny import CONFIG

PLACE = Place(torch.device("cpu"), torch.float32)
EARLY = ("attn.qkv", "attn.o", "mlp.down")


@pytest.fixture
def spec():
    return replace(spec_from_hf(dict(CONFIG)), qkv_bias=True)


def tensors(spec):
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=generator) for name, shape in expected_shapes(spec).items()}


@pytest.mark.parametrize("backwards", [False, True])
def test_a_layer_is_made_with_its_bias_and_its_parts_in_their_order(spec, backwards):
    store, given = WeightStore(spec, PLACE), tensors(spec)
    for name in list(given)[:: -1 if backwards else 1]:
        store.put(name, given[name])
    x = torch.randn(3, spec.hidden_size)
    parts = [x @ given[f"layers.1.attn.{part}.weight"].T + given[f"layers.1.attn.{part}.bias"] for part in "qkv"]
    torch.testing.assert_close(store.linear("layers.1.attn.qkv")(x), torch.cat(parts, dim=1), atol=1e-4, rtol=1e-4)
    down = given["layers.1.mlp.down.weight"]
    inner = torch.randn(3, spec.intermediate_size)
    torch.testing.assert_close(store.linear("layers.1.mlp.down")(inner), inner @ down.T, atol=1e-4, rtol=1e-4)


def test_the_originals_of_a_layer_are_gone_before_the_next_ones_come(spec):
    store = WeightStore(spec, PLACE)
    for name, tensor in tensors(spec).items():
        if name.startswith("layers.1."):
            break
        store.put(name, tensor)
    kept = [name for name in store._tensors if any(f".{early}." in name for early in EARLY)]
    assert kept == []
    assert sorted(store._made) == sorted(f"layers.0.{early}" for early in EARLY)
    assert "layers.0.mlp.gate_up.weight" in store._tensors


def test_a_layer_that_lacks_a_parameter_is_not_made(spec):
    store = WeightStore(spec, PLACE)
    for name, tensor in tensors(spec).items():
        if name != "layers.0.attn.k.bias":
            store.put(name, tensor)
    assert "layers.0.attn.qkv" not in store._made
