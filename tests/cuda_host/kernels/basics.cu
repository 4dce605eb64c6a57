// Small sound kernels: what a block may do.
#include "cuda_host.h"

namespace basics {

// One sum a block of 128 numbers: within warps by shuffles, then over the warps' sums in shared memory.
__global__ void sum(const float* x, float* sums) {
    PAGED_SHARED(float, of_warps, 4);
    float value = x[blockIdx.x * blockDim.x + threadIdx.x];
    for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = value;
    __syncthreads();
    if (threadIdx.x == 0) sums[blockIdx.x] = (of_warps[0] + of_warps[1]) + (of_warps[2] + of_warps[3]);
}

// Tiles of 32 x 32 through shared memory; 8 rows of threads.
__global__ void transpose(const float* x, float* y, int rows, int columns) {
    PAGED_DYNAMIC_SHARED(bytes);
    float(*tile)[33] = reinterpret_cast<float(*)[33]>(bytes);
    int lane = threadIdx.x % 32, first = threadIdx.x / 32;
    for (int i = first; i < 32; i += 8) {
        int row = blockIdx.y * 32 + i, column = blockIdx.x * 32 + lane;
        if (row < rows && column < columns) tile[i][lane] = x[row * columns + column];
    }
    __syncthreads();
    for (int i = first; i < 32; i += 8) {
        int row = blockIdx.x * 32 + i, column = blockIdx.y * 32 + lane;
        if (row < columns && column < rows) y[row * rows + column] = tile[lane][i];
    }
}

// What every lane gets from each kind of shuffle and vote: y[kind][lane].
__global__ void exchange(const int* x, int* y) {
    int lane = static_cast<int>(threadIdx.x), value = x[lane];
    y[0 * 32 + lane] = __shfl_sync(0xffffffffu, value, 5);
    y[1 * 32 + lane] = __shfl_sync(0xffffffffu, value, 3, 8);
    y[2 * 32 + lane] = __shfl_xor_sync(0xffffffffu, value, 16);
    y[3 * 32 + lane] = __shfl_down_sync(0xffffffffu, value, 4);
    y[4 * 32 + lane] = __shfl_down_sync(0xffffffffu, value, 4, 8);
    y[5 * 32 + lane] = __shfl_up_sync(0xffffffffu, value, 2);
    y[6 * 32 + lane] = static_cast<int>(__ballot_sync(0xffffffffu, value > 50));
    y[7 * 32 + lane] = __any_sync(0xffffffffu, value == x[7]);
    y[8 * 32 + lane] = __all_sync(0xffffffffu, value == x[7]);
    if (lane < 16) y[9 * 32 + lane] = static_cast<int>(__ballot_sync(0x0000ffffu, 1));
    if (lane >= 16) y[9 * 32 + lane] = __shfl_sync(0xffff0000u, value, 20);
}

__global__ void count(const int* x, int* counts, int* largest, int num) {
    for (int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); i < num; i += gridDim.x * blockDim.x) {
        atomicAdd(&counts[x[i]], 1);
        atomicMax(largest, x[i]);
    }
}

// Two buffers of 16 bytes a thread: while one group is on its way, the one before it is added up.
__global__ void stream(const float* x, float* sums, int steps) {
    PAGED_DYNAMIC_SHARED(bytes);
    float* buffers = reinterpret_cast<float*>(bytes);
    unsigned thread = threadIdx.x, threads = blockDim.x;
    auto fetch = [&](int step) {
        float* target = buffers + (step % 2 * threads + thread) * 4;
        paged::device::cp_async_16(target, x + (step * threads + thread) * 4, step < steps);
        paged::device::cp_async_commit();
    };
    float total = 0.0f;
    fetch(0);
    for (int step = 0; step < steps; ++step) {
        fetch(step + 1);
        paged::device::cp_async_wait<1>();
        __syncthreads();
        const float* source = buffers + (step % 2 * threads + (thread + 1) % threads) * 4;
        for (int i = 0; i < 4; ++i) total += source[i];
        __syncthreads();
    }
    sums[thread] = total;
}

__global__ void where(int* x) {
    x[((blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x) * blockDim.x + threadIdx.x] =
        static_cast<int>(blockIdx.x + 10 * blockIdx.y + 100 * blockIdx.z + 1000 * threadIdx.x);
}

struct Pair {
    int first;
    float second;
};

__global__ void parameters(const float* a, float b, int c, int64_t d, Pair e, double* result) {
    *result = a[0] + 10.0 * b + 100.0 * c + 1000.0 * static_cast<double>(d) + 10000.0 * e.first + 100000.0 * e.second;
}

}  // namespace basics
