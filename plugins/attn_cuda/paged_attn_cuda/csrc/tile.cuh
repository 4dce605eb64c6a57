// Tiles in shared memory: queries as rows of a matrix, keys and values gathered through the block table.
//
// A row of DIM elements takes 16 bytes more than it needs: eight rows then lie in different banks, as ldmatrix wants it.
// Elements from head_dim to DIM are zero, rows that are not there too.
#pragma once

#include "elements.cuh"

namespace paged {

template <class T, int DIM>
struct Row {
    static constexpr int CHUNKS = DIM * sizeof(T) / 16;
    static constexpr int BYTES = (CHUNKS + 1) * 16;
};

// Keys and values of one kv head of one sequence.
template <class C>
struct Context {
    const C* keys;         // this head's, of block 0
    int64_t values;        // elements from a key to its value
    int64_t block_stride;  // elements
    const int32_t* table;
    int block_shift;
    int head_dim;
    int end;  // positions from here on are not read: neither their slots nor their entries of the table
};

template <class C>
__device__ __forceinline__ Context<C> context_of(
    const C* cache, const int32_t* table, int kv_head, int num_kv_heads, int block_shift, int head_dim, int end) {
    Context<C> context;
    context.values = values_offset(num_kv_heads, block_shift, head_dim);
    context.block_stride = 2 * context.values;
    context.keys = cache + (static_cast<int64_t>(kv_head) << block_shift) * head_dim;
    context.table = table;
    context.block_shift = block_shift;
    context.head_dim = head_dim;
    context.end = end;
    return context;
}

// The largest power of two that divides n, 32 at most.
__device__ constexpr int lanes_of(int n) {
    return n % 32 == 0 ? 32 : n % 16 == 0 ? 16 : n % 8 == 0 ? 8 : n % 4 == 0 ? 4 : 2;
}

// Begin to load positions first .. first + KEYS - 1 (first: a multiple of KEYS): keys to `tile`, values behind them.
//
// LANES threads read a row in PASSES, all THREADS STEP rows at a time. A block has 8 rows or more, so GROUP steps lie in
// one block and cost one look into the table. UNROLL groups at a time: as many addresses are in registers.
template <class C, int DIM, int KEYS, int THREADS, int UNROLL>
__device__ __forceinline__ void load_tile(unsigned char* tile, const Context<C>& context, int first, int thread) {
    constexpr int CHUNKS = Row<C, DIM>::CHUNKS, BYTES = Row<C, DIM>::BYTES, PER_CHUNK = 16 / sizeof(C);
    constexpr int LANES = lanes_of(CHUNKS), PASSES = CHUNKS / LANES, STEP = THREADS / LANES;
    constexpr int GROUP = STEP >= 8 ? 1 : 8 / STEP;
    const int row = thread / LANES, dim = thread % LANES * PER_CHUNK;
    if (STEP > KEYS && row >= KEYS) return;
    tile += row * BYTES + thread % LANES * 16;
#pragma unroll UNROLL
    for (int key = 0; key < KEYS; key += GROUP * STEP) {
        const int position = first + key + row, inside = position & ((1 << context.block_shift) - 1);
        const int64_t block = position < context.end ? __ldg(context.table + (position >> context.block_shift)) : 0;
        const C* from = context.keys + block * context.block_stride + inside * context.head_dim + dim;
        unsigned char* to = tile + key * BYTES;
#pragma unroll
        for (int step = 0; step < GROUP * STEP; step += STEP, from += STEP * context.head_dim, to += STEP * BYTES) {
#pragma unroll
            for (int pass = 0; pass < PASSES; ++pass) {
                constexpr int WIDTH = LANES * PER_CHUNK;
                const bool valid = position + step < context.end && dim + pass * WIDTH < context.head_dim;
                device::cp_async_16(to + pass * LANES * 16, from + pass * WIDTH, valid);
                device::cp_async_16(
                    to + pass * LANES * 16 + KEYS * BYTES, from + pass * WIDTH + context.values, valid);
            }
        }
    }
}

// Even words of two chunks, 16 halves: elements 0, 2, .. 14 first, then 1, 3, .. 15 (see products.cuh, e4m3).
__device__ __forceinline__ void deinterleave(device::vec16& low, device::vec16& high) {
    device::vec16 even, odd;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const device::vec16& from = i < 2 ? low : high;
        uint32_t a = from.word[i % 2 * 2], b = from.word[i % 2 * 2 + 1];
        even.word[i] = (a & 0xffffu) | b << 16;
        odd.word[i] = a >> 16 | (b & 0xffff0000u);
    }
    low = even, high = odd;
}

// Queries of ROWS rows; row r is `heads` heads of a token after the other: token r / heads, head r % heads, rows from
// num_rows on are zero. q: the first of them, [tokens, heads, head_dim], tokens `stride` elements apart.
template <class T, class C, int DIM, int ROWS, int THREADS>
__device__ __forceinline__ void load_queries(
    unsigned char* tile, const T* q, int64_t stride, int heads, int num_rows, int head_dim, int thread) {
    constexpr int PER_CHUNK = 16 / sizeof(T), PAIRS = Row<T, DIM>::CHUNKS / 2;  // a pair of chunks: 16 halves, 8 floats
    for (int index = thread; index < ROWS * PAIRS; index += THREADS) {
        const int row = index / PAIRS, pair = index % PAIRS, dim = pair * 2 * PER_CHUNK;
        device::vec16 low = {{0, 0, 0, 0}}, high = {{0, 0, 0, 0}};
        if (row < num_rows && dim < head_dim) {
            const T* from = q + row / heads * stride + static_cast<int64_t>(row % heads) * head_dim + dim;
            low = device::load16(from);
            high = device::load16(from + PER_CHUNK);
        }
        if (sizeof(T) == 2 && Same<C, e4m3>::value) deinterleave(low, high);
        unsigned char* to = tile + row * Row<T, DIM>::BYTES + pair * 32;
        device::store16(to, low);
        device::store16(to + 16, high);
    }
}

}  // namespace paged
