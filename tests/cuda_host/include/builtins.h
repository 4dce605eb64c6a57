// CUDA's own names: qualifiers, vector types, intrinsics, warp functions, atomics.
#pragma once
#include <cmath>

#include "numbers.h"
#include "runtime.h"

#define PAGED_HOST_PLACE paged_host::Place place = paged_host::Place::here()
#define __global__
#define __device__
#define __host__
#define __constant__ static const
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __restrict__ __restrict
#define __align__(bytes) alignas(bytes)
#define __CUDA_ALIGN__(bytes) alignas(bytes)

struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(8) int2 { int x, y; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(8) uint2 { unsigned x, y; };
struct uint3 { unsigned x, y, z; };
struct alignas(16) uint4 { unsigned x, y, z, w; };

inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline int2 make_int2(int x, int y) { return {x, y}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

#define PAGED_HOST_MIN_MAX(Type)                                \
    inline Type min(Type a, Type b) { return b < a ? b : a; }   \
    inline Type max(Type a, Type b) { return a < b ? b : a; }
PAGED_HOST_MIN_MAX(int)
PAGED_HOST_MIN_MAX(unsigned)
PAGED_HOST_MIN_MAX(long)
PAGED_HOST_MIN_MAX(unsigned long)
PAGED_HOST_MIN_MAX(long long)
PAGED_HOST_MIN_MAX(unsigned long long)
#undef PAGED_HOST_MIN_MAX
// A number wins over NaN, as on the device.
inline float min(float a, float b) { return std::fmin(a, b); }
inline float max(float a, float b) { return std::fmax(a, b); }

inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float __log2f(float x) { return std::log2(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __frcp_rn(float a) { return 1.0f / a; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline int __float_as_int(float x) { return paged_host::bits_as<int>(x); }
inline unsigned __float_as_uint(float x) { return paged_host::bits_as<unsigned>(x); }
inline float __int_as_float(int x) { return paged_host::bits_as<float>(x); }
inline float __uint_as_float(unsigned x) { return paged_host::bits_as<float>(x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
inline int __ffs(int x) { return __builtin_ffs(x); }

template <typename T>
inline T __ldg(const T* address) { return *address; }

inline void __syncthreads(PAGED_HOST_PLACE) { paged_host::barrier(place); }
inline void __threadfence() { paged_host::pause(); }
inline void __threadfence_block() { paged_host::pause(); }

inline void __syncwarp(unsigned mask = 0xffffffffu, PAGED_HOST_PLACE) {
    paged_host::collective(paged_host::Collective::syncwarp, mask, nullptr, place);
}

namespace paged_host {

template <typename T>
inline T shuffle(unsigned mask, T value, unsigned source, Place place) {
    static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
    Shuffle operands{0, source};
    std::memcpy(&operands.value, &value, sizeof(T));
    collective(Collective::shuffle, mask, &operands, place);
    std::memcpy(&value, &operands.value, sizeof(T));
    return value;
}

inline unsigned ballot(unsigned mask, bool predicate, Place place) {
    Ballot operands{predicate, 0};
    collective(Collective::ballot, mask, &operands, place);
    return operands.votes;
}

inline unsigned lane() { return threadIdx.x % 32; }

}  // namespace paged_host

template <typename T>
inline T __shfl_sync(unsigned mask, T value, int source, int width = 32, PAGED_HOST_PLACE) {
    unsigned segment = paged_host::lane() & ~(width - 1u);
    return paged_host::shuffle(mask, value, segment | (static_cast<unsigned>(source) & (width - 1u)), place);
}

template <typename T>
inline T __shfl_xor_sync(unsigned mask, T value, int other, int width = 32, PAGED_HOST_PLACE) {
    unsigned lane = paged_host::lane(), source = lane ^ static_cast<unsigned>(other);
    return paged_host::shuffle(mask, value, source > (lane | (width - 1u)) ? lane : source, place);
}

template <typename T>
inline T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32, PAGED_HOST_PLACE) {
    unsigned lane = paged_host::lane(), source = lane + by;
    return paged_host::shuffle(mask, value, source > (lane | (width - 1u)) ? lane : source, place);
}

template <typename T>
inline T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32, PAGED_HOST_PLACE) {
    unsigned lane = paged_host::lane();
    return paged_host::shuffle(mask, value, (lane & (width - 1u)) < by ? lane : lane - by, place);
}

inline unsigned __ballot_sync(unsigned mask, int predicate, PAGED_HOST_PLACE) {
    return paged_host::ballot(mask, predicate != 0, place);
}

inline int __any_sync(unsigned mask, int predicate, PAGED_HOST_PLACE) {
    return paged_host::ballot(mask, predicate != 0, place) != 0;
}

inline int __all_sync(unsigned mask, int predicate, PAGED_HOST_PLACE) {
    return paged_host::ballot(mask, predicate != 0, place) == mask;
}

// One fiber runs at a time: plain reads and writes are atomic. The pause lets others come between two of them.
#define PAGED_HOST_ATOMIC(name, expression)   \
    template <typename T>                     \
    inline T name(T* address, T value) {      \
        paged_host::pause();                  \
        T old = *address;                     \
        *address = (expression);              \
        return old;                           \
    }
PAGED_HOST_ATOMIC(atomicExch, value)
PAGED_HOST_ATOMIC(atomicAdd, old + value)
PAGED_HOST_ATOMIC(atomicSub, old - value)
PAGED_HOST_ATOMIC(atomicMax, old < value ? value : old)
PAGED_HOST_ATOMIC(atomicMin, value < old ? value : old)
PAGED_HOST_ATOMIC(atomicOr, old | value)
PAGED_HOST_ATOMIC(atomicAnd, old & value)
PAGED_HOST_ATOMIC(atomicInc, old >= value ? T(0) : old + 1)
#undef PAGED_HOST_ATOMIC

template <typename T>
inline T atomicCAS(T* address, T compare, T value) {
    paged_host::pause();
    T old = *address;
    if (old == compare) *address = value;
    return old;
}
