// The sizes that the sources work with, for comparison with those that Python launches with.
#include "../../paged_attn_cuda/csrc/shape.cuh"

namespace shapes_test {

template <class T, class C, int DIM>
__device__ void sizes_of(int*& to) {
    using Decode = paged::DecodeShape<T, C, DIM>;
    using Prefill = paged::PrefillShape<T, C, DIM>;
    const int sizes[] = {Decode::WARPS * 32, Decode::SHARED_BYTES, Prefill::WARPS * 32, Prefill::SHARED_BYTES, Prefill::ROWS};
    for (int size : sizes) *to++ = size;
}

template <class T, class C>
__device__ void sizes_of_types(int*& to) {
    sizes_of<T, C, 64>(to);
    sizes_of<T, C, 96>(to);
    sizes_of<T, C, 128>(to);
    sizes_of<T, C, 256>(to);
}

__global__ void sizes(int* to) {  // [6 pairs of types, 4 head sizes, 5]
    sizes_of_types<float, float>(to);
    sizes_of_types<float, paged::e4m3>(to);
    sizes_of_types<paged::bf16, paged::bf16>(to);
    sizes_of_types<paged::bf16, paged::e4m3>(to);
    sizes_of_types<paged::fp16, paged::fp16>(to);
    sizes_of_types<paged::fp16, paged::e4m3>(to);
}

}  // namespace shapes_test
