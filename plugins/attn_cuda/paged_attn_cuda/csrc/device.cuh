// What differs between a GPU and the emulation on the host. Everything else in this folder is plain C++17.
//
// namespace paged::device (the emulation's cuda_host.h defines the same names):
//   vec16 {uint32_t word[4]}; load16, load16_streaming, store16                     16 bytes, aligned; global or shared
//   cp_async_16(shared, global, valid), cp_async_commit(), cp_async_wait<N>()       zeros when !valid: global not touched
//   ldmatrix_x4(r, row), ldmatrix_x4_trans(r, row)                                  row: this lane's 16 bytes of shared
//   mma_bf16(d, a, b), mma_f16(d, a, b)                                             m16n8k16, d += a * b in float
//   pack_bf16(lo, hi), pack_f16(lo, hi)                                             two floats, rounded to nearest even
//   from_bf16, from_f16, to_bf16, to_f16, from_e4m3, to_e4m3                        to_*: nearest even; e4m3 ends at 448
//   widen_bf16(word, even, odd), widen_f16(word, even, odd)                         four e4m3 (exact, NaN stays NaN): bytes
//                                                                                   0 and 2 to even's lo and hi, 1 and 3 to odd
//   exp2_fast(x), log2_fast(x)                                                      ex2.approx.ftz, lg2.approx.ftz
// macros:   PAGED_SHARED(type, name, count), PAGED_DYNAMIC_SHARED(name)  (name: unsigned char*, aligned to 16 bytes)
// globals:  threadIdx.x, blockIdx.{x,y,z}, gridDim.x, __syncthreads(), __syncwarp(), __shfl_xor_sync, __shfl_sync,
//           __any_sync, __ldg, fmaxf, fminf, fmaf, __global__, __device__, __forceinline__, __launch_bounds__, uintN_t
#pragma once

#ifdef PAGED_HOST
#include "cuda_host.h"
#else

typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
typedef int int32_t;
typedef long long int64_t;

#include "narrow.cuh"

#define PAGED_SHARED(type, name, count) __shared__ type name[count]
#define PAGED_DYNAMIC_SHARED(name) extern __shared__ __align__(16) unsigned char name[]

namespace paged {
namespace device {

struct alignas(16) vec16 {
    uint32_t word[4];
};

// Memory: 16 bytes at a time.

__device__ __forceinline__ vec16 load16(const void* from) {
    return *static_cast<const vec16*>(from);
}

__device__ __forceinline__ vec16 load16_streaming(const void* from) {  // read once: leaves the first cache alone
    vec16 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
                 : "l"(from));
    return v;
}

__device__ __forceinline__ void store16(void* to, vec16 value) {
    *static_cast<vec16*>(to) = value;
}

__device__ __forceinline__ uint32_t shared_address(const void* shared) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

__device__ __forceinline__ void cp_async_16(void* shared, const void* global, bool valid) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared_address(shared)),
                 "l"(global), "r"(valid ? 16 : 0)
                 : "memory");
}

__device__ __forceinline__ void cp_async_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int N>
__device__ __forceinline__ void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// Matrices: fragments of 8 x 8 halves from shared memory, and their products.

__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], const void* shared_row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(shared_row))
                 : "memory");
}

__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], const void* shared_row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(shared_row))
                 : "memory");
}

__device__ __forceinline__ void mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ __forceinline__ void mma_f16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Numbers.

__device__ __forceinline__ uint32_t pack_bf16(float lo, float hi) {
    uint32_t packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(hi), "f"(lo));
    return packed;
}

__device__ __forceinline__ uint32_t pack_f16(float lo, float hi) {
    uint32_t packed;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(hi), "f"(lo));
    return packed;
}

__device__ __forceinline__ float from_bf16(uint16_t bits) {
    return __uint_as_float(static_cast<uint32_t>(bits) << 16);
}

__device__ __forceinline__ float from_f16(uint16_t bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

__device__ __forceinline__ uint16_t to_bf16(float value) {
    uint16_t bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

__device__ __forceinline__ uint16_t to_f16(float value) {
    uint16_t bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

__device__ __forceinline__ float from_e4m3(uint8_t bits) {
    return narrow::from_e4m3(bits);
}

__device__ __forceinline__ uint8_t to_e4m3(float value) {
#if __CUDA_ARCH__ >= 890
    uint16_t pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(value));
    return static_cast<uint8_t>(pair);
#else
    return narrow::to_e4m3(value);
#endif
}

__device__ __forceinline__ void widen_f16(uint32_t word, uint32_t& even, uint32_t& odd) {
#if __CUDA_ARCH__ >= 890
    uint32_t sorted = __byte_perm(word, 0, 0x3120);
    asm("{.reg .b16 lo, hi;\n mov.b32 {lo, hi}, %2;\n cvt.rn.f16x2.e4m3x2 %0, lo;\n cvt.rn.f16x2.e4m3x2 %1, hi;}"
        : "=r"(even), "=r"(odd)
        : "r"(sorted));
#else
    asm("mul.f16x2 %0, %1, %2;" : "=r"(even) : "r"(narrow::moved_f16(word << 8)), "r"(narrow::BIAS_F16));
    asm("mul.f16x2 %0, %1, %2;" : "=r"(odd) : "r"(narrow::moved_f16(word)), "r"(narrow::BIAS_F16));
    even |= narrow::nan_lanes(word << 8), odd |= narrow::nan_lanes(word);
#endif
}

__device__ __forceinline__ void widen_bf16(uint32_t word, uint32_t& even, uint32_t& odd) {
#if __CUDA_ARCH__ >= 890
    uint32_t e, o;
    widen_f16(word, e, o);
    even = pack_bf16(from_f16(static_cast<uint16_t>(e)), from_f16(static_cast<uint16_t>(e >> 16)));
    odd = pack_bf16(from_f16(static_cast<uint16_t>(o)), from_f16(static_cast<uint16_t>(o >> 16)));
#else
    const uint32_t minus_zero = 0x80008000u;  // added to a product it keeps the sign of zero
    asm("fma.rn.bf16x2 %0, %1, %2, %3;"
        : "=r"(even)
        : "r"(narrow::moved_bf16(word << 8)), "r"(narrow::BIAS_BF16), "r"(minus_zero));
    asm("fma.rn.bf16x2 %0, %1, %2, %3;"
        : "=r"(odd)
        : "r"(narrow::moved_bf16(word)), "r"(narrow::BIAS_BF16), "r"(minus_zero));
    even |= narrow::nan_lanes(word << 8), odd |= narrow::nan_lanes(word);
#endif
}

__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ float log2_fast(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

}  // namespace device
}  // namespace paged
#endif
