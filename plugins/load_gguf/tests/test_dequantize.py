from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from paged_load_gguf import dequantize as module
from paged_load_gguf.dequantize import QUANTIZED, Scratch, dequantize

SCALE_COLUMNS = {  # where each block keeps float16 numbers; random bytes there would mostly be absurd or NaN
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
}


def random_blocks(name, num_blocks, seed=0):
    _, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    random = np.random.default_rng(seed)
    blocks = random.integers(0, 256, (num_blocks, block_bytes), dtype=np.uint8)
    for column in SCALE_COLUMNS[name]:
        scales = random.standard_normal((num_blocks, 1)).astype(np.float16)
        blocks[:, column : column + 2] = scales.view(np.uint8)
    return blocks


@pytest.mark.parametrize("name", sorted(QUANTIZED))
@pytest.mark.parametrize("num_blocks", [1, 7, 2048, 2049])
def test_every_type_equals_gguf_bit_for_bit(name, num_blocks):
    blocks = random_blocks(name, num_blocks)
    wanted = gguf.dequantize(blocks, gguf.GGMLQuantizationType[name]).reshape(-1)
    got = dequantize(blocks.reshape(-1), name)
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got.view(np.uint32), wanted.view(np.uint32))


@pytest.mark.parametrize("name", sorted(QUANTIZED))
def test_infinite_scales_give_what_gguf_gives_without_a_warning(name):
    blocks = random_blocks(name, 4)
    for column in SCALE_COLUMNS[name]:
        blocks[:, column : column + 2] = np.array([[np.inf]], np.float16).view(np.uint8)
    with np.errstate(all="ignore"):
        wanted = gguf.dequantize(blocks, gguf.GGMLQuantizationType[name]).reshape(-1)
    np.testing.assert_array_equal(dequantize(blocks.reshape(-1), name), wanted)


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_values_survive_quantising_within_a_step(name):
    values = np.random.default_rng(1).standard_normal((8, 256), np.float32)
    stored = gguf.quantize(values, gguf.GGMLQuantizationType[name])
    got = dequantize(stored.reshape(-1), name).reshape(values.shape)
    step = np.abs(values).max() * {"4": 1 / 7, "5": 1 / 15, "8": 1 / 127}[name[1]]
    assert np.abs(got - values).max() <= step


def test_the_chunk_size_does_not_show(monkeypatch):
    blocks = random_blocks("Q6_K", 33).reshape(-1)
    whole = dequantize(blocks, "Q6_K")
    monkeypatch.setattr(module, "CHUNK_BLOCKS", 5)
    np.testing.assert_array_equal(dequantize(blocks, "Q6_K"), whole)


def test_an_array_is_used_again_once_nobody_holds_it_and_never_before():
    scratch = Scratch()
    first, second = scratch.take(64), scratch.take(64)
    assert first is not second
    held = torch.from_numpy(second).view(8, 8)
    place = first.ctypes.data
    del first, second
    assert scratch.take(64).ctypes.data == place
    taken = [scratch.take(64) for _ in range(20)]
    assert len({array.ctypes.data for array in taken} | {held.data_ptr()}) == 21
    assert len(scratch.take(32)) == 32
