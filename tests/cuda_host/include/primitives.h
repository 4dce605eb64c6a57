// paged::device: the plain twins of what csrc/device.cuh writes as inline PTX.
#pragma once
#include "builtins.h"

namespace paged::device {

using paged_host::Place;

struct alignas(16) vec16 {
    std::uint32_t word[4];
};

inline vec16 load16(const void* address, Place place = Place::here()) {
    paged_host::check_load(address, place);
    return *static_cast<const vec16*>(address);
}

inline vec16 load16_streaming(const void* address, Place place = Place::here()) { return load16(address, place); }

inline void store16(void* address, const vec16& value, Place place = Place::here()) {
    paged_host::check_store(address, place);
    *static_cast<vec16*>(address) = value;
}

inline void cp_async_16(void* shared, const void* global, bool valid, Place place = Place::here()) {
    paged_host::begin_copy(shared, global, valid, place);
}

inline void cp_async_commit() { paged_host::commit_copies(); }

template <int N>
inline void cp_async_wait() {
    paged_host::wait_copies(N);
}

constexpr unsigned all_lanes = 0xffffffffu;

inline void ldmatrix_x4(std::uint32_t (&r)[4], const void* shared_row, Place place = Place::here()) {
    paged_host::LoadMatrix operands{shared_row, r};
    paged_host::collective(paged_host::Collective::ldmatrix, all_lanes, &operands, place);
}

inline void ldmatrix_x4_trans(std::uint32_t (&r)[4], const void* shared_row, Place place = Place::here()) {
    paged_host::LoadMatrix operands{shared_row, r};
    paged_host::collective(paged_host::Collective::ldmatrix_trans, all_lanes, &operands, place);
}

inline void mma_bf16(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2],
                     Place place = Place::here()) {
    paged_host::Mma operands{d, a, b};
    paged_host::collective(paged_host::Collective::mma_bf16, all_lanes, &operands, place);
}

inline void mma_f16(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2],
                    Place place = Place::here()) {
    paged_host::Mma operands{d, a, b};
    paged_host::collective(paged_host::Collective::mma_f16, all_lanes, &operands, place);
}

inline float from_bf16(std::uint16_t bits) { return paged_host::bf16_to_float(bits); }
inline std::uint16_t to_bf16(float value) { return paged_host::float_to_bf16(value); }
inline float from_f16(std::uint16_t bits) { return paged_host::f16_to_float(bits); }
inline std::uint16_t to_f16(float value) { return paged_host::float_to_f16(value); }
inline float from_e4m3(std::uint8_t bits) { return paged_host::e4m3_to_float(bits); }
inline std::uint8_t to_e4m3(float value) { return paged_host::float_to_e4m3(value); }

inline std::uint32_t pack_bf16(float lo, float hi) {
    return to_bf16(lo) | static_cast<std::uint32_t>(to_bf16(hi)) << 16;
}

inline std::uint32_t pack_f16(float lo, float hi) {
    return to_f16(lo) | static_cast<std::uint32_t>(to_f16(hi)) << 16;
}

// Four e4m3: bytes 0 and 2 become the halves of `even`, 1 and 3 those of `odd`. Exact.
inline void widen_bf16(std::uint32_t word, std::uint32_t& even, std::uint32_t& odd) {
    auto number = [word](int byte) { return from_e4m3(static_cast<std::uint8_t>(word >> 8 * byte)); };
    even = pack_bf16(number(0), number(2));
    odd = pack_bf16(number(1), number(3));
}

inline void widen_f16(std::uint32_t word, std::uint32_t& even, std::uint32_t& odd) {
    auto number = [word](int byte) { return from_e4m3(static_cast<std::uint8_t>(word >> 8 * byte)); };
    even = pack_f16(number(0), number(2));
    odd = pack_f16(number(1), number(3));
}

// Subnormal numbers are taken, and given, as zero, like ex2.approx.ftz and lg2.approx.ftz.
inline float flushed(float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }
inline float exp2_fast(float x) { return flushed(std::exp2(flushed(x))); }
inline float log2_fast(float x) { return flushed(std::log2(flushed(x))); }

}  // namespace paged::device

// `name` is a pointer to the block's dynamic shared memory; it ends where the launch said.
#define PAGED_DYNAMIC_SHARED(name) \
    unsigned char* const name = static_cast<unsigned char*>(::paged_host::dynamic_shared())

// `name` is an array of the block.
#define PAGED_SHARED(type, name, count)  \
    static char name##_key;              \
    type(&name)[count] =                 \
        *static_cast<type(*)[count]>(::paged_host::static_shared(&name##_key, sizeof(type[count])))
