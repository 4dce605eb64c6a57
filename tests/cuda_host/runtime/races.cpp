// Shared memory that one thread writes and another reads without having met: seen whatever order threads run in.
//
// Known are accesses of 16 bytes by way of paged::device: copies, stores, loads, rows of matrices. A shuffle or a
// product makes lanes wait for each other but, as on a device, orders no memory.
#include "state.h"

namespace paged_host {

void note_write(Fiber& fiber, void* address) {
    Writer* writer = writer_of(address);
    if (writer == nullptr) return;
    *writer = static_cast<Writer>(fiber.thread + 1);
    fiber.written.push_back(writer);
}

void require_met(const Fiber& fiber, const void* address, Place place) {
    const Writer* writer = writer_of(address);
    if (writer == nullptr || *writer == 0) return;
    unsigned thread = (*writer & ~met_warp) - 1u;
    if (thread == fiber.thread || (thread / 32 == fiber.thread / 32 && (*writer & met_warp) != 0)) return;
    fail(place, "thread %u reads shared memory that thread %u has written, and no barrier lies between", fiber.thread,
         thread);
}

void meet_in_warp(std::uint32_t mask, Fiber* lanes) {
    for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        Fiber& fiber = lanes[__builtin_ctz(rest)];
        for (; fiber.first_unmet < fiber.written.size(); ++fiber.first_unmet) {
            Writer& writer = *fiber.written[fiber.first_unmet];
            if (writer == fiber.thread + 1) writer |= met_warp;
        }
    }
}

void meet_in_block() {
    for (unsigned thread = 0; thread < state.launch->threads; ++thread) {
        Fiber& fiber = state.fibers[thread];
        for (Writer* writer : fiber.written) *writer = 0;
        fiber.written.clear();
        fiber.first_unmet = 0;
    }
}

void check_load(const void* address, Place place) {
    require_aligned(address, place);
    require_met(*state.current, address, place);
}

void check_store(void* address, Place place) {
    require_aligned(address, place);
    note_write(*state.current, address);
}

}  // namespace paged_host
