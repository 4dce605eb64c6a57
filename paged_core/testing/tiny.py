"""write_tiny_llama: a random two-layer Llama checkpoint on disk, with a tokenizer of 320 entries."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "bos_token_id": 257,
    "eos_token_id": 256,
    "dtype": "float32",
}
"""Fixture T of the test cases: 2 layers, hidden 64, 4 query and 2 KV heads, fp32."""


def write_tiny_llama(folder: Path, seed: int = 0, **changes: Any) -> Path:
    """Write config, weights and tokenizer into `folder` (created); returns it. Same seed, same bytes. `changes` of
    CONFIG: its sizes and numbers of heads."""
    import torch
    from safetensors.torch import save_file

    config = CONFIG | changes
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    generator = torch.Generator().manual_seed(seed)
    weights = {
        name: torch.ones(shape) if "norm" in name else torch.randn(shape, generator=generator) * 0.3
        for name, shape in _shapes(config).items()
    }
    save_file(weights, str(folder / "model.safetensors"), metadata={"format": "pt"})
    _write_tokenizer(folder)
    return folder


def _shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    q, kv = (config[f"num_{kind}_heads"] * config["head_dim"] for kind in ("attention", "key_value"))
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (config["vocab_size"], hidden),
    }
    for i in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{i}."
        shapes |= {
            prefix + "input_layernorm.weight": (hidden,),
            prefix + "post_attention_layernorm.weight": (hidden,),
            prefix + "self_attn.q_proj.weight": (q, hidden),
            prefix + "self_attn.k_proj.weight": (kv, hidden),
            prefix + "self_attn.v_proj.weight": (kv, hidden),
            prefix + "self_attn.o_proj.weight": (hidden, q),
            prefix + "mlp.gate_proj.weight": (inner, hidden),
            prefix + "mlp.up_proj.weight": (inner, hidden),
            prefix + "mlp.down_proj.weight": (hidden, inner),
        }
    return shapes


def _write_tokenizer(folder: Path) -> None:
    """Byte-level BPE: 256 byte symbols, EOS 256, BOS 257, then a few merges."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {symbol: i for i, symbol in enumerate(alphabet)}
    vocab |= {"</s>": 256, "<s>": 257}
    merges = [("t", "h"), ("h", "e"), ("i", "n"), ("e", "r"), ("a", "n"), ("r", "e"), ("o", "n"), ("a", "t")]
    vocab |= {left + right: 258 + i for i, (left, right) in enumerate(merges)}
    vocab |= {f"<unused{i}>": i for i in range(len(vocab), 320)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("</s>", special=True), AddedToken("<s>", special=True)])
    tokenizer.save(str(folder / "tokenizer.json"))
    template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"
    config = {"eos_token": "</s>", "bos_token": "<s>", "chat_template": template, "add_bos_token": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
