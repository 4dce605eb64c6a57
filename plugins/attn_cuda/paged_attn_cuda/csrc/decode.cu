// decode: attention of sequences that compute one token; grid (sequences, kv_heads * head_chunks, splits).
//
// The query heads that share a kv head are the rows of one matrix (16 at a time: a chunk). Each warp takes every WARPS-th
// tile of the program's range of keys through a ring of its own; at the end the warps' results are merged. With more
// than one range, partial results go to scratch memory and `merge` puts them together.
#include "shape.cuh"

namespace paged {

// Which heads this program serves, and where its results go.
struct DecodeRows {
    int sequence, token, first_head, count;
};

// No key at all (padding): out is zero, log-sum-exp -infinity.
template <class T>
__device__ __forceinline__ void store_nothing(
    T* out, float* lse, int64_t stride_out, const DecodeRows& rows, int num_heads, int head_dim, int threads) {
    T* to = out + rows.token * stride_out + static_cast<int64_t>(rows.first_head) * head_dim;
#pragma unroll 1
    for (int i = threadIdx.x; i < rows.count * head_dim; i += threads) to[i] = Element<T>::rounded(0.0f);
    if (lse != nullptr && static_cast<int>(threadIdx.x) < rows.count)
        lse[static_cast<int64_t>(rows.token) * num_heads + rows.first_head + threadIdx.x] = MINUS_INFINITY;
}

template <class T, class C, int DIM>
__global__ void __launch_bounds__(DecodeShape<T, C, DIM>::WARPS* WARP) decode(
    // out, q [tokens, num_heads, head_dim], strided over tokens; lse [tokens, num_heads] or null
    T* out, float* lse, const T* q, int64_t stride_out, int64_t stride_q,
    // partial results: sums [sequences, num_heads, num_splits, head_dim]; stats [sequences, num_heads, num_splits, 2]
    float* partial_sums, float* partial_stats,
    // cache; scales [2, kv_heads]; query_start [sequences + 1]; lengths, table_rows [sequences]; tables
    const C* cache, const float* scales, const int32_t* query_start, const int32_t* lengths,
    const int32_t* table_rows, const int32_t* tables, int64_t stride_table,
    // softcap 0: none; window: how many keys a query sees at most
    float scale, float softcap, int window, int num_splits,
    int num_heads, int num_kv_heads, int head_dim, int block_shift) {
    using Shape = DecodeShape<T, C, DIM>;
    constexpr int KEYS = Shape::KEYS, WARPS = Shape::WARPS, STAGES = Shape::STAGES, ROWS = Shape::ROWS;
    PAGED_DYNAMIC_SHARED(shared);
    PAGED_SHARED(float, stats, WARPS * ROWS * 2);  // highest, sum

    // Who we are.
    const int group = num_heads / num_kv_heads, head_chunks = ceil_divide(group, ROWS);
    const int kv_head = blockIdx.y / head_chunks, chunk = blockIdx.y % head_chunks;
    DecodeRows rows;
    rows.sequence = blockIdx.x;
    rows.token = query_start[rows.sequence];
    rows.first_head = kv_head * group + chunk * ROWS;
    rows.count = minimum(ROWS, group - chunk * ROWS);
    const int next_token = query_start[rows.sequence + 1];  // before any is needed: one latency for all
    const int length = lengths[rows.sequence], table_row = table_rows[rows.sequence];
    if (next_token - rows.token != 1) return;
    if (length <= 0) {
        if (blockIdx.z == 0) store_nothing(out, lse, stride_out, rows, num_heads, head_dim, WARPS * WARP);
        return;
    }
    const Ranges ranges = split_keys(length, window, num_splits);
    const int split = blockIdx.z;
    if (split >= ranges.used) return;
    const int begin = ranges.begin + split * ranges.each, end = minimum(length, begin + ranges.each);

    // The first tiles of each warp, then the queries.
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    unsigned char* ring = shared + Shape::QUERY_BYTES + warp * STAGES * Shape::TILE_BYTES;
    const Context<C> context = context_of(
        cache, tables + table_row * stride_table, kv_head, num_kv_heads, block_shift, head_dim, end);
    const int first = begin + warp * KEYS;
    const int num_tiles = first < end ? ceil_divide(end - first, WARPS * KEYS) : 0;
#pragma unroll
    for (int i = 0; i < STAGES - 1; ++i) {
        if (i < num_tiles)
            load_tile<C, DIM, KEYS, WARP, 8>(ring + i * Shape::TILE_BYTES, context, first + i * WARPS * KEYS, lane);
        device::cp_async_commit();
    }
    load_queries<T, C, DIM, ROWS, WARPS * WARP>(
        shared, q + rows.token * stride_q + static_cast<int64_t>(rows.first_head) * head_dim, stride_q, ROWS, rows.count,
        head_dim, threadIdx.x);
    __syncthreads();

    // Keys go by. Whoever is behind the window, or the end, has no weight.
    const Logits logits(scale * __ldg(scales + kv_head), softcap);
    Softmax<1> softmax;
    float o[1][DIM / 8][4] = {};
    const int oldest = length - window;
    for (int i = 0; i < num_tiles; ++i) {
        device::cp_async_wait<STAGES - 2>();
        __syncwarp();
        const int next = i + STAGES - 1, position = first + i * WARPS * KEYS;
        if (next < num_tiles)
            load_tile<C, DIM, KEYS, WARP, 8>(
                ring + next % STAGES * Shape::TILE_BYTES, context, first + next * WARPS * KEYS, lane);
        device::cp_async_commit();
        const unsigned char* tile = ring + i % STAGES * Shape::TILE_BYTES;
        float s[1][KEYS / 8][4];
        Products<T, C, DIM, 1, KEYS>::scores(s, shared, tile, lane);
        logits.apply(s);
        if (position < oldest || position + KEYS > end) {
#pragma unroll
            for (int n = 0; n < KEYS / 8; ++n)
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const int key = position + n * 8 + lane % 4 * 2 + e % 2;
                    s[0][n][e] = key >= oldest && key < end ? s[0][n][e] : MINUS_INFINITY;
                }
        }
        softmax.update(s, o);
        Products<T, C, DIM, 1, KEYS>::accumulate(o, s, tile + KEYS * Row<C, DIM>::BYTES, lane);
    }
    softmax.finish();

