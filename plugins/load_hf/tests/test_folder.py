from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from paged_load_hf import HfProvider
from safetensors.torch import load_file, save_file

from paged_core.api.loader import LoaderNeed
from paged_core.errors import ModelError, ModelFormatError, ModelNotFoundError, ModelUnsupportedError

SECOND = "model-00002-of-00002.safetensors"


def refuse(loader, kind=ModelError):
    with pytest.raises(kind) as caught:
        list(loader.weights())
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_weights_equal_the_file_and_cost_no_copy(folder, open_loader):
    stored = load_file(folder.path / "model.safetensors")
    weights = dict(open_loader(folder.path).weights())
    assert len(weights) == len(stored) == 21
    torch.testing.assert_close(
        weights["layers.1.attn.k.weight"], stored["model.layers.1.self_attn.k_proj.weight"], rtol=0, atol=0
    )
    addresses = [tensor.data_ptr() for tensor in weights.values()]
    total = sum(tensor.numel() * tensor.element_size() for tensor in weights.values())
    assert max(addresses) - min(addresses) < total  # one map holds them all


def test_two_shards_equal_one_file(folder, open_loader):
    whole = {name: tensor.clone() for name, tensor in open_loader(folder.path).weights()}
    folder.shard()
    sharded = dict(open_loader(folder.path).weights())
    assert sharded.keys() == whole.keys()
    assert all(torch.equal(sharded[name], whole[name]) for name in whole)


def test_a_shard_the_index_names_but_the_folder_lacks_is_named(folder, open_loader):
    folder.shard()
    (folder.path / SECOND).unlink()
    assert f"shard {SECOND}" in refuse(open_loader(folder.path), ModelFormatError)


def test_a_tensor_that_is_in_no_shard_is_named(folder, open_loader):
    names = folder.shard()
    tensors = load_file(folder.path / SECOND)
    lost = tensors.pop(names[0])
    save_file(tensors, folder.path / SECOND)
    assert names[0] in refuse(open_loader(folder.path), ModelFormatError)
    mapping = json.loads((folder.path / "model.safetensors.index.json").read_text())["weight_map"]
    del mapping[names[0]]
    folder.edit("model.safetensors.index.json", weight_map=mapping)
    message = refuse(open_loader(folder.path), ModelFormatError)
    assert "1 of 21 tensors" in message
    assert lost is not None


def test_a_tensor_the_index_does_not_know_is_named(folder, open_loader):
    folder.shard()
    tensors = load_file(folder.path / SECOND)
    save_file({**tensors, "stale.weight": torch.zeros(1)}, folder.path / SECOND)
    assert "'stale.weight'" in refuse(open_loader(folder.path), ModelFormatError)


@pytest.mark.parametrize("file", ["../elsewhere.safetensors", "/etc/passwd", "model.bin"])
def test_an_index_may_only_name_safetensors_beside_it(file, folder, open_loader):
    folder.shard()
    folder.edit("model.safetensors.index.json", weight_map={"lm_head.weight": file})
    assert repr(file) in refuse(open_loader(folder.path), ModelFormatError)


def test_an_index_without_a_map_and_shards_without_an_index_are_told(folder, open_loader):
    folder.shard()
    folder.edit("model.safetensors.index.json", weight_map=[])
    assert "no weight_map" in refuse(open_loader(folder.path), ModelFormatError)
    (folder.path / "model.safetensors.index.json").unlink()
    assert "neither model.safetensors nor" in refuse(open_loader(folder.path), ModelFormatError)


def test_a_tied_model_without_a_head_needs_none(folder, open_loader):
    tensors = load_file(folder.path / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, folder.path / "model.safetensors")
    assert "head.weight" in refuse(open_loader(folder.path), ModelFormatError)  # not tied: must not stay random
    folder.edit("config.json", tie_word_embeddings=True)
    loader = open_loader(folder.path)
    assert loader.spec().tie_embeddings
    assert "head.weight" not in dict(loader.weights())


def test_a_tied_model_with_a_copied_head_ignores_the_copy(folder, open_loader):
    folder.edit("config.json", tie_word_embeddings=True)
    assert "head.weight" not in dict(open_loader(folder.path).weights())


