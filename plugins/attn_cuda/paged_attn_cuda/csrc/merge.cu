// merge: the partial results of decode's splits become out; grid (sequences, num_heads).
//
// Warps take splits in turn, lanes four dimensions each (head_dim is at most 256: two rounds).
#include "elements.cuh"

namespace paged {

constexpr int MERGE_WARPS = 4;
constexpr int MERGE_ROUNDS = 2;

template <class T>
__global__ void __launch_bounds__(MERGE_WARPS* WARP) merge(
    // as in decode
    T* out, float* lse, int64_t stride_out, const float* partial_sums, const float* partial_stats,
    const int32_t* query_start, const int32_t* lengths, int window, int num_splits, int num_heads, int head_dim) {
    PAGED_SHARED(float, sums, MERGE_WARPS* MERGE_ROUNDS * WARP * 4);  // [warps, head_dim]
    PAGED_SHARED(float, stats, MERGE_WARPS * 2);                      // highest, sum
    const int sequence = blockIdx.x, head = blockIdx.y, token = query_start[sequence];
    if (query_start[sequence + 1] - token != 1 || lengths[sequence] <= 0) return;
    const Ranges ranges = split_keys(lengths[sequence], window, num_splits);
    if (ranges.used == 1) return;  // decode wrote it

    // Each warp: its splits one after the other. Without a key: -infinity and zeros.
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    float highest = MINUS_INFINITY, sum = 0.0f, result[MERGE_ROUNDS][4] = {};
    for (int split = warp; split < ranges.used; split += MERGE_WARPS) {
        const int64_t part = (static_cast<int64_t>(sequence) * num_heads + head) * num_splits + split;
        const float split_highest = partial_stats[2 * part], top = fmaxf(highest, split_highest);
        const float base = top == MINUS_INFINITY ? 0.0f : top;
        const float before = device::exp2_fast(highest - base), weight = device::exp2_fast(split_highest - base);
        highest = top;
        sum = sum * before + weight * partial_stats[2 * part + 1];
#pragma unroll
        for (int round = 0; round < MERGE_ROUNDS; ++round) {
            const int dim = (round * WARP + lane) * 4;
            if (dim >= head_dim) break;
            float x[4];
            load_vector<float, 4>(partial_sums + part * head_dim + dim, x);
#pragma unroll
            for (int i = 0; i < 4; ++i) result[round][i] = result[round][i] * before + weight * x[i];
        }
    }
    if (lane == 0) stats[2 * warp] = highest, stats[2 * warp + 1] = sum;
#pragma unroll
    for (int round = 0; round < MERGE_ROUNDS; ++round)
        store_vector<float, 4>(sums + ((warp * MERGE_ROUNDS + round) * WARP + lane) * 4, result[round]);
    __syncthreads();

    // All warps: one sum.
    float top = MINUS_INFINITY, total = 0.0f;
#pragma unroll
    for (int w = 0; w < MERGE_WARPS; ++w) top = fmaxf(top, stats[2 * w]);
    const float base = top == MINUS_INFINITY ? 0.0f : top;
#pragma unroll
    for (int w = 0; w < MERGE_WARPS; ++w) total += device::exp2_fast(stats[2 * w] - base) * stats[2 * w + 1];
    for (int dim = threadIdx.x; dim < head_dim; dim += MERGE_WARPS * WARP) {
        float x = 0.0f;
#pragma unroll
        for (int w = 0; w < MERGE_WARPS; ++w)
            x += device::exp2_fast(stats[2 * w] - base) * sums[w * MERGE_ROUNDS * WARP * 4 + dim];
        out[token * stride_out + static_cast<int64_t>(head) * head_dim + dim] = Element<T>::rounded(x / total);
    }
    if (lse != nullptr && threadIdx.x == 0)
        lse[static_cast<int64_t>(token) * num_heads + head] = (top + device::log2_fast(total)) * LN_2;
}

}  // namespace paged
