// Kernels with one mistake each, behind a switch where the sound twin is of interest.
#include "cuda_host.h"

namespace faults {

using namespace paged::device;

constexpr unsigned all = 0xffffffffu;

// Each thread reads what the thread opposite has written.
template <bool Barrier>
__global__ void mirror(const float* x, float* y) {
    PAGED_SHARED(float, values, 256);
    unsigned thread = threadIdx.x;
    values[thread] = x[thread];
    if (Barrier) __syncthreads();
    y[thread] = values[blockDim.x - 1 - thread];
}

// The same within a warp.
template <bool Barrier>
__global__ void neighbour(const float* x, float* y) {
    PAGED_SHARED(float, values, 32);
    unsigned lane = threadIdx.x;
    values[lane] = x[lane];
    if (Barrier) __syncwarp();
    y[lane] = values[(lane + 1) % 32];
}

// A buffer is used twice: without the second barrier some are still reading when others write.
template <bool Barrier>
__global__ void reuse(const float* x, float* y) {
    PAGED_SHARED(float, values, 256);
    unsigned thread = threadIdx.x, opposite = blockDim.x - 1 - thread;
    float total = 0.0f;
    for (int step = 0; step < 3; ++step) {
        values[thread] = x[thread] * static_cast<float>(step);
        __syncthreads();
        total += values[opposite];
        if (Barrier) __syncthreads();
    }
    y[thread] = total;
}

template <int InFlight>
__global__ void fetch(const float* x, float* y) {
    PAGED_SHARED(vec16, buffer, 64);
    unsigned thread = threadIdx.x;
    cp_async_16(&buffer[thread], x + thread * 4, true);
    cp_async_commit();
    if (InFlight >= 0) cp_async_wait<(InFlight >= 0 ? InFlight : 0)>();
    __syncthreads();
    const float* values = reinterpret_cast<const float*>(buffer);
    for (unsigned i = 0; i < 4; ++i) y[thread * 4 + i] = values[thread * 4 + i];
}

// A copy is begun into what other threads still read.
template <bool Barrier>
__global__ void overwrite(const float* x, float* y) {
    PAGED_SHARED(vec16, buffer, 64);
    unsigned thread = threadIdx.x, other = (thread + 32) % 64;
    store16(&buffer[thread], load16(x + thread * 4));
    __syncthreads();
    store16(y + thread * 4, buffer[other]);
    if (Barrier) __syncthreads();
    cp_async_16(&buffer[thread], x + thread * 4, false);
    cp_async_commit();
    cp_async_wait<0>();
}

// Lanes that multiply or shuffle wait for each other; what they wrote is not ordered by that.
template <int Meet>
__global__ void matrices_of_others(const float* x) {
    PAGED_SHARED(vec16, buffer, 32);
    std::uint32_t r[4];
    store16(&buffer[threadIdx.x], load16(x + threadIdx.x * 4));
    if (Meet == 1) __shfl_xor_sync(all, 1, 1);
    if (Meet == 2) __syncwarp();
    if (Meet == 3) __syncthreads();
    ldmatrix_x4(r, &buffer[(threadIdx.x + 1) % 32]);
}

// A warp has met, but not the block.
template <bool Barrier>
__global__ void vectors_of_another_warp(const float* x, float* y) {
    PAGED_SHARED(vec16, buffer, 64);
    unsigned thread = threadIdx.x;
    cp_async_16(&buffer[thread], x + thread * 4, true);
    cp_async_commit();
    cp_async_wait<0>();
    __syncwarp();
    store16(y + thread * 4, load16(&buffer[thread ^ 1]));
    if (Barrier) __syncthreads();
    store16(y + thread * 4, load16(&buffer[thread ^ 32]));
}

__global__ void part_of_the_block_meets() {
    if (threadIdx.x < 64) __syncthreads();
}

__global__ void meets_after_a_return() {
    if (threadIdx.x == 70) return;
    __syncthreads();
}

__global__ void two_barriers() {
    if (threadIdx.x % 2 == 0) {
        __syncthreads();
    } else {
        __syncthreads();
    }
}

__global__ void half_a_warp_shuffles(int* y) {
    if (threadIdx.x < 16) y[threadIdx.x] = __shfl_xor_sync(all, 1, 1);
}

__global__ void shuffle_meets_vote(int* y) {
    if (threadIdx.x < 16) {
        y[threadIdx.x] = __shfl_xor_sync(all, 1, 1);
    } else {
        y[threadIdx.x] = __any_sync(all, 1);
    }
}

__global__ void shuffle_meets_barrier(int* y) {
    if (threadIdx.x < 16) {
        y[threadIdx.x] = __shfl_xor_sync(all, 1, 1);
    } else {
        __syncthreads();
    }
}

__global__ void reads_a_lane_outside(int* y) {
    if (threadIdx.x < 16) y[threadIdx.x] = __shfl_sync(0xffffu, 1, 20);
}

__global__ void forgets_itself() { __syncwarp(1u << (threadIdx.x + 1) % 32); }

__global__ void reads_global(const float* x, float* y, int offset) {
    y[threadIdx.x] = x[static_cast<int>(threadIdx.x) + offset];
}

__global__ void writes_global(float* y, int offset) { y[static_cast<int>(threadIdx.x) + offset] = 1.0f; }

__global__ void copies_global(const float* x) {
    PAGED_SHARED(vec16, buffer, 32);
    cp_async_16(&buffer[threadIdx.x], x + threadIdx.x * 4, true);
}

__global__ void touches_dynamic(float* y, int offset) {
    PAGED_DYNAMIC_SHARED(bytes);
    float* values = reinterpret_cast<float*>(bytes);
    values[offset] = 1.0f;
    y[0] = values[offset];
}

__global__ void touches_static(float* y, int offset) {
    PAGED_SHARED(float, values, 64);
    values[offset] = 1.0f;
    y[0] = values[offset];
}

__global__ void reads_what_nobody_wrote(float* y) {
    PAGED_SHARED(float, values, 64);
    y[threadIdx.x] = values[threadIdx.x];
}

__global__ void loads_askew(const float* x, float* y, int offset) { store16(y, load16(x + offset)); }

__global__ void stores_askew(const float* x, float* y, int offset) { store16(y + offset, load16(x)); }

__global__ void copies_askew(const float* x, int offset) {
    PAGED_SHARED(float, buffer, 64);
    cp_async_16(buffer + offset, x, true);
}

__global__ void copies_to_global(const float* x, float* y) { cp_async_16(y, x, true); }

__global__ void matrices_askew(int offset) {
    PAGED_SHARED(float, buffer, 256);
    std::uint32_t r[4];
    ldmatrix_x4(r, buffer + threadIdx.x * 4 + offset);
}

__global__ void matrices_of_global(const float* x) {
    std::uint32_t r[4];
    ldmatrix_x4_trans(r, x + threadIdx.x * 4);
}

__global__ void half_a_warp_multiplies() {
    float d[4] = {};
    std::uint32_t a[4] = {}, b[2] = {};
    if (threadIdx.x < 16) mma_bf16(d, a, b);
}

__global__ void divides(int* y, int by) { y[0] = 100 / by; }

__noinline__ int deeper(int depth, volatile int* y) {
    volatile char frame[1024];
    frame[depth % 1024] = 1;
    return depth == 0 ? frame[0] : deeper(depth - 1, y) + frame[depth % 1024] + y[0];
}

__global__ void recurses(int* y, int depth) { y[1] = deeper(depth, y); }

// Within the thread's own array: the guard pages cannot see it, `sanitize` does.
__global__ void indexes(float* y, int index) {
    float registers[4] = {1.0f, 2.0f, 3.0f, 4.0f};
    for (int i = 0; i < 4; ++i) registers[i] += y[i];
    y[0] = registers[index];
}

// The last block to write wins: depends on the order of blocks.
__global__ void last_block(int* y) { y[0] = static_cast<int>(blockIdx.x); }

}  // namespace faults
