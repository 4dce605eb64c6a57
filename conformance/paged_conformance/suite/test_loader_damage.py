"""Damaged models: one line that names the file or tensor, a ModelError, and nothing in the files is ever executed."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest

from paged_conformance.benches.loader import REFUSED, Patient, accepted, complaint, read_whole
from paged_conformance.marks import layer
from paged_core.api.loader import LoaderNeed
from paged_core.testing.tiny import write_tiny_llama

pytestmark = layer("behaviour")

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
SECOND = "model-00002-of-00002.safetensors"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 4096\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A Hugging Face folder that the suite wrote itself."""
    return write_tiny_llama(tmp_path_factory.mktemp("damage") / "tiny")


@pytest.fixture
def patients(loader, folder, pytestconfig, tmp_path):
    """A copy of every sound model at hand that the loader accepts."""
    found = accepted(loader, [folder, *map(Path, pytestconfig.getoption("paged_loader_sample"))])
    if not found:
        pytest.skip(f"{loader.name} reads no Hugging Face folders; give it a model with --paged-loader-sample PATH")
    return [Patient(path, tmp_path / str(i)) for i, path in enumerate(found)]


@pytest.fixture
def patient(loader, folder, tmp_path):
    """A copy of the Hugging Face folder; None when the loader takes none, for which it must have given a reason."""
    fit = loader.fit(LoaderNeed(str(folder)))
    assert fit.ok or fit.reasons, f"{loader.name} refuses {folder} without a reason"
    return Patient(folder, tmp_path / "own") if fit.ok else None


@pytest.fixture
def marker(tmp_path):
    """A file that exists once somebody ran what they must not."""
    path = tmp_path / "marker"
    pickle.loads(payload(path))
    assert path.exists(), "the trap works"
    path.unlink()
    return path


