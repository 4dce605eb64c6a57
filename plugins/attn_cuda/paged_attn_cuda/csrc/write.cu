// write: keys and values of a step to their slots, in one launch a layer; with rope, keys and queries are rotated first.
//
// A block of threads serves one token (blockIdx.x) and THREADS of its units (blockIdx.y). A unit is N neighbouring
// elements of a head, or, where it is rotated, N elements and their N partners `half` further on:
//
//   q heads (with rope only)                    k heads                                     v heads
//   | half / N pairs | (head_dim - 2 half) / N | half / N pairs | (head_dim - 2 half) / N | head_dim / N |  units a head
#include "elements.cuh"

namespace paged {

constexpr int WRITE_THREADS = 128;

// x -> what the cache holds of it: divided by the head's scale, rounded to T before and to C after.
template <class T, class C, int N>
__device__ __forceinline__ void store_scaled(C* to, float (&x)[N], float scale) {
    if (scale != 1.0f) {
#pragma unroll
        for (int i = 0; i < N; ++i) x[i] = x[i] / scale;
    }
    store_vector<C, N>(to, x);
}

template <class T, int N>
__device__ __forceinline__ void round_to(float (&x)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] = Element<T>::read(Element<T>::rounded(x[i]));
}

// (first, second) turned by the angles whose cosines and sines are given; products in float, rounded once.
template <class T, int N>
__device__ __forceinline__ void rotate(float (&first)[N], float (&second)[N], const float* cos, const float* sin) {
    constexpr int WIDTH = N < 4 ? N : 4;  // of vectors of cosines
#pragma unroll
    for (int begin = 0; begin < N; begin += WIDTH) {
        float c[WIDTH], s[WIDTH];
        load_vector<float, WIDTH>(cos + begin, c);
        load_vector<float, WIDTH>(sin + begin, s);
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) {
            const float a = first[begin + i], b = second[begin + i];
            first[begin + i] = a * c[i] - b * s[i];
            second[begin + i] = b * c[i] + a * s[i];
        }
    }
    round_to<T, N>(first);
    round_to<T, N>(second);
}

template <class T, class C, int N>
__global__ void __launch_bounds__(WRITE_THREADS) write(
    // activations: q, k, v [tokens, heads, head_dim], strided over tokens; rotated [tokens, num_heads, head_dim]
    const T* q, const T* k, const T* v, int64_t stride_q, int64_t stride_k, int64_t stride_v, T* rotated,
    // cache, slots [tokens]; scales [2, kv_heads]: of keys, then of values
    C* cache, const int64_t* slots, const float* scales,
    // rope: cos and sin [tokens, half], strided over tokens; half 0: none
    const float* cos, const float* sin, int64_t stride_cos, int64_t stride_sin, int half,
    int num_heads, int num_kv_heads, int head_dim, int block_shift) {
    const int token = blockIdx.x;
    int unit = blockIdx.y * WRITE_THREADS + threadIdx.x;

    // Which unit of which head.
    const int num_pairs = half / N, per_head = num_pairs + (head_dim - 2 * half) / N;
    const int num_rotated = half > 0 ? num_heads : 0;
    int head = unit / per_head, part = unit % per_head;
    const bool is_query = head < num_rotated;
    if (!is_query) head -= num_rotated;
    const bool is_value = !is_query && head >= num_kv_heads;
    if (is_value) {
        unit -= (num_rotated + num_kv_heads) * per_head;
        head = unit / (head_dim / N), part = unit % (head_dim / N);
        if (head >= num_kv_heads) return;
    }
    const bool is_pair = !is_value && part < num_pairs;
    const int dim = is_value || is_pair ? part * N : 2 * half + (part - num_pairs) * N;
    const int64_t slot = is_query ? 0 : slots[token];
    if (slot < 0) return;

    // Read, rotate.
    const T* from = is_query ? q + token * stride_q : is_value ? v + token * stride_v : k + token * stride_k;
    from += static_cast<int64_t>(head) * head_dim + dim;
    float x[N], partner[N];
    load_vector<T, N>(from, x);
    if (is_pair) {
        load_vector<T, N>(from + half, partner);
        rotate<T, N>(x, partner, cos + token * stride_cos + dim, sin + token * stride_sin + dim);
    }

    // Write.
    if (is_query) {
        T* to = rotated + (static_cast<int64_t>(token) * num_heads + head) * head_dim + dim;
        store_vector<T, N>(to, x);
        if (is_pair) store_vector<T, N>(to + half, partner);
        return;
    }
    const int64_t block = slot >> block_shift, offset = slot & ((1 << block_shift) - 1);
    const int64_t plane = (block * 2 + is_value) * num_kv_heads + head;
    C* to = cache + ((plane << block_shift) + offset) * head_dim + dim;
    const float scale = __ldg(scales + is_value * num_kv_heads + head);
    store_scaled<T, C, N>(to, x, scale);
    if (is_pair) store_scaled<T, C, N>(to + half, partner, scale);
}

}  // namespace paged
