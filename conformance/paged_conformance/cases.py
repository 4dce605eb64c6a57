"""Shapes and tolerances of the suite, in one place. A plugin author may read here what exactly will be asked."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ElementType:
    """One element type of activations and cache: the capability that declares it, and how far a result may be off.

    `relative` and `absolute` bound |result - oracle| <= absolute + relative * |oracle|, where the oracle works in
    float64 on the stored (rounded) keys and values. They leave room for one rounding of the output and for softmax
    weights rounded to the element type before they meet the values, as tensor cores want them.
    """

    dtype: str
    capability: str
    absolute: float
    relative: float


ELEMENT_TYPES = (
    ElementType("float32", "fp32", 2e-5, 2e-5),
    ElementType("bfloat16", "bf16", 1.6e-2, 1.6e-2),
    ElementType("float16", "fp16", 2e-3, 2e-3),
)

CODES = ElementType("uint8", "u8", 4e-2, 1.6e-2)
"""A cache of codes. The oracle reads back the contract's reference of normal random rows, whose step is 0.02 to 0.03: a
backend that codes otherwise, but no coarser, is a step off in an element at most. test_attention_codes.py is exact."""

E4M3 = ElementType("float8_e4m3fn", "fp8", 2e-3, 2e-3)
"""A cache of 8-bit floats. The oracle rounds as the contract says, so what is left is the arithmetic."""

NARROW_TYPES = (CODES, E4M3)
CACHE_TYPES = (*ELEMENT_TYPES, *NARROW_TYPES)
"""What a cache may hold; activations beside a narrow type are of the most precise type that the backend declares."""

DRIFTS = {"bf16": (0.04, 0.2), "fp16": (0.005, 0.02), "u8": (0.05, 0.28), "fp8": (0.17, 0.65)}
"""How far log-probabilities of the suite's small model may be off in a type: on average, and at most. 1.6 times what
attn_torch shows there, whose softmax is float32: all else in the model is rounded to the type as well, and beside a
narrow cache to bfloat16."""

BLOCK_SIZES = (1, 2, 8, 16, 32, 64, 128, 256)
HEAD_DIMS = (64, 80, 96, 112, 128, 256)
MANDATORY_BLOCK_SIZES = (16, 32)
MANDATORY_HEAD_DIMS = (64, 128)
"""Every attention backend takes these, in each element type it declares; the others it may refuse, with a reason."""

HEADS = ((4, 4), (8, 2), (9, 3), (14, 2), (8, 1))
"""(query heads, key-value heads): multi-head, grouped by 4, 3 and 7, multi-query."""


def edge_lengths(block_size: int) -> tuple[int, ...]:
    """Ragged lengths around block edges: 1, B - 1, B, B + 1, 2B + 1, and one that spans several blocks and tiles."""
    around = {1, block_size - 1, block_size, block_size + 1, 2 * block_size + 1, max(70, 3 * block_size + 5)}
    return tuple(sorted(around - {0}))
