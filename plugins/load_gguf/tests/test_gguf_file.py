from __future__ import annotations

import struct

import gguf
import numpy as np
import pytest
from paged_load_gguf.gguf_file import GgufFile

from paged_core.errors import ModelFormatError, ModelNotFoundError, ModelUnsupportedError, PagedError


def header(num_tensors=0, keys=(), version=3):
    return b"GGUF" + struct.pack("<IQQ", version, num_tensors, len(keys)) + b"".join(keys)


def text(value):
    raw = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(raw)) + raw


def record(name, shape, kind=0, offset=0):
    return text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}QIQ", *shape, kind, offset)


def refuse(tmp_path, data, error=ModelFormatError):
    path = tmp_path / "damaged.gguf"
    path.write_bytes(data)
    with pytest.raises(error) as caught:
        GgufFile(path)
    message = str(caught.value)
    assert "damaged.gguf" in message
    assert "\n" not in message
    return message


def test_metadata_and_places_equal_those_of_the_gguf_package(files):
    path = files.llama()
    witness, file = gguf.GGUFReader(path), GgufFile(path)
    for key, value in file.metadata.items():
        wanted = witness.fields[key].contents()
        assert value == (pytest.approx(wanted) if isinstance(wanted, float) else wanted), key
    assert list(file.tensors) == [tensor.name for tensor in witness.tensors]
    for tensor in witness.tensors:
        mine = file.tensors[tensor.name]
        assert (mine.offset, mine.num_bytes) == (tensor.data_offset, tensor.n_bytes)
        assert mine.shape == tuple(reversed(tensor.shape.tolist()))
        np.testing.assert_array_equal(file.data(mine), tensor.data.view(np.uint8).reshape(-1))


def test_a_tensor_that_was_let_go_is_read_again(files):
    file = GgufFile(files.llama())
    for tensor in file.tensors.values():
        before = file.data(tensor).copy()
        file.release(tensor)
        np.testing.assert_array_equal(file.data(tensor), before)


def test_forgetting_lists_leaves_single_values(files):
    file = GgufFile(files.llama())
    assert "tokenizer.ggml.tokens" in file.metadata
    file.forget_lists()
    assert "tokenizer.ggml.tokens" not in file.metadata
    assert file.metadata["general.architecture"] == "llama"


def test_a_float_is_the_decimal_its_author_wrote(files):
    assert GgufFile(files.llama()).metadata["llama.attention.layer_norm_rms_epsilon"] == 1e-5


def test_every_truncation_is_told_and_never_noise(files, open_loader, tmp_path):
    data = files.llama().read_bytes()
    ends = {0, 1, 3, 4, 7, 8, 23, 24, len(data) - 1} | set(range(30, len(data), 97))
    for end in sorted(ends):
        path = tmp_path / "cut.gguf"
        path.write_bytes(data[:end])
        with pytest.raises(PagedError) as caught:
            list(open_loader(path).weights())
        assert "cut.gguf" in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_flipped_header_byte_gives_a_model_error_or_a_sound_model(files, open_loader, tmp_path):
    data = bytearray(files.llama().read_bytes())
    random = np.random.default_rng(0)
    path = tmp_path / "flipped.gguf"
    told = []
    for position in random.integers(0, 8000, 400):
        flipped = bytearray(data)
        flipped[position] ^= int(random.integers(1, 256))
        path.write_bytes(flipped)
        loader = open_loader(path)
        try:
            loader.spec()
            loader.tokenizer()
            assert all(tensor is not None for _, tensor in loader.weights())
        except PagedError as error:
            told.append(str(error))
    assert not [message for message in told if "\n" in message]
    assert len(told) > 40  # the test would mean nothing if it hit unused bytes only


def test_absurd_counts_are_refused_before_anything_is_allocated(tmp_path):
    assert "claims" in refuse(tmp_path, header(2**60))
    assert "claims" in refuse(tmp_path, b"GGUF" + struct.pack("<IQQ", 3, 0, 2**60) + bytes(100))
    array = text("a") + struct.pack("<IIQ", 9, 8, 2**60)
    assert "announces" in refuse(tmp_path, header(0, [array]) + bytes(100))
    numbers = text("a") + struct.pack("<IIQ", 9, 4, 2**60)
    assert "announced" in refuse(tmp_path, header(0, [numbers]) + bytes(100))
    long = struct.pack("<Q", 2**63)
    assert "announced" in refuse(tmp_path, header(0, [long]) + bytes(100))


def test_what_is_no_gguf_file_is_told_apart(tmp_path):
    assert "empty" in refuse(tmp_path, b"")
    assert "git-lfs pointer" in refuse(tmp_path, b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 9\n")
    assert "begins with b'PK" in refuse(tmp_path, b"PK\x03\x04" + bytes(100))
    assert "version 1" in refuse(tmp_path, header(version=1), ModelUnsupportedError)
    assert "big-endian" in refuse(tmp_path, b"GGUF" + struct.pack(">IQQ", 3, 0, 0), ModelUnsupportedError)


def test_a_missing_file_and_a_folder_are_told(tmp_path):
    with pytest.raises(ModelNotFoundError, match=r"nothing\.gguf"):
        GgufFile(tmp_path / "nothing.gguf")
    with pytest.raises(ModelNotFoundError):
        GgufFile(tmp_path)


def test_doubled_keys_and_tensors_are_refused(tmp_path):
    key = text("general.name") + struct.pack("<I", 8) + text("x")
    assert "'general.name' appears twice" in refuse(tmp_path, header(0, [key, key]))
    twice = header(2) + record("w", (1,)) * 2 + bytes(64)
    assert "'w' appears twice" in refuse(tmp_path, twice)


def test_text_that_is_not_utf8_is_refused(tmp_path):
    key = text("general.name") + struct.pack("<I", 8) + text(b"\xff\xfe")
    assert "not UTF-8" in refuse(tmp_path, header(0, [key]))


def test_impossible_tensors_name_themselves(tmp_path):
    assert "'w' should end" in refuse(tmp_path, header(1) + record("w", (2**62, 4)) + bytes(64))
    assert "'w' of type Q4_0" in refuse(tmp_path, header(1) + record("w", (33,), kind=2) + bytes(64))
    assert "'w' has 9 dimensions" in refuse(tmp_path, header(1) + record("w", (1,) * 9) + bytes(64))
    assert "overlap" in refuse(tmp_path, header(2) + record("v", (8,)) + record("w", (8,), offset=16) + bytes(99))
    unknown = header(1) + record("w", (32,), kind=999) + bytes(64)
    assert "'w' has the unknown type 999" in refuse(tmp_path, unknown, ModelUnsupportedError)
