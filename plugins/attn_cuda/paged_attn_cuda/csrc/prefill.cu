// prefill: attention of sequences that compute several tokens, whole prompts or chunks of them.
//
// grid (num_tokens / tile_queries + num_sequences, kv_heads * head_chunks). A program serves tile_queries tokens of one
// sequence and `heads` query heads of one kv head: row r is token r / heads, head r % heads. Sequence i begins at tile
// query_start[i] / tile_queries + i: enough tiles for everybody, and found by bisection without a list from the host.
#include "shape.cuh"

namespace paged {

// The last sequence that begins at or before `tile`.
__device__ __forceinline__ int sequence_of_tile(int tile, const int32_t* query_start, int num_sequences, int tile_queries) {
    int low = 0, high = num_sequences;  // low begins at or before it, high behind it
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (query_start[middle] / tile_queries + middle <= tile) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

template <class T, class C, int DIM>
__global__ void __launch_bounds__(PrefillShape<T, C, DIM>::WARPS* WARP) prefill(
    // out, q [tokens, num_heads, head_dim], strided over tokens; lse [tokens, num_heads] or null
    T* out, float* lse, const T* q, int64_t stride_out, int64_t stride_q,
    // cache; scales [2, kv_heads]; query_start [sequences + 1]; lengths, table_rows [sequences]; tables
    const C* cache, const float* scales, const int32_t* query_start, const int32_t* lengths,
    const int32_t* table_rows, const int32_t* tables, int64_t stride_table,
    // softcap 0: none; window: how many keys a query sees at most
    float scale, float softcap, int window, int num_sequences, int tile_queries, int heads,
    int num_heads, int num_kv_heads, int head_dim, int block_shift) {
    using Shape = PrefillShape<T, C, DIM>;
    constexpr int KEYS = Shape::KEYS, MATRICES = Shape::MATRICES, THREADS = Shape::WARPS * WARP;
    PAGED_DYNAMIC_SHARED(shared);

    // Who we are. The last tiles see the most keys: they go first.
    const int tile = gridDim.x - 1 - blockIdx.x;
    const int sequence = sequence_of_tile(tile, query_start, num_sequences, tile_queries);
    const int start = query_start[sequence], num_queries = query_start[sequence + 1] - start;
    const int first_query = (tile - start / tile_queries - sequence) * tile_queries;
    if (num_queries <= 1 || first_query >= num_queries) return;
    const int group = num_heads / num_kv_heads, head_chunks = ceil_divide(group, heads);
    const int kv_head = blockIdx.y / head_chunks, chunk = blockIdx.y % head_chunks;
    const int first_head = kv_head * group + chunk * heads, own_heads = minimum(heads, group - chunk * heads);
    const int own_queries = minimum(tile_queries, num_queries - first_query), num_rows = own_queries * own_heads;
    const int first_token = start + first_query, first_position = lengths[sequence] - num_queries + first_query;
    const int end = first_position + own_queries;
    const int begin = maximum(0, first_position - window + 1) & ~(KEYS - 1);

    // The first tile of keys, then the queries.
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    unsigned char* ring = shared + Shape::QUERY_BYTES;
    const Context<C> context = context_of(
        cache, tables + table_rows[sequence] * stride_table, kv_head, num_kv_heads, block_shift, head_dim, end);
    load_tile<C, DIM, KEYS, THREADS, 2>(ring, context, begin, threadIdx.x);
    device::cp_async_commit();
    load_queries<T, C, DIM, Shape::ROWS, THREADS>(
        shared, q + first_token * stride_q + static_cast<int64_t>(first_head) * head_dim, stride_q, own_heads, num_rows,
        head_dim, threadIdx.x);

    // Between which positions the warp's rows stand. Rows that are not there stand at the last.
    const int warp_row = warp * MATRICES * 16;
    const int lowest = first_position + minimum(warp_row / own_heads, own_queries - 1);
    const int highest = first_position + minimum((warp_row + MATRICES * 16 - 1) / own_heads, own_queries - 1);
    const bool works = warp_row < num_rows;

    // Keys go by: a tile is loaded while the one before it is used.
    const Logits logits(scale * __ldg(scales + kv_head), softcap);
    Softmax<MATRICES> softmax;
    float o[MATRICES][DIM / 8][4] = {};
    for (int first = begin, slot = 0; first < end; first += KEYS, slot ^= 1) {
        device::cp_async_wait<0>();
        __syncthreads();
        if (first + KEYS < end)
            load_tile<C, DIM, KEYS, THREADS, 2>(ring + (slot ^ 1) * Shape::TILE_BYTES, context, first + KEYS, threadIdx.x);
        device::cp_async_commit();
        if (!works || first > highest || first + KEYS - 1 <= lowest - window) continue;
        const unsigned char* keys = ring + slot * Shape::TILE_BYTES;
        float s[MATRICES][KEYS / 8][4];
        Products<T, C, DIM, MATRICES, KEYS>::scores(s, shared + warp_row * Row<T, DIM>::BYTES, keys, lane);
        logits.apply(s);
        if (first + KEYS - 1 > lowest || first <= highest - window) {
#pragma unroll
            for (int m = 0; m < MATRICES; ++m)
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const int query = minimum((warp_row + m * 16 + h * 8 + lane / 4) / own_heads, own_queries - 1);
#pragma unroll
                    for (int i = 0; i < KEYS / 4; ++i) {
                        const int age = first_position + query - (first + i / 2 * 8 + lane % 4 * 2 + i % 2);
                        float& x = s[m][i / 2][2 * h + i % 2];
                        x = age >= 0 && age < window ? x : MINUS_INFINITY;
                    }
                }
        }
        softmax.update(s, o);
        Products<T, C, DIM, MATRICES, KEYS>::accumulate(o, s, keys + KEYS * Row<C, DIM>::BYTES, lane);
    }
    softmax.finish();

    // Out: two dimensions at a time.
    const float value_scale = __ldg(scales + num_kv_heads + kv_head);
#pragma unroll
    for (int m = 0; m < MATRICES; ++m)
#pragma unroll
        for (int below = 0; below < 2; ++below) {
            const int row = warp_row + m * 16 + below * 8 + lane / 4;
            if (row >= num_rows) continue;
            const int64_t token = first_token + row / own_heads;
            const int head = first_head + row % own_heads;
            const float sum = softmax.sum[m][below], inverse = value_scale / sum;
            T* to = out + token * stride_out + static_cast<int64_t>(head) * head_dim;
#pragma unroll
            for (int i = 0; i < DIM / 16; ++i)
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    float pair[2];
                    Columns<C, T>::get(o[m], i, half, below, pair);
                    pair[0] *= inverse, pair[1] *= inverse;
                    if (16 * i < head_dim) store_vector<T, 2>(to + Columns<C, T>::first(i, half, lane % 4), pair);
                }
            if (lse != nullptr && lane % 4 == 0)
                lse[token * num_heads + head] = (softmax.highest[m][below] + device::log2_fast(sum)) * LN_2;
        }
}

}  // namespace paged
