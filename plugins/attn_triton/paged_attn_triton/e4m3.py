"""Eight-bit floats (e4m3fn) by integer arithmetic: exact on every device, and in Triton's interpreter.

    byte  s eeee mmm    value (-1)^s * 2^(eeee - 7) * 1.mmm, for eeee = 0 (-1)^s * 2^-6 * 0.mmm; s 1111 111 is NaN

A byte's exponent and mantissa, moved to where float32 keeps its own, make a number 2^120 times too small, among the
subnormals as well; one exact product puts that right.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def decode_e4m3(codes, DTYPE: tl.constexpr, BY_HARDWARE: tl.constexpr):
    """The numbers of bytes, as DTYPE. BY_HARDWARE: by the conversion that devices have from capability 8.9 on."""
    if BY_HARDWARE:
        return codes.to(tl.float8e4nv, bitcast=True).to(DTYPE)
    else:
        magnitude = (codes & 0x7F).to(tl.uint32)
        bits = ((codes & 0x80).to(tl.uint32) << 24) | (magnitude << 20)
        numbers = bits.to(tl.float32, bitcast=True) * 1.329227995784916e36  # 2^120
        return tl.where(magnitude == 0x7F, float("nan"), numbers).to(DTYPE)


@triton.jit
def encode_e4m3(x):
    """Bytes of float32 numbers: to nearest, ties to even, at most 448 in size; NaN stays NaN."""
    bits = x.to(tl.uint32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    # from 2^-6 on: round the mantissa to three bits, a carry walks into the exponent; 120 = 127 - 7
    normal = ((magnitude + 0x7FFFF + ((magnitude >> 20) & 1)) >> 20) - (120 << 3)
    # below: float32 numbers at 2^14 are 2^-9 apart, as the subnormals are, so the addition rounds
    subnormal = (tl.abs(x) + 16384.0).to(tl.uint32, bitcast=True) - 0x46800000
    code = tl.where(magnitude < 0x3C800000, subnormal, normal)
    code = tl.where(magnitude > 0x7F800000, 0x7F, tl.minimum(code, 0x7E))
    return (code | ((bits >> 24) & 0x80)).to(tl.uint8)
