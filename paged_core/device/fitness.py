"""What attention kernels for NVIDIA GPUs are written for: sizes and types, the same for every backend that has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paged_core.api.attention import AttentionNeed
    from paged_core.device.presence import Presence

DTYPES = ("float32", "bfloat16", "float16")
FP8 = "float8_e4m3fn"
ELEMENT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, FP8: 1}
BLOCK_SIZES = (8, 16, 32, 64, 128, 256)
HEAD_DIM_STEP = 16
MAX_HEAD_DIM = 256
MIN_CAPABILITY = (8, 0)  # cp.async and mma on bf16


def shape_reasons(name: str, need: AttentionNeed) -> list[str]:
    """What about types and sizes of `need` no kernel of the backend `name` serves."""
    reasons = []
    if need.dtype not in DTYPES:
        reasons.append(f"{name} does not support {need.dtype} for the activations; it has {', '.join(DTYPES)}")
    if need.kv_dtype not in (need.dtype, FP8):
        reasons.append(
            f"{name} does not keep {need.kv_dtype} in the KV cache of {need.dtype} activations; it has "
            f"{need.dtype} and {FP8}"
        )
    if need.head_dim % HEAD_DIM_STEP or not 1 <= need.head_dim <= MAX_HEAD_DIM:
        reasons.append(
            f"{name} needs a head_dim that is a multiple of {HEAD_DIM_STEP} up to {MAX_HEAD_DIM}, not {need.head_dim}"
        )
    if need.block_size not in BLOCK_SIZES:
        reasons.append(f"{name} needs a block_size of {', '.join(map(str, BLOCK_SIZES))}, not {need.block_size}")
    if need.num_kv_heads < 1 or need.num_heads < 1 or need.num_heads % need.num_kv_heads:
        reasons.append(f"{name} cannot share {need.num_kv_heads} KV heads among {need.num_heads} query heads")
    return reasons


def age_reasons(name: str, presence: Presence) -> list[str]:
    """Why the first GPU, the one that torch computes on, is too old for the backend `name`; empty without a GPU."""
    if not presence.gpus or presence.gpus[0].capability >= MIN_CAPABILITY:
        return []
    gpu = presence.gpus[0]
    wanted = ".".join(map(str, MIN_CAPABILITY))
    return [f"{gpu.name} has compute capability {gpu.shown}; {name} needs {wanted} (Ampere) or newer"]
