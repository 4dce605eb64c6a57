// c += a . b of one warp: a [16, 16], b [16, 8] in 16 bits, c [16, 8] in float.
#include "cuda_host.h"

namespace matrix {

using namespace paged::device;

template <bool Bf16>
inline void multiply(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    if (Bf16) {
        mma_bf16(d, a, b);
    } else {
        mma_f16(d, a, b);
    }
}

// Fragments number by number, in the words of the PTX manual for m16n8k16.
template <bool Bf16>
__global__ void by_number(const uint16_t* a, const uint16_t* b, float* c) {
    int group = threadIdx.x >> 2, thread_in_group = threadIdx.x % 4;
    uint16_t a_numbers[8], b_numbers[4];
    float d[4];
    for (int i = 0; i < 8; ++i) {
        int row = i < 2 || (4 <= i && i < 6) ? group : group + 8;
        int column = thread_in_group * 2 + (i & 1) + (i >= 4 ? 8 : 0);
        a_numbers[i] = a[row * 16 + column];
    }
    for (int i = 0; i < 4; ++i) {
        int row = thread_in_group * 2 + (i & 1) + (i >= 2 ? 8 : 0);
        b_numbers[i] = b[row * 8 + group];
    }
    for (int i = 0; i < 4; ++i) d[i] = c[(i < 2 ? group : group + 8) * 8 + thread_in_group * 2 + (i & 1)];
    uint32_t a_registers[4], b_registers[2];
    std::memcpy(a_registers, a_numbers, sizeof a_registers);
    std::memcpy(b_registers, b_numbers, sizeof b_registers);
    multiply<Bf16>(d, a_registers, b_registers);
    for (int i = 0; i < 4; ++i) c[(i < 2 ? group : group + 8) * 8 + thread_in_group * 2 + (i & 1)] = d[i];
}

// Fragments by ldmatrix, as kernels use it: a as it lies, b [16, 16] (two products side by side) transposed.
template <bool Bf16>
__global__ void by_ldmatrix(const uint16_t* a, const uint16_t* b, float* c) {
    PAGED_SHARED(uint16_t, a_tile, 256);
    PAGED_SHARED(uint16_t, b_tile, 256);
    unsigned lane = threadIdx.x;
    store16(a_tile + lane * 8, load16(a + lane * 8));
    store16(b_tile + lane * 8, load16(b + lane * 8));
    __syncwarp();
    uint32_t a_registers[4], b_registers[4];
    ldmatrix_x4(a_registers, a_tile + lane % 16 * 16 + lane / 16 * 8);
    ldmatrix_x4_trans(b_registers, b_tile + lane % 16 * 16 + lane / 16 * 8);
    for (int half = 0; half < 2; ++half) {
        float d[4] = {};
        uint32_t own[2] = {b_registers[half * 2], b_registers[half * 2 + 1]};
        multiply<Bf16>(d, a_registers, own);
        for (int i = 0; i < 4; ++i) c[(lane / 4 + i / 2 * 8) * 16 + half * 8 + lane % 4 * 2 + i % 2] = d[i];
    }
}

// The registers of both kinds of ldmatrix: y[transposed][lane][register], from a tile [32, 8].
__global__ void registers(const uint16_t* x, uint32_t* y) {
    PAGED_SHARED(uint16_t, tile, 256);
    unsigned lane = threadIdx.x;
    store16(tile + lane * 8, load16(x + lane * 8));
    __syncwarp();
    uint32_t r[4];
    ldmatrix_x4(r, tile + lane * 8);
    for (int i = 0; i < 4; ++i) y[lane * 4 + i] = r[i];
    ldmatrix_x4_trans(r, tile + lane * 8);
    for (int i = 0; i < 4; ++i) y[128 + lane * 4 + i] = r[i];
}

}  // namespace matrix
