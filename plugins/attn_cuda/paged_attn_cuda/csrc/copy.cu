// copy: whole blocks, for all layers and pairs in one launch; within a pool, or from one pool's caches to another's.
//
// grid (pairs * chunks, layers): a chunk is COPY_THREADS * COPY_VECTORS vectors of 16 bytes. No source is a target, so
// the order does not matter.
#include "elements.cuh"

namespace paged {

constexpr int COPY_THREADS = 256;
constexpr int COPY_VECTORS = 4;  // loads that a thread has in flight

__global__ void __launch_bounds__(COPY_THREADS) copy(
    // addresses of the layers' caches, int64 [layers] each; pairs int64 [pairs, 2]: source block, target block
    const int64_t* sources, const int64_t* targets, const int64_t* pairs,
    int64_t block_vectors, int num_chunks) {
    const int pair = blockIdx.x / num_chunks, chunk = blockIdx.x % num_chunks;
    const device::vec16* source = reinterpret_cast<const device::vec16*>(sources[blockIdx.y]);
    device::vec16* target = reinterpret_cast<device::vec16*>(targets[blockIdx.y]);
    source += pairs[2 * pair] * block_vectors;
    target += pairs[2 * pair + 1] * block_vectors;

    const int64_t first = static_cast<int64_t>(chunk) * (COPY_THREADS * COPY_VECTORS) + threadIdx.x;
    device::vec16 held[COPY_VECTORS];
#pragma unroll
    for (int i = 0; i < COPY_VECTORS; ++i) {
        int64_t at = first + i * COPY_THREADS;
        if (at < block_vectors) held[i] = device::load16_streaming(source + at);
    }
#pragma unroll
    for (int i = 0; i < COPY_VECTORS; ++i) {
        int64_t at = first + i * COPY_THREADS;
        if (at < block_vectors) device::store16(target + at, held[i]);
    }
}

}  // namespace paged
