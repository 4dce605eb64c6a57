"""Rotary position embeddings: inverse frequencies of every supported kind, and tables of cos and sin by position.

The formulas are those of transformers' `modeling_rope_utils`, in the same float32 operations.

Two kinds depend on a length, which paging cannot follow: a key is rotated once, when it is written, and may be shared
with sequences of other lengths. So the length is fixed for the life of the engine: the longest sequence it admits
(`max_length`).

* dynamic (NTK): the base is that of a sequence of `max_length` tokens. An engine limited to the original length or
  less rotates exactly as an unscaled model; a longer one as the reference does at `max_length`.
* longrope: the short factors if `max_length` is within the original length, else the long ones.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from paged_core.errors import ModelUnsupportedError

if TYPE_CHECKING:
    from torch import Tensor

    from paged_core.api.model import RopeSpec


def inverse_frequencies(rope: RopeSpec, max_length: int) -> Tensor:
    """Radians per token of each rotated pair, float32 [rotary_dim / 2], for an engine of `max_length` tokens.

    Raises ModelUnsupportedError for a kind that is not known.
    """
    match rope.kind:
        case "default":
            return _plain(rope.theta, rope.rotary_dim)
        case "linear":
            return _plain(rope.theta, rope.rotary_dim) / rope.factor
        case "dynamic":
            return _dynamic(rope, max_length)
        case "llama3":
            return _llama3(rope)
        case "yarn":
            return _yarn(rope)
        case "longrope":
            factors = rope.long_factor if max_length > rope.original_max_position else rope.short_factor
            exponents = torch.arange(0, rope.rotary_dim, 2, dtype=torch.int64).float() / rope.rotary_dim
            return 1.0 / (torch.tensor(factors, dtype=torch.float32) * rope.theta**exponents)
    raise ModelUnsupportedError(f"rotary embedding of type {rope.kind!r} is not known")


def attention_factor(rope: RopeSpec) -> float:
    """What cos and sin are multiplied by: 1 but for yarn and longrope, which sharpen attention over long contexts."""
    if rope.kind not in ("yarn", "longrope"):
        return 1.0
    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.kind == "longrope":
        if rope.factor <= 1.0:
            return 1.0
        return math.sqrt(1 + math.log(rope.factor) / math.log(rope.original_max_position))
    if rope.mscale and rope.mscale_all_dim:
        return _yarn_mscale(rope.factor, rope.mscale) / _yarn_mscale(rope.factor, rope.mscale_all_dim)
    return _yarn_mscale(rope.factor, 1.0)


def rope_table(rope: RopeSpec, max_length: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """cos and sin of positions 0 .. max_length - 1: two float32 tensors [max_length, rotary_dim / 2]."""
    frequencies = inverse_frequencies(rope, max_length)
    angles = torch.arange(max_length, dtype=torch.float32)[:, None] * frequencies[None, :]
    factor = attention_factor(rope)
    return (angles.cos() * factor).to(device), (angles.sin() * factor).to(device)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the leading 2 * cos.shape[-1] dimensions of each head; the rest passes.

    x [tokens, heads, head_dim]; cos, sin float32 [tokens, rotary_dim / 2]. Computed in float32, returned in x's dtype,
    a new contiguous tensor.
    """
    half = cos.shape[-1]
    cos, sin = cos[:, None, :], sin[:, None, :]
    first, second = x[..., :half].float(), x[..., half : 2 * half].float()
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    out[..., :half] = first * cos - second * sin
    out[..., half : 2 * half] = second * cos + first * sin
    out[..., 2 * half :] = x[..., 2 * half :]
    return out


def _plain(theta: float, dim: int) -> Tensor:
    return 1.0 / (theta ** (torch.arange(0, dim, 2, dtype=torch.int64).float() / dim))


def _dynamic(rope: RopeSpec, max_length: int) -> Tensor:
    """NTK-aware scaling: the base grows with the length, so that the slowest pair is stretched by the excess."""
    dim, original = rope.rotary_dim, rope.original_max_position
    length = max(max_length, original)
    stretch = (rope.factor * length / original) - (rope.factor - 1)
    return _plain(rope.theta * stretch ** (dim / (dim - 2)), dim)


def _llama3(rope: RopeSpec) -> Tensor:
    """Llama 3.1: long wavelengths are divided by the factor, short ones kept, those between blended."""
    frequencies = _plain(rope.theta, rope.rotary_dim)
    original = rope.original_max_position
    wavelength = 2 * math.pi / frequencies
    longest, shortest = original / rope.low_freq_factor, original / rope.high_freq_factor
    scaled = torch.where(wavelength > longest, frequencies / rope.factor, frequencies)
    smooth = (original / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blended = (1 - smooth) * scaled / rope.factor + smooth * scaled
    between = (wavelength >= shortest) & (wavelength <= longest)
    return torch.where(between, blended, scaled)


def _yarn(rope: RopeSpec) -> Tensor:
    """YaRN (arXiv 2309.00071): pairs that turn often are kept, slow ones interpolated, a ramp between."""
    dim, original = rope.rotary_dim, rope.original_max_position

    def dimension(rotations: float) -> float:
        return (dim * math.log(original / (rotations * 2 * math.pi))) / (2 * math.log(rope.theta))

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001  # as the reference does, against division by zero
    ramp = ((torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    powers = rope.theta ** (torch.arange(0, dim, 2).float() / dim)
    kept = 1 - ramp
    return (1.0 / (rope.factor * powers)) * (1 - kept) + (1.0 / powers) * kept


def _yarn_mscale(scale: float, mscale: float) -> float:
    return 1.0 if scale <= 1 else 0.1 * mscale * math.log(scale) + 1.0
