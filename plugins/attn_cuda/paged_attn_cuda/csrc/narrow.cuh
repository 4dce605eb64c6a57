// e4m3 by hand, for GPUs before sm_89, which have no instructions for it: bits s eeee mmm, a bias of 7, no infinities;
// 0x7f is NaN. Plain C++: included where types and __device__ are known.
#pragma once

namespace paged {
namespace narrow {

__device__ __forceinline__ float as_float(uint32_t bits) {
    return __builtin_bit_cast(float, bits);
}

__device__ __forceinline__ uint32_t as_bits(float x) {
    return __builtin_bit_cast(uint32_t, x);
}

__device__ __forceinline__ float from_e4m3(uint8_t bits) {  // exact: the exponent moves from a bias of 7 to one of 127
    const uint32_t magnitude = bits & 0x7fu;
    const uint32_t value = magnitude == 0x7fu ? 0x7fc00000u : as_bits(as_float(magnitude << 20) * 0x1p120f);
    return as_float(value | static_cast<uint32_t>(bits & 0x80u) << 24);
}

__device__ __forceinline__ uint8_t to_e4m3(float x) {  // to nearest even; 448 at most; NaN stays NaN
    const uint32_t bits = as_bits(x), sign = bits >> 24 & 0x80u;
    uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return static_cast<uint8_t>(sign | 0x7fu);
    if (magnitude >= 0x43e00000u) return static_cast<uint8_t>(sign | 0x7eu);  // 448 and more
    if (magnitude < 0x3c800000u) {  // below 2^-6: multiples of 2^-9; behind 2^14 they are the lowest bits
        return static_cast<uint8_t>(sign | (as_bits(as_float(magnitude) + 16384.0f) - 0x46800000u));
    }
    magnitude += 0x7ffffu + (magnitude >> 20 & 1u);  // to nearest even in the upper three bits of the fraction
    return static_cast<uint8_t>(sign | ((magnitude >> 20) - (120u << 3)));
}

// Two at once, in the upper bytes of two halves: the seven bits below the sign move to the fraction's upper end and the
// exponent's lower one. Times 2^120 (bf16) or 2^8 (fp16) that is the number, but for NaN, which nan_lanes puts back.

__device__ __forceinline__ uint32_t moved_bf16(uint32_t halves) {
    return (halves & 0x80008000u) | (halves & 0x7f007f00u) >> 4;
}

__device__ __forceinline__ uint32_t moved_f16(uint32_t halves) {
    return (halves & 0x80008000u) | (halves & 0x7f007f00u) >> 1;
}

__device__ __forceinline__ uint32_t nan_lanes(uint32_t halves) {  // 0x7fff in each half whose upper byte is +-NaN
    const uint32_t sign = ((halves & 0x7f007f00u) + 0x01000100u) & 0x80008000u;
    return sign - (sign >> 15);
}

constexpr uint32_t BIAS_BF16 = 0x7b807b80u;  // 2^120, twice
constexpr uint32_t BIAS_F16 = 0x5c005c00u;   // 2^8, twice

}  // namespace narrow
}  // namespace paged
