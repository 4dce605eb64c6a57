// Softmax while keys go by, in base 2: weights are 2^(x - highest), where x = log2(e) * logit.
#pragma once

#include "products.cuh"

namespace paged {

// From q.k to x: the logit's scale, softcap * tanh(logit / softcap) where there is one.
struct Logits {
    float factor;      // x = factor * q.k; with a softcap: 2 x of the tanh's argument
    float capped;      // log2(e) * softcap; 0: none
    __device__ __forceinline__ Logits(float scale, float softcap) {
        capped = softcap * LOG2_E;
        factor = scale * LOG2_E * (softcap > 0.0f ? 2.0f / softcap : 1.0f);
    }
    template <int M, int N>
    __device__ __forceinline__ void apply(float (&s)[M][N][4]) const {
#pragma unroll
        for (int m = 0; m < M; ++m)
#pragma unroll
            for (int n = 0; n < N; ++n)
#pragma unroll
                for (int e = 0; e < 4; ++e) s[m][n][e] *= factor;
        if (capped <= 0.0f) return;
#pragma unroll
        for (int m = 0; m < M; ++m)
#pragma unroll
            for (int n = 0; n < N; ++n)
#pragma unroll
                for (int e = 0; e < 4; ++e) {  // tanh(y) = 1 - 2 / (e^2y + 1), 2e-7 off at most; a division would call
                    const float bits = device::log2_fast(device::exp2_fast(s[m][n][e]) + 1.0f);
                    s[m][n][e] = capped - capped * device::exp2_fast(1.0f - bits);
                }
    }
};

// A lane's rows: row 16 m + 8 h + g of the warp at [m][h].
template <int M>
struct Softmax {
    float highest[M][2];
    float sum[M][2];  // of the weights that this lane has seen; the row's is the sum over the four lanes of its quad

    __device__ __forceinline__ Softmax() {
#pragma unroll
        for (int m = 0; m < M; ++m)
#pragma unroll
            for (int h = 0; h < 2; ++h) highest[m][h] = MINUS_INFINITY, sum[m][h] = 0.0f;
    }

    // x becomes weights; o and sum are scaled down to the new maxima. Masked x are -infinity; a row may have only those.
    template <int N, int J>
    __device__ __forceinline__ void update(float (&x)[M][N][4], float (&o)[M][J][4]) {
        float factor[M][2];
        bool grows = false;
#pragma unroll
        for (int m = 0; m < M; ++m)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                float top = highest[m][h];
#pragma unroll
                for (int n = 0; n < N; ++n) top = fmaxf(top, fmaxf(x[m][n][2 * h], x[m][n][2 * h + 1]));
                top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, 1));
                top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, 2));
                const float base = top == MINUS_INFINITY ? 0.0f : top;
                factor[m][h] = device::exp2_fast(highest[m][h] - base);
                grows = grows || highest[m][h] != top;
                highest[m][h] = top;
                float total = 0.0f;
#pragma unroll
                for (int n = 0; n < N; ++n)
#pragma unroll
                    for (int e = 2 * h; e < 2 * h + 2; ++e) {
                        x[m][n][e] = device::exp2_fast(x[m][n][e] - base);
                        total += x[m][n][e];
                    }
                sum[m][h] = sum[m][h] * factor[m][h] + total;
            }
        if (!__any_sync(ALL_LANES, grows)) return;  // most tiles of a long context: every factor is 1
#pragma unroll
        for (int m = 0; m < M; ++m)
#pragma unroll
            for (int j = 0; j < J; ++j)
#pragma unroll
                for (int e = 0; e < 4; ++e) o[m][j][e] *= factor[m][e / 2];
    }

    __device__ __forceinline__ void finish() {  // sum: the row's
#pragma unroll
        for (int m = 0; m < M; ++m)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                sum[m][h] += __shfl_xor_sync(ALL_LANES, sum[m][h], 1);
                sum[m][h] += __shfl_xor_sync(ALL_LANES, sum[m][h], 2);
            }
    }
};

}  // namespace paged
