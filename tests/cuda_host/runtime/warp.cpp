// Warp collectives, carried out for all lanes at once when the last of them has arrived.
#include "../include/numbers.h"
#include "state.h"

namespace paged_host {

namespace {

template <typename T>
T& operands_of(Fiber& fiber) {
    return *static_cast<T*>(fiber.operands);
}

void shuffle(std::uint32_t mask, Fiber* lanes, Place place) {
    std::uint64_t values[32];
    for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        int lane = __builtin_ctz(rest);
        values[lane] = operands_of<Shuffle>(lanes[lane]).value;
    }
    for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        int lane = __builtin_ctz(rest);
        Shuffle& own = operands_of<Shuffle>(lanes[lane]);
        if (own.source >= 32 || (mask >> own.source & 1) == 0)
            fail(place, "lane %d reads from lane %u, which takes no part in a shuffle of lanes %08x", lane, own.source,
                 mask);
        own.value = values[own.source];
    }
}

void ballot(std::uint32_t mask, Fiber* lanes) {
    std::uint32_t votes = 0;
    for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        int lane = __builtin_ctz(rest);
        votes |= static_cast<std::uint32_t>(operands_of<Ballot>(lanes[lane]).predicate) << lane;
    }
    for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1)
        operands_of<Ballot>(lanes[__builtin_ctz(rest)]).votes = votes;
}

// Lane i points to row i % 8 of matrix i / 8: 8 numbers of 16 bits. Register m of a lane holds two numbers of matrix m:
// row lane / 4, columns 2 * (lane % 4) and the next; transposed, those rows of column lane / 4.
void load_matrices(Fiber* lanes, bool transposed, Place place) {
    std::uint16_t rows[32][8];
    for (int lane = 0; lane < 32; ++lane) {
        const void* row = operands_of<LoadMatrix>(lanes[lane]).row;
        if (reinterpret_cast<std::uintptr_t>(row) % 16 != 0)
            fail(place, "lane %d gives ldmatrix the address %p, which is no multiple of 16", lane, row);
        if (!in_shared(row, 16)) fail(place, "lane %d gives ldmatrix the address %p outside shared memory", lane, row);
        require_met(lanes[lane], row, place);
        std::memcpy(rows[lane], row, 16);
    }
    for (int lane = 0; lane < 32; ++lane) {
        std::uint32_t* registers = operands_of<LoadMatrix>(lanes[lane]).registers;
        int group = lane / 4, pair = lane % 4 * 2;
        for (int m = 0; m < 4; ++m) {
            std::uint32_t low = transposed ? rows[m * 8 + pair][group] : rows[m * 8 + group][pair];
            std::uint32_t high = transposed ? rows[m * 8 + pair + 1][group] : rows[m * 8 + group][pair + 1];
            registers[m] = low | high << 16;
        }
    }
}

// m16n8k16 (PTX manual, "Matrix Fragments for mma.m16n8k16"): with group = lane / 4 and pair = 2 * (lane % 4), a lane
// holds of a: rows group and group + 8, columns pair, pair + 1, and those + 8; of b: these as rows of column group;
// of d: rows group and group + 8, columns pair and pair + 1. Sums run over k upwards, each rounded to float.
// A register holds two columns of a, or two rows of b: one word of a matrix that is laid out along k.
template <typename Convert>
void multiply(Fiber* lanes, Convert convert) {
    std::uint32_t a_words[16][8], b_words[8][8];
    float d[16][8];
    for (int lane = 0; lane < 32; ++lane) {
        const Mma& own = operands_of<Mma>(lanes[lane]);
        int group = lane / 4, word = lane % 4;
        for (int i = 0; i < 4; ++i) a_words[group + i % 2 * 8][word + i / 2 * 4] = own.a[i];
        for (int i = 0; i < 2; ++i) b_words[group][word + i * 4] = own.b[i];
        for (int i = 0; i < 4; ++i) d[group + i / 2 * 8][word * 2 + i % 2] = own.d[i];
    }
    std::uint16_t a_numbers[16][16], b_numbers[8][16];
    std::memcpy(a_numbers, a_words, sizeof a_numbers);
    std::memcpy(b_numbers, b_words, sizeof b_numbers);
    float a[16][16], b[16][8];
    for (int row = 0; row < 16; ++row)
        for (int k = 0; k < 16; ++k) a[row][k] = convert(a_numbers[row][k]);
    for (int k = 0; k < 16; ++k)
        for (int column = 0; column < 8; ++column) b[k][column] = convert(b_numbers[column][k]);
    typedef float Row __attribute__((vector_size(32)));
    for (int row = 0; row < 16; row += 4) {  // four at a time: a sum waits for the one before it
        Row sums[4];
        std::memcpy(sums, d[row], sizeof sums);
        for (int k = 0; k < 16; ++k) {
            Row numbers;
            std::memcpy(&numbers, b[k], sizeof numbers);
            for (int i = 0; i < 4; ++i) sums[i] += a[row + i][k] * numbers;
        }
        std::memcpy(d[row], sums, sizeof sums);
    }
    for (int lane = 0; lane < 32; ++lane) {
        float* own = operands_of<Mma>(lanes[lane]).d;
        for (int i = 0; i < 4; ++i) own[i] = d[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
    }
}

}  // namespace

void perform(Collective kind, std::uint32_t mask, Fiber* lanes, Place place) {
    switch (kind) {
        case Collective::shuffle: return shuffle(mask, lanes, place);
        case Collective::ballot: return ballot(mask, lanes);
        case Collective::ldmatrix: return load_matrices(lanes, false, place);
        case Collective::ldmatrix_trans: return load_matrices(lanes, true, place);
        case Collective::mma_bf16: return multiply(lanes, [](std::uint16_t bits) { return bf16_to_float(bits); });
        case Collective::mma_f16: return multiply(lanes, [](std::uint16_t bits) { return f16_to_float(bits); });
        case Collective::syncwarp: return meet_in_warp(mask, lanes);
    }
}

}  // namespace paged_host
