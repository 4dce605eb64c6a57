// Sizes of the attention kernels by element types and head size; Python reads none of this (kernels.py repeats it).
// Loops over the keys of a tile are unrolled, for their results lie in registers. Without matrices, in float, and with
// e4m3 to be widened, 32 keys made 770 KB of a kernel and 22 s of its compilation; that is what the rules of KEYS avoid.
#pragma once

#include "softmax.cuh"

namespace paged {

// decode: warps work on tiles of their own, so that no warp waits for another; each has STAGES of them under way.
template <class T, class C, int DIM>
struct DecodeShape {
    static constexpr int KEYS = sizeof(C) == 4 ? 8 : sizeof(C) == 2 || sizeof(T) == 4 ? 16 : 32;
    static constexpr int TILE_BYTES = 2 * KEYS * Row<C, DIM>::BYTES;
    static constexpr int WARPS = DIM > 128 ? 2 : 4;
    static constexpr int STAGES = DIM > 64 ? 2 : 4;
    static constexpr int ROWS = 16;
    static constexpr int QUERY_BYTES = ROWS * Row<T, DIM>::BYTES;
    static constexpr int SHARED_BYTES = QUERY_BYTES + WARPS * STAGES * TILE_BYTES;
    static constexpr int SUMS_STRIDE = DIM + 8;  // floats: rows of a result begin in different banks
    static_assert(ROWS * SUMS_STRIDE * 4 <= STAGES * TILE_BYTES, "results of the warps fit where tiles were");
    static_assert(SPLIT_UNIT % (WARPS * KEYS) == 0, "ranges are whole tiles");
};

// prefill: warps share tiles of keys, each has matrices of 16 rows of its own.
template <class T, class C, int DIM>
struct PrefillShape {
    static constexpr int WARPS = 4;
    static constexpr int MATRICES = sizeof(T) == 2 && DIM <= 128 ? 2 : 1;  // a warp's; 2 halve the traffic of keys
    static constexpr int ROWS = WARPS * MATRICES * 16;
    static constexpr int KEYS = sizeof(T) == 2 ? 32 : DIM <= 128 ? 16 : 8;
    static constexpr int TILE_BYTES = 2 * KEYS * Row<C, DIM>::BYTES;
    static constexpr int QUERY_BYTES = ROWS * Row<T, DIM>::BYTES;
    static constexpr int SHARED_BYTES = QUERY_BYTES + 2 * TILE_BYTES;
    static_assert(SHARED_BYTES <= 99 * 1024, "fits every device since sm_80");
};

}  // namespace paged
