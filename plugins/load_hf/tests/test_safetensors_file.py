from __future__ import annotations

import json
import tracemalloc

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from paged_core.errors import ModelError, ModelFormatError, ModelNotFoundError, ModelUnsupportedError
from paged_core.model.safetensors_file import SafetensorsFile


def encoded(header, body=b""):
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(raw).to_bytes(8, "little") + raw + body


def entry(begin=0, end=8, shape=(2,), dtype="F32"):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


def refuse(tmp_path, data, kind=ModelFormatError):
    path = tmp_path / "damaged.safetensors"
    path.write_bytes(data)
    with pytest.raises(kind) as caught:
        SafetensorsFile(path)
    assert "damaged.safetensors" in str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_tensors_equal_those_of_the_safetensors_package(dtype, tmp_path):
    path = tmp_path / "model.safetensors"
    tensors = {"a": torch.randn(3, 5).to(dtype), "b.c": torch.randn(7).to(dtype), "empty": torch.zeros(0, 4).to(dtype)}
    tensors["scalar"] = torch.tensor(1.5, dtype=dtype)
    save_file(tensors, path, metadata={"format": "pt"})
    file, witness = SafetensorsFile(path), load_file(path)
    assert file.tensors.keys() == witness.keys()
    for name, tensor in witness.items():
        assert torch.equal(file.tensor(name), tensor)
        assert file.tensor(name).dtype == dtype


def test_tensors_outlive_the_file_object_and_writing_reaches_no_disk(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.ones(4)}, path)
    tensor = SafetensorsFile(path).tensor("a")
    tensor.fill_(7)
    assert torch.equal(load_file(path)["a"], torch.ones(4))


def test_headers_that_lie_are_refused_without_a_big_allocation(tmp_path):
    tracemalloc.start()
    assert "claims 1152921504606846976 bytes" in refuse(tmp_path, (2**60).to_bytes(8, "little") + bytes(100))
    assert "7 bytes" in refuse(tmp_path, bytes(7))
    assert tracemalloc.get_traced_memory()[1] < 10_000_000
    tracemalloc.stop()


def test_a_pointer_file_says_what_it_is(tmp_path):
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n"
    assert "git-lfs pointer" in refuse(tmp_path, pointer)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "empty"),
        (encoded(b'{"a\xff": 1}'), "not sound JSON"),
        (encoded(b"{" * 50_000), "not sound JSON"),
        (encoded(b"[1]"), "not a JSON object"),
        (encoded(b'{"a": {"dtype": "F32"}, "a": 1}'), "'a' occurs twice"),
        (encoded(b'{"a": {"dtype": "F32", "dtype": "F16"}}'), "'dtype' occurs twice"),
        (encoded({"a": 1}), "entry of 'a' is not an object"),
        (encoded({"a": entry(shape=(-2,))}, bytes(8)), "'a' is malformed"),
        (encoded({"a": entry(shape=(True, 2))}, bytes(8)), "'a' is malformed"),
        (encoded({"a": entry(0, 9)}, bytes(9)), "'a' F32 [2] does not fill its 9 bytes"),
        (encoded({"a": entry(8, 0)}, bytes(8)), "'a'"),
        (encoded({"a": entry(0, 2**62, (2**60,))}, bytes(8)), "'a' should end at byte"),
        (encoded({"a": entry(), "b": entry(4, 12)}, bytes(12)), "'b' overlaps 'a'"),
        (encoded({"a": entry(), "b": entry(12, 20)}, bytes(20)), "'b' leaves a hole after 'a'"),
        (encoded({"a": entry()}, bytes(9)), "1 bytes follow"),
    ],
)
def test_damage_is_told_by_name(data, told, tmp_path):
    assert told in refuse(tmp_path, data)


def test_an_unknown_type_is_told_by_name(tmp_path):
    assert "'a' has the unknown type 'F99'" in refuse(
        tmp_path, encoded({"a": entry(dtype="F99")}, bytes(8)), ModelError
    )


def test_a_type_that_is_no_float_is_refused_when_read(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file({"packed": torch.zeros(4, dtype=torch.int32), "a": torch.ones(1)}, path)
    file = SafetensorsFile(path)
    assert file.tensor("a").item() == 1
    with pytest.raises(ModelUnsupportedError, match="'packed' is of type I32"):
        file.tensor("packed")


def test_every_truncation_is_told(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.randn(9, 9), "b": torch.randn(9)}, path)
    data = path.read_bytes()
    for end in range(len(data)):
        refuse(tmp_path, data[:end])


def test_a_flipped_byte_gives_a_model_error_or_sound_tensors(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.randn(9, 9), "b": torch.randn(9)}, path)
    data = path.read_bytes()
    random = np.random.default_rng(0)
    refused = 0
    for position in range(160):
        flipped = bytearray(data)
        flipped[position] ^= int(random.integers(1, 256))
        path.write_bytes(flipped)
        try:
            file = SafetensorsFile(path)
            assert all(file.tensor(name).numel() for name in file.tensors)
        except ModelError:
            refused += 1
    assert refused > 80


def test_a_missing_file_is_told(tmp_path):
    with pytest.raises(ModelNotFoundError, match=r"nothing\.safetensors"):
        SafetensorsFile(tmp_path / "nothing.safetensors")
