// Small kernels on which the emulation itself is tested.
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

}  // namespace basics
