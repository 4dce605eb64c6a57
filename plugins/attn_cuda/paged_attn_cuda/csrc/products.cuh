// What a warp does with a tile: logits of 16-row matrices of queries and KEYS keys, and sums of values by weights.
//
// Both come as accumulators of mma.m16n8k16; lane l = 4 g + t holds of each 16 x 8 matrix
//
//   element 0, 1: row g, columns 2t, 2t + 1        element 2, 3: row g + 8, columns 2t, 2t + 1
//
//   scores s[m][n]: rows 16 m .., keys 8 n ..      output o[m][j]: rows 16 m .., dimensions by Columns
//
// A cache of e4m3 is widened in registers. A chunk of 16 bytes then holds 16 dimensions, of which a word gives the even
// and the odd ones apart: matrix 2i of the output holds the even dimensions 16 i, 16 i + 2, .., matrix 2i + 1 the odd ones.
// Queries lie in shared memory in the same order (tile.cuh, deinterleave).
#pragma once

#include "tile.cuh"

namespace paged {

// Two neighbouring dimensions of o[2i], o[2i + 1] that this lane holds in row g + 8 * below; half 0 or 1.
template <class C, class T>
struct Columns {
    static constexpr bool SPLIT = Same<C, e4m3>::value && sizeof(T) == 2;
    static __device__ __forceinline__ int first(int i, int half, int t) {
        return SPLIT ? 16 * i + 4 * t + 2 * half : 16 * i + 8 * half + 2 * t;
    }
    template <int J>
    static __device__ __forceinline__ void get(const float (&o)[J][4], int i, int half, int below, float (&pair)[2]) {
        pair[0] = SPLIT ? o[2 * i][2 * below + half] : o[2 * i + half][2 * below];
        pair[1] = SPLIT ? o[2 * i + 1][2 * below + half] : o[2 * i + half][2 * below + 1];
    }
};

// Halves: tensor cores.
template <class T, class C, int DIM, int MATRICES, int KEYS>
struct Products {
    static constexpr int Q_BYTES = Row<T, DIM>::BYTES, KV_BYTES = Row<C, DIM>::BYTES;
    using W = typename Weights<T, C>::type;

    // s = queries . keys; queries: this warp's first row, keys: the tile's.
    static __device__ __forceinline__ void scores(
        float (&s)[MATRICES][KEYS / 8][4], const unsigned char* queries, const unsigned char* keys, int lane) {
#pragma unroll
        for (int m = 0; m < MATRICES; ++m)
#pragma unroll
            for (int n = 0; n < KEYS / 8; ++n)
#pragma unroll
                for (int e = 0; e < 4; ++e) s[m][n][e] = 0.0f;
        const unsigned char* row = queries + (lane & 15) * Q_BYTES + (lane >> 4) * 16;
#pragma unroll
        for (int k = 0; k < DIM / 16; ++k) {
            uint32_t a[MATRICES][4], b[KEYS / 8][2];
#pragma unroll
            for (int m = 0; m < MATRICES; ++m) device::ldmatrix_x4(a[m], row + m * 16 * Q_BYTES + k * 32);
            load_keys(b, keys, k, lane);
#pragma unroll
            for (int n = 0; n < KEYS / 8; ++n)
#pragma unroll
                for (int m = 0; m < MATRICES; ++m) Element<T>::mma(s[m][n], a[m], b[n]);
        }
    }

    // o += weights . values; values: the tile's.
    static __device__ __forceinline__ void accumulate(
        float (&o)[MATRICES][DIM / 8][4], const float (&s)[MATRICES][KEYS / 8][4], const unsigned char* values, int lane) {
#pragma unroll
        for (int k = 0; k < KEYS / 16; ++k) {
            uint32_t a[MATRICES][4];
#pragma unroll
            for (int m = 0; m < MATRICES; ++m)
#pragma unroll
                for (int i = 0; i < 4; ++i) {  // rows g, g + 8 of keys 16 k + 2t, + 1; then of keys 16 k + 8 + 2t, + 1
                    const float(&from)[4] = s[m][2 * k + i / 2];
                    a[m][i] = Element<W>::pack(from[i % 2 * 2], from[i % 2 * 2 + 1]);
                }
#pragma unroll
            for (int j = 0; j < DIM / 8; j += COLUMNS_AT_ONCE) {
                uint32_t b[COLUMNS_AT_ONCE][2];
                load_values(b, values + (k * 16 + (lane & 15)) * KV_BYTES + (lane >> 4) * 16, j);
#pragma unroll
                for (int n = 0; n < COLUMNS_AT_ONCE; ++n)
#pragma unroll
                    for (int m = 0; m < MATRICES; ++m) Element<W>::mma(o[m][j + n], a[m], b[n]);
            }
        }
    }

