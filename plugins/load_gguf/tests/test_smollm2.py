"""The default model's own file, when it is in the cache."""

from __future__ import annotations

import json

import gguf
import numpy as np
import pytest
import torch

pytestmark = pytest.mark.model

MESSAGES = [
    {"role": "user", "content": "What is 12345 + 678?"},
    {"role": "assistant", "content": "13023"},
    {"role": "user", "content": "Danke! 삼겹살 👍🏽"},
]


@pytest.fixture(scope="module")
def smollm2(smollm2_path):
    from paged_load_gguf.loader import GgufLoader

    return GgufLoader(smollm2_path)


def test_its_spec_is_that_of_smollm2(smollm2):
    spec = smollm2.spec()
    assert (spec.num_layers, spec.hidden_size, spec.num_heads, spec.num_kv_heads, spec.head_dim) == (30, 576, 9, 3, 64)
    assert (spec.vocab_size, spec.tie_embeddings, spec.norm_eps) == (49152, True, 1e-5)
    assert spec.ropes[0].theta == 100_000.0
    assert spec.eos_token_ids == (2,)
    assert spec.extra == (("stored as", "210 x Q4_1, 61 x F32, 1 x Q8_0"),)


@pytest.mark.slow
def test_its_weights_are_complete_and_equal_those_of_gguf(smollm2, smollm2_path):
    weights = dict(smollm2.weights())
    assert len(weights) == 272
    names = {"attn_norm": "attn_norm", "attn_v": "attn.v", "attn_output": "attn.o", "ffn_norm": "mlp_norm"}
    names |= {
        "ffn_gate": "mlp.gate",
        "ffn_up": "mlp.up",
        "ffn_down": "mlp.down",
        "attn_q": "attn.q",
        "attn_k": "attn.k",
    }
    for tensor in gguf.GGUFReader(smollm2_path).tensors:
        wanted = torch.from_numpy(gguf.dequantize(np.array(tensor.data), tensor.tensor_type))
        parts = tensor.name.split(".")
        top = {"token_embd": "embed", "output_norm": "norm"}
        name = f"layers.{parts[1]}.{names[parts[2]]}" if parts[0] == "blk" else top[parts[0]]
        if parts[0] == "blk" and parts[2] in ("attn_q", "attn_k"):
            rows = torch.arange(wanted.shape[0]).view(-1, 32, 2).transpose(1, 2).reshape(-1)
            wanted = wanted[rows]
        torch.testing.assert_close(weights[name + ".weight"], wanted, rtol=0, atol=0)


def test_naughty_strings_come_back(smollm2, shared):
    """All but what its vocabulary has no token for: six control characters."""
    tokenizer = smollm2.tokenizer()
    lost = str.maketrans("", "", "\x04\x06\x13\x14\x16\x1d")
    for text in json.loads((shared / "data/text/naughty_strings.json").read_bytes()):
        assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False) == text.translate(lost)


def test_digits_are_single_tokens(smollm2):
    assert len(smollm2.tokenizer().encode("12345")) == 5


@pytest.mark.slow
def test_ids_and_chat_prompts_equal_those_of_transformers(smollm2, smollm2_path, shared):
    from transformers import AutoTokenizer

    witness = AutoTokenizer.from_pretrained(smollm2_path.parent, gguf_file=smollm2_path.name)
    mine = smollm2.tokenizer()
    for text in json.loads((shared / "data/text/naughty_strings.json").read_bytes()):
        assert mine.encode(text) == witness.encode(text)
    text = mine.apply_chat_template(MESSAGES)
    assert text == witness.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True)
    wanted = witness.apply_chat_template(MESSAGES, add_generation_prompt=True, return_dict=False)
    assert mine.encode(text, add_special_tokens=False) == mine.encode(text) == wanted
