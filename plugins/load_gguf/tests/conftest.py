"""Small GGUF files written with the `gguf` package, the independent witness of these tests."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[3]


def byte_level_alphabet():
    from tokenizers.pre_tokenizers import ByteLevel

    return sorted(ByteLevel.alphabet())


def add_byte_level_tokenizer(writer, pre="gpt-2"):
    tokens = [*byte_level_alphabet(), "</s>", "<s>", "th", "the", "<|im_end|>", "<tool>"]
    types = [1] * 256 + [3, 3, 1, 1, 3, 4]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(["t h", "th e"])
    writer.add_eos_token_id(256)
    writer.add_bos_token_id(257)
    return tokens


def write(path, architecture, metadata, tensors, tokenizer=add_byte_level_tokenizer):
    """`metadata` maps keys without the architecture prefix to values; `tensors` names to (array, type) or arrays."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in metadata.items():
        add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
        add[type(value)](f"{architecture}.{key}", value)
    if tokenizer is not None:
        tokenizer(writer)
    for name, tensor in tensors.items():
        array, kind = tensor if isinstance(tensor, tuple) else (tensor, None)
        writer.add_tensor(name, array, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


LLAMA = {
    "block_count": 1,
    "context_length": 64,
    "embedding_length": 32,
    "feed_forward_length": 64,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "rope.dimension_count": 8,
    "rope.freq_base": 10000.0,
}


def llama_tensors(seed=0):
    random = np.random.default_rng(seed)

    def normal(*shape):
        return random.standard_normal(shape, np.float32)

    return {
        "token_embd.weight": normal(262, 32),
        "blk.0.attn_norm.weight": normal(32),
        "blk.0.attn_q.weight": normal(32, 32),
        "blk.0.attn_k.weight": normal(16, 32),
        "blk.0.attn_v.weight": normal(16, 32),
        "blk.0.attn_output.weight": normal(32, 32),
        "blk.0.ffn_norm.weight": normal(32),
        "blk.0.ffn_gate.weight": normal(64, 32),
        "blk.0.ffn_up.weight": normal(64, 32),
        "blk.0.ffn_down.weight": normal(32, 64),
        "output_norm.weight": normal(32),
    }


class Files:
    """Writes test files into one folder."""

    def __init__(self, folder):
        self.folder = folder

    def write(self, architecture, metadata, tensors, tokenizer=add_byte_level_tokenizer):
        return write(self.folder / "model.gguf", architecture, metadata, tensors, tokenizer)

    def llama(self, metadata=None, tensors=None, drop=(), tokenizer=add_byte_level_tokenizer):
        """The smallest sound llama, with changes."""
        merged = {key: value for key, value in {**LLAMA, **(metadata or {})}.items() if key not in drop}
        kept = {key: value for key, value in {**llama_tensors(), **(tensors or {})}.items() if key not in drop}
        return self.write("llama", merged, kept, tokenizer)


@pytest.fixture
def files(tmp_path):
    return Files(tmp_path)


@pytest.fixture
def open_loader():
    """The loader of a file, through the provider, as the engine gets it."""
    from paged_load_gguf import GgufProvider

    from paged_core.api.loader import LoaderNeed

    provider = GgufProvider()

    def open_it(path, **settings):
        return provider.create(LoaderNeed(str(path)), provider.Settings(**settings), None)

    return open_it


@pytest.fixture
def shared():
    folder = ROOT.parent / "shared"
    if not folder.is_dir():
        pytest.skip("no folder 'shared' beside the checkout")
    return folder


@pytest.fixture(scope="session")
def smollm2_path():
    """The cached default model; never downloads."""
    from paged_load_gguf.pull import cached_path, is_complete
    from paged_load_gguf.registry import MODELS

    model = MODELS["smollm2-135m"]
    path = cached_path(model, Path("~/.cache/paged-core").expanduser())
    if not is_complete(model, path):
        pytest.skip("smollm2-135m is not in ~/.cache/paged-core: run `paged-core pull smollm2-135m`")
    return path