class Payload:
    """Touches a file when unpickled."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return (Path.touch, (self.marker,))


def payload(marker):
    """A pickle that leaves a mark when it is opened."""
    return pickle.dumps(Payload(marker))


def check_told(loader, path, file, what, tensors=()):
    """The loader must complain and name the file, or a tensor in it."""
    message = complaint(loader, path)
    assert message is not None, f"{loader.name} read {path} as sound although {what}"
    named = message.startswith(REFUSED) or any(name in message for name in (file, *tensors))
    assert named, f"{what}: the complaint names neither {file} nor a tensor of it: {message}"
    return message


def cuts(loader, size):
    """Lengths to cut a file of `size` bytes to: all small ones that matter, powers, and evenly spread ones."""
    spread = 12 if loader.quick else 80
    points = {0, 1, 3, 4, 7, 8, 9, 15, 16, 24, 31, 100, size // 2, size - 1, size - 2, size - 17}
    points |= {1 << power for power in range(size.bit_length())} | {size * i // spread for i in range(spread)}
    return sorted(point for point in points if 0 <= point < size)


def test_weights_cut_short_anywhere_are_told(loader, patients):
    for each in patients:
        file = each.files[0]
        data, tensors = file.read_bytes(), read_whole(loader, each.path).weights
        for length in cuts(loader, len(data)):
            each.replace(file, data[:length])
            check_told(loader, each.path, file.name, f"{file.name} ends after {length} of {len(data)} bytes", tensors)


def test_other_files_cut_short_are_told_or_not_needed(loader, patients):
    for each in patients:
        for file in each.files[1:]:
            data = file.read_bytes()
            for length in sorted({0, 1, len(data) // 3, len(data) // 2, len(data) - 2}):
                each.replace(file, data[:length])
                message = complaint(loader, each.path)
                assert message is None or file.name in message, f"{file.name} cut to {length} bytes: {message}"
            each.replace(file, data)


@pytest.mark.parametrize("seed", [0, 1])
def test_flipped_bytes_give_a_complaint_or_a_whole_model(loader, patients, seed):
    """In the first two thousand bytes, where headers are; never another exception, never half a model."""
    random = np.random.default_rng(seed)
    for each in patients:
        for file in each.files:
            data = file.read_bytes()
            for _ in range(12 if loader.quick else 100):
                flipped = bytearray(data)
                flipped[int(random.integers(min(len(data), 2000)))] ^= int(random.integers(1, 256))
                each.replace(file, bytes(flipped))
                complaint(loader, each.path)
            each.replace(file, data)


@pytest.mark.parametrize(
    "data",
    [b"", POINTER, b"<!DOCTYPE html><html>404</html>", bytes(4096), b"\xff" * 4096, (1 << 60).to_bytes(8, "little")],
    ids=["empty", "git-lfs pointer", "web page", "zeros", "ones", "huge header length"],
)
def test_something_else_under_the_name_of_the_weights_is_told(loader, patients, data):
    """Case L03: usually an interrupted download or a pointer file."""
    for each in patients:
        file = each.files[0]
        each.replace(file, data)
        check_told(loader, each.path, file.name, f"{file.name} holds {data[:20]!r}...")


def test_a_pickle_under_the_name_of_the_weights_is_not_opened(loader, patients, marker):
    for each in patients:
        file = each.files[0]
        each.replace(file, payload(marker))
        check_told(loader, each.path, file.name, f"{file.name} is a pickle")
        assert not marker.exists(), f"{loader.name} executed the pickle {file.name}"


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth", "model.ckpt"])
def test_pickled_weights_are_refused_unopened(loader, patient, marker, name):
    if patient is None:
        return
    (patient.path / WEIGHTS).unlink()
    (patient.path / name).write_bytes(payload(marker))
    check_told(loader, patient.path, name, f"the weights are the pickle {name}")
    assert not marker.exists(), f"{loader.name} executed the pickle {name}"


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "generation_config.json"])
def test_code_that_comes_with_a_model_is_not_run(loader, patient, marker, name):
    """auto_map: refused, or loaded without the code."""
    if patient is None:
        return
    (patient.path / "evil.py").write_text(f"from pathlib import Path\nPath({str(marker)!r}).touch()\n")
    evil = {"AutoConfig": "evil.Config", "AutoTokenizer": ["evil.Tokenizer", None], "AutoModelForCausalLM": "evil.M"}
    edit(patient, name, auto_map=evil)
    message = complaint(loader, patient.path)
    assert not marker.exists(), f"{loader.name} ran the model's own code, as {name} asked it to"
    assert message is None or name in message, f"refused for another reason than {name}: {message}"


def edit(patient, name, **changes):
    """Change keys of a JSON file; None removes one."""
    path = patient.path / name
    values = json.loads(path.read_text()) if path.exists() else {}
    values.update(changes)
    path.write_text(json.dumps({key: value for key, value in values.items() if value is not None}))


def split(patient):
    """Spread the weights over two files with an index; names of the tensors in the second."""
    from safetensors.torch import load_file, save_file

    tensors = {name: tensor.clone() for name, tensor in load_file(patient.path / WEIGHTS).items()}
    names = sorted(tensors)
    parts = {"model-00001-of-00002.safetensors": names[:10], SECOND: names[10:]}
    for file, members in parts.items():
        save_file({name: tensors[name] for name in members}, patient.path / file)
    mapping = {name: file for file, members in parts.items() for name in members}
    (patient.path / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": mapping}))
    (patient.path / WEIGHTS).unlink()
    return parts[SECOND]


def test_shards_are_read_together_and_a_missing_one_is_told(loader, patient):
    """Case L01: without its second shard the server booted and talked noise."""
    if patient is None:
        return
    whole = read_whole(loader, patient.path).weights
    split(patient)
    assert complaint(loader, patient.path) is None, "a model in two shards is as good as one in one file"
    assert read_whole(loader, patient.path).weights.keys() == whole.keys()
    (patient.path / SECOND).unlink()
    check_told(loader, patient.path, SECOND, f"{SECOND} is missing")


def test_a_missing_tensor_is_told(loader, patient):
    """Case L01: a tensor that is in no file stays random, and the model talks noise."""
    if patient is None:
        return
    from safetensors.torch import load_file, save_file

    sound = {name: tensor.clone() for name, tensor in load_file(patient.path / WEIGHTS).items()}
    for lost in ("model.norm.weight", "model.layers.1.self_attn.k_proj.weight", "lm_head.weight"):
        (patient.path / WEIGHTS).unlink()
        save_file({name: tensor for name, tensor in sound.items() if name != lost}, patient.path / WEIGHTS)
        tensors = ("norm.weight", "layers.1.attn.k.weight", "head.weight", lost)
        check_told(loader, patient.path, WEIGHTS, f"tensor {lost} is missing", tensors)


def test_a_tensor_of_the_wrong_shape_is_told(loader, patient):
    if patient is None:
        return
    import torch
    from safetensors.torch import load_file, save_file

    sound = {name: tensor.clone() for name, tensor in load_file(patient.path / WEIGHTS).items()}
    (patient.path / WEIGHTS).unlink()
    save_file({**sound, "model.norm.weight": torch.ones(63)}, patient.path / WEIGHTS)
    check_told(loader, patient.path, WEIGHTS, "model.norm.weight has 63 elements instead of 64", ("norm.weight",))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "MambaForCausalLM"),
        ({"hidden_size": "many"}, "hidden_size"),
        ({"num_hidden_layers": -1}, "num_hidden_layers"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"hidden_size": None}, "hidden_size"),
    ],
    ids=str,
)
def test_a_config_that_cannot_be_is_told(loader, patient, changes, named):
    if patient is None:
        return
    edit(patient, "config.json", **changes)
    check_told(loader, patient.path, "config.json", f"config.json says {changes}", (named,))


def test_a_folder_without_a_config_is_told(loader, patient):
    if patient is None:
        return
    (patient.path / "config.json").unlink()
    check_told(loader, patient.path, "config.json", "config.json is missing")
