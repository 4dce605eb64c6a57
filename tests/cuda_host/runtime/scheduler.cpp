// Which thread of the block runs next, and what ends its turn: a barrier, a collective, its return.
#include "state.h"

dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace paged_host {

State state;


namespace {

Warp& warp_of(const Fiber& fiber) { return state.warps[fiber.thread / 32]; }

std::uint32_t lane_bit(const Fiber& fiber) { return 1u << fiber.thread % 32; }

unsigned nth_bit(std::uint32_t bits, unsigned n) {
    for (; n > 0; --n) bits &= bits - 1;
    return static_cast<unsigned>(__builtin_ctz(bits));
}

Fiber* first_ready(unsigned warp) {
    std::uint32_t ready = state.warps[warp].ready;
    return &state.fibers[warp * 32 + static_cast<unsigned>(__builtin_ctz(ready))];
}

Fiber* last_ready(unsigned warp) {
    std::uint32_t ready = state.warps[warp].ready;
    return &state.fibers[warp * 32 + 31u - static_cast<unsigned>(__builtin_clz(ready))];
}

// A warp runs until none of its lanes can go on; then the next one above (below) that can, round and round.
Fiber* next_in_order(bool forward) {
    unsigned thread = state.current->thread, warp = thread / 32, lane = thread % 32;
    std::uint32_t ready = state.warps[warp].ready;
    if (ready != 0) {
        std::uint32_t beyond = forward ? ready & ~((2u << lane) - 1) : ready & ((1u << lane) - 1);
        if (beyond == 0) beyond = ready;
        unsigned next = forward ? static_cast<unsigned>(__builtin_ctz(beyond))
                                : 31u - static_cast<unsigned>(__builtin_clz(beyond));
        return &state.fibers[warp * 32 + next];
    }
    for (unsigned i = 1; i < state.num_warps; ++i) {
        unsigned other = (forward ? warp + i : warp + state.num_warps - i) % state.num_warps;
        if (state.warps[other].ready != 0) return forward ? first_ready(other) : last_ready(other);
    }
    return nullptr;
}

Fiber* next_at_random() {
    unsigned total = 0;
    for (unsigned warp = 0; warp < state.num_warps; ++warp)
        total += static_cast<unsigned>(__builtin_popcount(state.warps[warp].ready));
    if (total == 0) return nullptr;
    unsigned n = draw() % total;
    for (unsigned warp = 0;; ++warp) {
        unsigned count = static_cast<unsigned>(__builtin_popcount(state.warps[warp].ready));
        if (n < count) return &state.fibers[warp * 32 + nth_bit(state.warps[warp].ready, n)];
        n -= count;
    }
}

Fiber* next_ready() {
    return state.schedule == Schedule::random ? next_at_random() : next_in_order(state.schedule == Schedule::forward);
}

void switch_to(Fiber* next) {
    Fiber* from = state.current;
    if (next == from) return;
    state.current = next;
    threadIdx.x = next->thread;
    switch_context(from->context, next->context);
}

void give_way(Place place) {
    Fiber* next = next_ready();
    if (next == nullptr)
        fail(place, "no thread can go on: %s", who_waits_where().c_str());
    switch_to(next);
}

void release_barrier() {
    meet_in_block();
    for (unsigned warp = 0; warp < state.num_warps; ++warp) state.warps[warp].ready = state.warps[warp].present;
    for (unsigned thread = 0; thread < state.launch->threads; ++thread)
        state.fibers[thread].waiting = Waiting::nothing;
    state.at_barrier = 0;
}

void require_lanes(const Fiber& fiber, Place place) {
    std::uint32_t present = warp_of(fiber).present;
    if ((fiber.mask & lane_bit(fiber)) == 0)
        fail(place, "%s of lanes %08x does not name its own lane %u", name_of(fiber.collective), fiber.mask,
             fiber.thread % 32);
    if ((fiber.mask & ~present) != 0)
        fail(place, "%s of lanes %08x names lanes %08x that have returned or do not exist", name_of(fiber.collective),
             fiber.mask, fiber.mask & ~present);
}

// Whether all lanes of the mask stand at this collective; another one with the same mask is an error.
bool all_lanes_are_here(const Fiber& fiber) {
    const Fiber* lanes = &state.fibers[fiber.thread / 32 * 32];
    bool complete = (warp_of(fiber).waiting & fiber.mask) == fiber.mask;
    for (std::uint32_t rest = warp_of(fiber).waiting & fiber.mask; rest != 0; rest &= rest - 1) {
        const Fiber& other = lanes[__builtin_ctz(rest)];
        if (other.mask != fiber.mask) {
            complete = false;
        } else if (other.collective != fiber.collective || other.place.line != fiber.place.line ||
                   other.place.file != fiber.place.file) {
            fail(fiber.place, "lanes of one mask meet at different places: %s", who_waits_where().c_str());
        }
    }
    return complete;
}

// A thread from its first step to its return. Its stack is left behind; the next block starts it anew.
void fiber_main() {
    state.launch->entry(state.launch->arguments);
    Fiber& fiber = *state.current;
    Warp& warp = warp_of(fiber);
    deliver_copies(fiber, 0);
    fiber.waiting = Waiting::returned;
    warp.present &= ~lane_bit(fiber);
    warp.ready &= ~lane_bit(fiber);
    --state.live;
    const Place nowhere{"", 0};
    if (state.at_barrier > 0) fail(nowhere, "a thread returns while others wait: %s", who_waits_where().c_str());
    const Fiber* lanes = &state.fibers[fiber.thread / 32 * 32];
    for (std::uint32_t rest = warp.waiting; rest != 0; rest &= rest - 1)
        if ((lanes[__builtin_ctz(rest)].mask & lane_bit(fiber)) != 0)
            fail(nowhere, "a thread returns while lanes of its warp wait for it: %s", who_waits_where().c_str());
    if (state.live == 0) switch_context(fiber.context, state.main);
    give_way(nowhere);
}

}  // namespace

void barrier(Place place) {
    Fiber& fiber = *state.current;
    fiber.waiting = Waiting::barrier;
    fiber.place = place;
    if (state.live != state.launch->threads)
        fail(place, "a barrier is reached by a part of the block: %s", who_waits_where().c_str());
    ++state.at_barrier;
    warp_of(fiber).ready &= ~lane_bit(fiber);
    if (state.at_barrier == state.live) {
        for (unsigned thread = 0; thread < state.launch->threads; ++thread) {
            const Place& other = state.fibers[thread].place;
            if (other.line != place.line || other.file != place.file)
                fail(place, "threads meet at different barriers: %s", who_waits_where().c_str());
        }
        release_barrier();
    }
    give_way(place);
}

void collective(Collective kind, std::uint32_t mask, void* operands, Place place) {
    Fiber& fiber = *state.current;
    Warp& warp = warp_of(fiber);
    fiber.waiting = Waiting::collective;
    fiber.collective = kind;
    fiber.mask = mask;
    fiber.operands = operands;
    fiber.place = place;
    require_lanes(fiber, place);
    warp.waiting |= lane_bit(fiber);
    warp.ready &= ~lane_bit(fiber);
    bool full = (warp.waiting & mask) == mask;
    if (full && all_lanes_are_here(fiber)) {
        Fiber* lanes = &state.fibers[fiber.thread / 32 * 32];
        perform(kind, mask, lanes, place);
        warp.waiting &= ~mask;
        warp.ready |= mask;
        for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1)
            lanes[__builtin_ctz(rest)].waiting = Waiting::nothing;
    }
    give_way(place);
}

