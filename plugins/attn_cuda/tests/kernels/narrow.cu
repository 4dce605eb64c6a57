// What devices before sm_89 do by hand, for tests on the host.
#include "cuda_host.h"

#include "../../paged_attn_cuda/csrc/narrow.cuh"

namespace narrow_test {

__global__ void narrowed(const float* x, uint8_t* codes, int count) {
    int i = blockIdx.x * 128 + threadIdx.x;
    if (i < count) codes[i] = paged::narrow::to_e4m3(x[i]);
}

__global__ void widened(const uint8_t* codes, float* x, int count) {
    int i = blockIdx.x * 128 + threadIdx.x;
    if (i < count) x[i] = paged::narrow::from_e4m3(codes[i]);
}

// Halves before their product with the bias, and what is put into them afterwards.
__global__ void moved(const uint32_t* words, uint32_t* bf16, uint32_t* f16, uint32_t* nan, int count) {
    int i = blockIdx.x * 128 + threadIdx.x;
    if (i >= count) return;
    bf16[i] = paged::narrow::moved_bf16(words[i]);
    f16[i] = paged::narrow::moved_f16(words[i]);
    nan[i] = paged::narrow::nan_lanes(words[i]);
}

}  // namespace narrow_test
