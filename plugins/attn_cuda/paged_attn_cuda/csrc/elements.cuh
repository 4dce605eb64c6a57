// Element types of activations (float, bf16, fp16) and caches (these and e4m3), and vectors of them.
#pragma once

#include "device.cuh"

namespace paged {

struct bf16 {
    uint16_t bits;
};
struct fp16 {
    uint16_t bits;
};
struct e4m3 {
    uint8_t bits;
};

template <class T>
struct Element;

template <>
struct Element<float> {
    static __device__ __forceinline__ float read(float x) { return x; }
    static __device__ __forceinline__ float rounded(float x) { return x; }
};

template <>
struct Element<bf16> {
    static __device__ __forceinline__ float read(bf16 x) { return device::from_bf16(x.bits); }
    static __device__ __forceinline__ bf16 rounded(float x) { return {device::to_bf16(x)}; }
    static __device__ __forceinline__ uint32_t pack(float lo, float hi) { return device::pack_bf16(lo, hi); }
    static __device__ __forceinline__ void widen(uint32_t word, uint32_t& even, uint32_t& odd) {
        device::widen_bf16(word, even, odd);
    }
    static __device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
        device::mma_bf16(d, a, b);
    }
};

template <>
struct Element<fp16> {
    static __device__ __forceinline__ float read(fp16 x) { return device::from_f16(x.bits); }
    static __device__ __forceinline__ fp16 rounded(float x) { return {device::to_f16(x)}; }
    static __device__ __forceinline__ uint32_t pack(float lo, float hi) { return device::pack_f16(lo, hi); }
    static __device__ __forceinline__ void widen(uint32_t word, uint32_t& even, uint32_t& odd) {
        device::widen_f16(word, even, odd);
    }
    static __device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
        device::mma_f16(d, a, b);
    }
};

template <>
struct Element<e4m3> {
    static __device__ __forceinline__ float read(e4m3 x) { return device::from_e4m3(x.bits); }
    static __device__ __forceinline__ e4m3 rounded(float x) { return {device::to_e4m3(x)}; }
};

template <class A, class B>
struct Same {
    static constexpr bool value = false;
};
template <class A>
struct Same<A, A> {
    static constexpr bool value = true;
};

// What probabilities and values meet as: e4m3 fits into fp16 exactly, and probabilities keep more of their bits there.
template <class T, class C>
struct Weights {
    using type = T;
};
template <class T>
struct Weights<T, e4m3> {
    using type = fp16;
};
template <>
struct Weights<float, e4m3> {
    using type = float;
};

// N elements that lie together, aligned to their size.
template <class T, int N>
struct alignas(sizeof(T) * N) Vector {
    T element[N];
};

template <class T, int N>
__device__ __forceinline__ void load_vector(const T* from, float (&x)[N]) {
    Vector<T, N> v = *reinterpret_cast<const Vector<T, N>*>(from);
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] = Element<T>::read(v.element[i]);
}

template <class T, int N>
__device__ __forceinline__ void store_vector(T* to, const float (&x)[N]) {
    Vector<T, N> v;
#pragma unroll
    for (int i = 0; i < N; ++i) v.element[i] = Element<T>::rounded(x[i]);
    *reinterpret_cast<Vector<T, N>*>(to) = v;
}

template <class T>
__device__ __forceinline__ T minimum(T a, T b) {
    return a < b ? a : b;
}

template <class T>
__device__ __forceinline__ T maximum(T a, T b) {
    return a < b ? b : a;
}

__device__ __forceinline__ int ceil_divide(int a, int b) {
    return (a + b - 1) / b;
}

constexpr float MINUS_INFINITY = __builtin_bit_cast(float, 0xff800000u);
constexpr float LOG2_E = 1.4426950408889634f;
constexpr float LN_2 = 0.6931471805599453f;
constexpr unsigned ALL_LANES = 0xffffffffu;
constexpr int WARP = 32;

// The cache of a layer is [blocks, 2, kv_heads, block_size, head_dim]; index 0 of the second axis holds keys, 1 values.
// Elements from keys to the values of the same block, and from block to block:
__device__ __forceinline__ int64_t values_offset(int num_kv_heads, int block_shift, int head_dim) {
    return (static_cast<int64_t>(num_kv_heads) << block_shift) * head_dim;
}

// A sequence's visible keys are cut into `used` ranges of `each` keys. Decode and merge must agree, so both ask here.
constexpr int SPLIT_UNIT = 128;  // keys; a range is a multiple of it, and of every tile

struct Ranges {
    int begin;  // of the first range; keys before the window may lie behind it, they are masked
    int each;
    int used;
};

__device__ __forceinline__ Ranges split_keys(int length, int window, int num_splits) {
    Ranges r;
    r.begin = maximum(0, length - window) & ~31;
    int units = ceil_divide(length - r.begin, SPLIT_UNIT);
    int per_range = ceil_divide(units, minimum(units, num_splits));
    r.each = per_range * SPLIT_UNIT;
    r.used = ceil_divide(units, per_range);
    return r;
}

}  // namespace paged