def test_a_tensor_of_the_wrong_shape_or_type_is_named(folder, open_loader):
    tensors = load_file(folder.path / "model.safetensors")
    save_file({**tensors, "model.norm.weight": torch.ones(63)}, folder.path / "model.safetensors")
    assert "norm.weight" in refuse(open_loader(folder.path), ModelFormatError)
    packed = {**tensors, "lm_head.weight": torch.ones(320, 64, dtype=torch.int8)}
    save_file(packed, folder.path / "model.safetensors")
    assert "'lm_head.weight' is of type I8" in refuse(open_loader(folder.path), ModelUnsupportedError)


def test_end_tokens_come_from_the_generation_config_first(folder, open_loader):
    folder.edit("generation_config.json", eos_token_id=[256, 300, 256])
    loader = open_loader(folder.path)
    assert loader.spec().eos_token_ids == (256, 300)
    assert loader.tokenizer().eos_token_ids == (256, 300)
    folder.edit("generation_config.json", eos_token_id="</s>")
    with pytest.raises(ModelFormatError, match="'</s>' is not a token id"):
        open_loader(folder.path).spec()


def test_what_is_no_model_folder_is_told(tmp_path, folder, open_loader):
    with pytest.raises(ModelNotFoundError, match=r"no config\.json"):
        open_loader(tmp_path).spec()
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelUnsupportedError, match="adapter"):
        open_loader(tmp_path).spec()
    (folder.path / "model.safetensors").unlink()
    assert "no weights" in refuse(open_loader(folder.path), ModelNotFoundError)


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer_config.json"])
@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'"x"', b"\xff\xfe", b"[" * 100_000])
def test_broken_json_names_the_file(name, content, folder, open_loader):
    (folder.path / name).write_bytes(content)
    with pytest.raises(ModelFormatError, match=name.replace(".", r"\.")):
        open_loader(folder.path).tokenizer()


def test_errors_of_the_spec_name_the_folder(folder, open_loader):
    folder.edit("config.json", architectures=["MambaForCausalLM"])
    with pytest.raises(ModelUnsupportedError, match=r"tiny.*'MambaForCausalLM'"):
        open_loader(folder.path).spec()


def test_probe_tells_folders_ids_and_the_rest(folder, tmp_path):
    probe = HfProvider().probe
    assert probe(LoaderNeed(str(folder.path))).ok
    assert probe(LoaderNeed("org/name")).ok
    (tmp_path / "file").write_text("")
    for model in (str(tmp_path / "file"), "name", "a/b/c", "../x", "nul\0", "x" * 5000):
        assert not probe(LoaderNeed(model)).ok
    assert "'registry'" in probe(LoaderNeed("org/name", required=frozenset({"registry"}))).reasons[0]


def test_a_hub_model_that_is_not_here_is_one_line(open_loader, monkeypatch, tmp_path):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelNotFoundError, match="'nobody/nothing' is no folder here") as caught:
        open_loader("nobody/nothing").pull()
    assert "\n" not in str(caught.value)


def test_a_cached_hub_model_is_taken_whole_and_never_as_a_torso(folder, open_loader, monkeypatch):
    """`snapshot_download` is the seam: it answers the cached folder, and would fetch the rest."""
    import huggingface_hub

    calls = []

    def snapshot(model, **options):
        calls.append((model, options["local_files_only"]))
        assert not any("bin" in pattern or "py" in pattern for pattern in options["allow_patterns"])
        return str(folder.path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    assert open_loader("org/name").spec().num_layers == 2
    assert calls == [("org/name", True)]
    folder.shard()
    (folder.path / SECOND).unlink()
    news = []
    open_loader("org/name").pull(news.append)
    assert calls[1:] == [("org/name", True), ("org/name", False)]
    assert "downloading org/name" in news[0]


def test_importing_the_plugin_is_light():
    heavy = "{'torch', 'numpy', 'transformers', 'tokenizers', 'huggingface_hub'}"
    code = f"import sys, paged_load_hf; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
