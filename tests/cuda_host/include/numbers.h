// Narrow floating-point numbers as bits: conversions as the device rounds them (to nearest, ties to even).
#pragma once
#include <cstdint>
#include <cstring>

namespace paged_host {

template <typename To, typename From>
inline To bits_as(From value) {
    static_assert(sizeof(To) == sizeof(From), "bits_as needs types of one size");
    To result;
    std::memcpy(&result, &value, sizeof(To));
    return result;
}

inline float bf16_to_float(std::uint16_t bits) { return bits_as<float>(static_cast<std::uint32_t>(bits) << 16); }

inline std::uint16_t float_to_bf16(float value) {
    std::uint32_t bits = bits_as<std::uint32_t>(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;  // the device's NaN
    return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

// Exponents move by a product with 2**112, which also turns subnormal halves into normal floats.
inline float f16_to_float(std::uint16_t bits) {
    std::uint32_t magnitude = static_cast<std::uint32_t>(bits & 0x7fff) << 13;
    std::uint32_t scaled = bits_as<std::uint32_t>(bits_as<float>(magnitude) * bits_as<float>(0x77800000u));
    std::uint32_t result = (bits & 0x7c00) == 0x7c00 ? magnitude | 0x7f800000u : scaled;
    return bits_as<float>(result | static_cast<std::uint32_t>(bits & 0x8000) << 16);
}

inline std::uint16_t float_to_f16(float value) {
    std::uint32_t bits = bits_as<std::uint32_t>(value);
    std::uint32_t magnitude = bits & 0x7fffffffu;
    std::uint16_t sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000);
    if (magnitude > 0x7f800000u) return 0x7fff;
    if (magnitude >= 0x47800000u) return sign | 0x7c00;  // 65536 and above; what rounds up to it carries below
    if (magnitude < 0x38800000u) {                       // subnormal: one unit is 2**-24, 0.5f has units of that size
        float shifted = bits_as<float>(magnitude) + 0.5f;
        return static_cast<std::uint16_t>(sign | (bits_as<std::uint32_t>(shifted) - 0x3f000000u));
    }
    std::uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1);
    return static_cast<std::uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

// e4m3 without infinities: 0x7f and 0xff are NaN, the largest number is 448.
inline float e4m3_to_float(std::uint8_t bits) {
    std::uint32_t magnitude = static_cast<std::uint32_t>(bits & 0x7f) << 20;
    std::uint32_t scaled = bits_as<std::uint32_t>(bits_as<float>(magnitude) * bits_as<float>(0x7b800000u));
    std::uint32_t result = (bits & 0x7f) == 0x7f ? 0x7fc00000u : scaled;
    return bits_as<float>(result | static_cast<std::uint32_t>(bits & 0x80) << 24);
}

inline std::uint8_t float_to_e4m3(float value) {
    std::uint32_t bits = bits_as<std::uint32_t>(value);
    std::uint32_t magnitude = bits & 0x7fffffffu;
    std::uint8_t sign = static_cast<std::uint8_t>((bits >> 24) & 0x80);
    if (magnitude > 0x7f800000u) return sign | 0x7f;
    if (magnitude >= 0x43e00000u) return sign | 0x7e;  // 448 and above, infinity too
    if (magnitude < 0x3c800000u) {                     // subnormal: one unit is 2**-9, 16384.0f has units of that size
        float shifted = bits_as<float>(magnitude) + 16384.0f;
        return static_cast<std::uint8_t>(sign | (bits_as<std::uint32_t>(shifted) - 0x46800000u));
    }
    std::uint32_t rounded = magnitude + 0x7ffffu + ((magnitude >> 20) & 1);
    return static_cast<std::uint8_t>(sign | ((rounded - 0x3c000000u) >> 20));
}

}  // namespace paged_host