    // Each warp leaves its sums where tiles were.
    __syncthreads();
    float* sums = reinterpret_cast<float*>(shared + Shape::QUERY_BYTES);  // [WARPS, ROWS, SUMS_STRIDE]
#pragma unroll
    for (int below = 0; below < 2; ++below) {
        const int row = lane / 4 + 8 * below;
        if (lane % 4 == 0) {
            stats[(warp * ROWS + row) * 2] = softmax.highest[0][below];
            stats[(warp * ROWS + row) * 2 + 1] = softmax.sum[0][below];
        }
        if (row < rows.count) {
#pragma unroll
            for (int i = 0; i < DIM / 16; ++i)
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    float pair[2];
                    Columns<C, T>::get(o[0], i, half, below, pair);
                    store_vector<float, 2>(
                        sums + (warp * ROWS + row) * Shape::SUMS_STRIDE + Columns<C, T>::first(i, half, lane % 4), pair);
                }
        }
    }
    __syncthreads();

    // Merge them, four dimensions a thread. A warp without keys has -infinity and zeros; warp 0 always has a key.
    const float value_scale = __ldg(scales + num_kv_heads + kv_head);
    for (int index = threadIdx.x; index < rows.count * (head_dim / 4); index += WARPS * WARP) {
        const int row = index / (head_dim / 4), dim = index % (head_dim / 4) * 4, head = rows.first_head + row;
        float highest = MINUS_INFINITY, sum = 0.0f, result[4] = {};
#pragma unroll
        for (int w = 0; w < WARPS; ++w) highest = fmaxf(highest, stats[(w * ROWS + row) * 2]);
        const float base = highest == MINUS_INFINITY ? 0.0f : highest;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) {
            const float weight = device::exp2_fast(stats[(w * ROWS + row) * 2] - base);
            float part[4];
            load_vector<float, 4>(sums + (w * ROWS + row) * Shape::SUMS_STRIDE + dim, part);
            sum += weight * stats[(w * ROWS + row) * 2 + 1];
#pragma unroll
            for (int i = 0; i < 4; ++i) result[i] += weight * part[i];
        }
        if (ranges.used == 1) {
            const float inverse = value_scale / sum;
#pragma unroll
            for (int i = 0; i < 4; ++i) result[i] *= inverse;
            store_vector<T, 4>(out + rows.token * stride_out + static_cast<int64_t>(head) * head_dim + dim, result);
            if (lse != nullptr && dim == 0)
                lse[static_cast<int64_t>(rows.token) * num_heads + head] = (highest + device::log2_fast(sum)) * LN_2;
        } else {
            const int64_t part = (static_cast<int64_t>(rows.sequence) * num_heads + head) * num_splits + split;
#pragma unroll
            for (int i = 0; i < 4; ++i) result[i] *= value_scale;
            store_vector<float, 4>(partial_sums + part * head_dim + dim, result);
            const float both[2] = {highest, sum};
            if (dim == 0) store_vector<float, 2>(partial_stats + part * 2, both);
        }
    }
}

}  // namespace paged
