"""Models by name: shapes of well-known ones, for whoever needs no weights; the paper's servers and their KV slots."""

from __future__ import annotations

from dataclasses import replace
from difflib import get_close_matches
from typing import TYPE_CHECKING

from paged_core.api.model import ModelSpec, RopeSpec
from paged_core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping


def _opt(hidden: int, num_layers: int, num_heads: int) -> ModelSpec:
    return ModelSpec(
        architecture="OPTForCausalLM",
        vocab_size=50272,
        hidden_size=hidden,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=hidden // num_heads,
        intermediate_size=4 * hidden,
        max_position=2048,
        norm="layer",
        norm_eps=1e-5,
        norm_bias=True,
        qkv_bias=True,
        output_bias=True,
        position="learned",
        position_offset=2,
        activation="relu",
        gated_mlp=False,
        mlp_bias=True,
        tie_embeddings=True,
        bos_token_id=2,
        eos_token_ids=(2,),
        dtype="float16",
    )


def _long(spec: ModelSpec) -> ModelSpec:
    """A Llama 3 becomes a Llama 3.1: the same matrices, and a context of 131,072."""
    (rope,) = spec.ropes
    scaled = replace(rope, kind="llama3", factor=8.0, original_max_position=8192)
    return replace(spec, ropes=(scaled,), max_position=131072)


def _llama(
    hidden: int, intermediate: int, num_layers: int, heads: tuple[int, int], *, vocab: int = 32000, tied: bool = False
) -> ModelSpec:
    """`heads`: query heads and key-value heads. A vocabulary of 128,256 makes it a Llama 3."""
    third = vocab == 128256
    head_dim = hidden // heads[0]
    return ModelSpec(
        architecture="LlamaForCausalLM",
        vocab_size=vocab,
        hidden_size=hidden,
        num_layers=num_layers,
        num_heads=heads[0],
        num_kv_heads=heads[1],
        head_dim=head_dim,
        intermediate_size=intermediate,
        max_position=8192 if third else 2048,
        norm_eps=1e-5,
        ropes=(RopeSpec(theta=500000.0 if third else 10000.0, rotary_dim=head_dim),),
        tie_embeddings=tied,
        bos_token_id=128000 if third else 1,
        eos_token_ids=(128001,) if third else (2,),
        dtype="bfloat16",
    )


_LLAMA_3_8B = _llama(4096, 14336, 32, (32, 8), vocab=128256)
_LLAMA_3_70B = _llama(8192, 28672, 80, (64, 8), vocab=128256)
MODELS: Mapping[str, ModelSpec] = {
    "opt-1.3b": _opt(2048, 24, 32),
    "opt-6.7b": _opt(4096, 32, 32),
    "opt-13b": _opt(5120, 40, 40),
    "opt-30b": _opt(7168, 48, 56),
    "opt-66b": _opt(9216, 64, 72),
    "opt-175b": _opt(12288, 96, 96),
    "llama-1.1b": _llama(2048, 5632, 22, (32, 4)),
    "llama-7b": _llama(4096, 11008, 32, (32, 32)),
    "llama-13b": _llama(5120, 13824, 40, (40, 40)),
    "llama-3-1b": _llama(2048, 8192, 16, (32, 8), vocab=128256, tied=True),
    "llama-3-8b": _LLAMA_3_8B,
    "llama-3-70b": _LLAMA_3_70B,
    "llama-3.1-8b": _long(_LLAMA_3_8B),
    "llama-3.1-70b": _long(_LLAMA_3_70B),
    "smollm2-135m": _llama(576, 1536, 30, (9, 3), vocab=49152, tied=True),
    "tiny": _llama(64, 128, 2, (4, 2), vocab=320),
}
"""Shape by name."""

PAPER_SLOTS: Mapping[tuple[str, str, int], int] = {
    ("opt-13b", "a100-40gb", 1): 15_728,
    ("opt-66b", "a100-40gb", 4): 9_700,
    ("opt-175b", "a100-80gb", 8): 60_074,
    ("llama-13b", "a100-40gb", 1): 15_728,
}
"""KV slots (tokens) of the PagedAttention paper's servers (Table 1), by model, device and number of devices.

Table 1 prints 15.7K, 9.7K and 60.1K. The first and last are recomputed from its GiB, which agree with the print; 21 GiB
would be 9,557 slots of OPT-66B, so there the print stands. LLaMA-13B's budget is not printed; a token of it is as large
as one of OPT-13B, and so are its weights.
"""


def plain_name(model: str) -> str:
    """The name under which a model is looked up: `facebook/opt-13b` and `random:opt-13b` are `opt-13b`."""
    return model.rsplit("/", 1)[-1].removeprefix("random:").lower()


def find_model(name: str) -> ModelSpec:
    """The shape of that name. ConfigError for an unknown one."""
    found = MODELS.get(plain_name(name))
    if found is None:
        close = get_close_matches(plain_name(name), MODELS, 1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise ConfigError(f"no model's shape is known by the name {name!r}{hint} Known are {', '.join(MODELS)}")
    return found