  private:
    static constexpr bool WIDENS = Same<C, e4m3>::value;
    static constexpr int COLUMNS_AT_ONCE = WIDENS ? 4 : 2;  // matrices of 8 dimensions that one ldmatrix brings

    static __device__ __forceinline__ void load_keys(
        uint32_t (&b)[KEYS / 8][2], const unsigned char* keys, int k, int lane) {
        if constexpr (WIDENS) {
#pragma unroll
            for (int n = 0; n < KEYS / 8; n += 4) {
                uint32_t r[4];
                device::ldmatrix_x4(r, keys + (n * 8 + lane) * KV_BYTES + k * 16);
#pragma unroll
                for (int i = 0; i < 4; ++i) Element<T>::widen(r[i], b[n + i][0], b[n + i][1]);
            }
        } else {
            const unsigned char* row = keys + ((lane & 7) + (lane >> 4) * 8) * KV_BYTES + (lane >> 3 & 1) * 16 + k * 32;
#pragma unroll
            for (int n = 0; n < KEYS / 8; n += 2) {
                uint32_t r[4];
                device::ldmatrix_x4(r, row + n * 8 * KV_BYTES);
                b[n][0] = r[0], b[n][1] = r[1], b[n + 1][0] = r[2], b[n + 1][1] = r[3];
            }
        }
    }

    static __device__ __forceinline__ void load_values(
        uint32_t (&b)[COLUMNS_AT_ONCE][2], const unsigned char* row, int j) {
        uint32_t r[4];
        device::ldmatrix_x4_trans(r, row + j * 8 * static_cast<int>(sizeof(C)));
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            if constexpr (WIDENS) {
                Element<W>::widen(r[2 * i], b[2 * i][0], b[2 * i + 1][0]);
                Element<W>::widen(r[2 * i + 1], b[2 * i][1], b[2 * i + 1][1]);
            } else {
                b[i][0] = r[2 * i], b[i][1] = r[2 * i + 1];
            }
        }
    }
};

// float: plain products, in the same places.
template <class C, int DIM, int KEYS>
struct Products<float, C, DIM, 1, KEYS> {
    static constexpr int Q_BYTES = Row<float, DIM>::BYTES, KV_BYTES = Row<C, DIM>::BYTES;

    static __device__ __forceinline__ void scores(
        float (&s)[1][KEYS / 8][4], const unsigned char* queries, const unsigned char* keys, int lane) {
#pragma unroll
        for (int n = 0; n < KEYS / 8; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) s[0][n][e] = 0.0f;
        const unsigned char *row = queries + lane / 4 * Q_BYTES, *column = keys + lane % 4 * 2 * KV_BYTES;
#pragma unroll 2
        for (int dim = 0; dim < DIM; dim += 4) {
            float a[2][4], b[2][4];
            load_vector<float, 4>(reinterpret_cast<const float*>(row) + dim, a[0]);
            load_vector<float, 4>(reinterpret_cast<const float*>(row + 8 * Q_BYTES) + dim, a[1]);
#pragma unroll
            for (int n = 0; n < KEYS / 8; ++n) {
                load_vector<C, 4>(reinterpret_cast<const C*>(column + n * 8 * KV_BYTES) + dim, b[0]);
                load_vector<C, 4>(reinterpret_cast<const C*>(column + (n * 8 + 1) * KV_BYTES) + dim, b[1]);
#pragma unroll
                for (int e = 0; e < 4; ++e)
#pragma unroll
                    for (int i = 0; i < 4; ++i) s[0][n][e] += a[e / 2][i] * b[e % 2][i];
            }
        }
    }

    static __device__ __forceinline__ void accumulate(
        float (&o)[1][DIM / 8][4], const float (&s)[1][KEYS / 8][4], const unsigned char* values, int lane) {
        const unsigned char* row = values + lane % 4 * 2 * sizeof(C);
#pragma unroll
        for (int key = 0; key < KEYS; ++key) {  // the lane of row g that holds its weight: 4 g + key % 8 / 2
            const float(&from)[4] = s[0][key / 8];
            const int holder = (lane & ~3) + key % 8 / 2;
            const float upper = __shfl_sync(ALL_LANES, from[key % 2], holder);
            const float lower = __shfl_sync(ALL_LANES, from[2 + key % 2], holder);
#pragma unroll
            for (int j = 0; j < DIM / 8; ++j) {
                float v[2];
                load_vector<C, 2>(reinterpret_cast<const C*>(row + key * KV_BYTES) + 8 * j, v);
                o[0][j][0] += upper * v[0], o[0][j][1] += upper * v[1];
                o[0][j][2] += lower * v[0], o[0][j][3] += lower * v[1];
            }
        }
    }
};

}  // namespace paged