void pause() {
    if (state.schedule == Schedule::random) switch_to(next_ready());
}

void run_block() {
    const unsigned threads = state.launch->threads;
    state.num_warps = (threads + 31) / 32;
    state.live = threads;
    state.at_barrier = 0;
    for (unsigned warp = 0; warp < state.num_warps; ++warp) {
        unsigned lanes = threads - warp * 32 < 32 ? threads - warp * 32 : 32;
        std::uint32_t all = lanes == 32 ? 0xffffffffu : (1u << lanes) - 1;
        state.warps[warp] = {all, all, 0};
    }
    for (unsigned thread = 0; thread < threads; ++thread) {
        Fiber& fiber = state.fibers[thread];
        std::size_t bytes;
        char* stack = stack_of(thread, bytes);
        fiber.thread = thread;
        fiber.waiting = Waiting::nothing;
        fiber.copies.clear();
        fiber.first_copy = fiber.committed = 0;
        fiber.written.clear();
        fiber.first_unmet = 0;
        start_context(fiber.context, stack, bytes, fiber_main);
    }
    unsigned first = state.schedule == Schedule::forward ? 0 : threads - 1;
    state.current = state.schedule == Schedule::random ? next_at_random() : &state.fibers[first];
    threadIdx.x = state.current->thread;
    switch_context(state.main, state.current->context);
}

}  // namespace paged_host
