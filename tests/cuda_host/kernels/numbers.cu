// Conversions and math, one number a thread.
#include "cuda_host.h"

namespace numbers {

using namespace paged::device;

inline unsigned index() { return blockIdx.x * blockDim.x + threadIdx.x; }

__global__ void widen_bf16(const uint16_t* x, float* y) { y[index()] = from_bf16(x[index()]); }
__global__ void widen_f16(const uint16_t* x, float* y) { y[index()] = from_f16(x[index()]); }
__global__ void widen_e4m3(const uint8_t* x, float* y) { y[index()] = from_e4m3(x[index()]); }
__global__ void narrow_bf16(const float* x, uint16_t* y) { y[index()] = to_bf16(x[index()]); }
__global__ void narrow_f16(const float* x, uint16_t* y) { y[index()] = to_f16(x[index()]); }
__global__ void narrow_e4m3(const float* x, uint8_t* y) { y[index()] = to_e4m3(x[index()]); }

__global__ void pack_pairs_bf16(const float* x, uint32_t* y) {
    y[index()] = pack_bf16(x[2 * index()], x[2 * index() + 1]);
}
__global__ void pack_pairs_f16(const float* x, uint32_t* y) {
    y[index()] = pack_f16(x[2 * index()], x[2 * index() + 1]);
}

__global__ void widen_four_bf16(const uint32_t* x, uint32_t* y) {
    paged::device::widen_bf16(x[index()], y[2 * index()], y[2 * index() + 1]);
}
__global__ void widen_four_f16(const uint32_t* x, uint32_t* y) {
    paged::device::widen_f16(x[index()], y[2 * index()], y[2 * index() + 1]);
}

__global__ void math(const float* x, float* y, int num) {
    unsigned i = index();
    y[i] = exp2_fast(x[i]);
    y[num + i] = log2_fast(x[i]);
    y[2 * num + i] = fmaf(x[i], x[i], -1.0f);
    y[3 * num + i] = x[i] * x[i] - 1.0f;
    y[4 * num + i] = max(x[i], 0.5f);
}

}  // namespace numbers
