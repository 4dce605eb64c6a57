// The block that runs, shared by the files of the runtime. There is one launch at a time in a process.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "../include/runtime.h"
#include "switch.h"

namespace paged_host {

constexpr unsigned max_threads = 1024;
constexpr unsigned max_warps = max_threads / 32;
constexpr unsigned char poison = 0xff;  // NaN in every floating-point type, -1 in integers

enum class Waiting : std::uint8_t { nothing, barrier, collective, returned };

// 16 bytes on their way to shared memory; `group` counts the commits before it.
struct Copy {
    void* target;
    unsigned group;
    unsigned char bytes[16];
};

// Who wrote 16 bytes of shared memory last: thread + 1, and whether its warp has met since; 0 once the block has.
using Writer = std::uint16_t;
constexpr Writer met_warp = 0x8000;

// One thread of the block.
struct Fiber {
    Context context;
    unsigned thread = 0;
    Waiting waiting = Waiting::nothing;
    Collective collective = Collective::syncwarp;
    std::uint32_t mask = 0;
    void* operands = nullptr;
    Place place{nullptr, 0};
    std::vector<Copy> copies;
    unsigned first_copy = 0;  // those before it have arrived
    unsigned committed = 0;
    std::vector<Writer*> written;  // since the block met
    std::size_t first_unmet = 0;   // those from here on since the warp met
};

struct Warp {
    std::uint32_t present = 0;  // lanes that have not returned
    std::uint32_t ready = 0;    // lanes that may run
    std::uint32_t waiting = 0;  // lanes at a collective
};

enum class Schedule : std::uint32_t { forward, reverse, random };

// What a launch asks for; mirrored by host.py.
struct Launch {
    void (*entry)(void**);
    void** arguments;
    const char* kernel;
    std::uint32_t grid[3];
    std::uint32_t threads;
    std::uint32_t shared_bytes;
    std::uint32_t schedule;
    std::uint64_t seed;
};

struct State {
    const Launch* launch = nullptr;
    Fiber fibers[max_threads];
    Warp warps[max_warps];
    unsigned num_warps = 0;
    unsigned live = 0;
    unsigned at_barrier = 0;
    Fiber* current = nullptr;
    Context main;
    Schedule schedule = Schedule::forward;
    std::uint64_t random = 0;
};

extern State state;

inline std::uint32_t draw() {
    state.random = state.random * 6364136223846793005ull + 1442695040888963407ull;
    return static_cast<std::uint32_t>(state.random >> 33);
}

// races.cpp: `fiber` writes 16 bytes; reads them; the lanes of a mask meet; the block does.
void note_write(Fiber& fiber, void* address);
void require_met(const Fiber& fiber, const void* address, Place place);
void meet_in_warp(std::uint32_t mask, Fiber* lanes);
void meet_in_block();
// scheduler.cpp
void run_block();
// stacks.cpp: the lowest address, and the size, of a thread's stack.
char* stack_of(unsigned thread, std::size_t& bytes);
// report.cpp: "threads 0-31 wait at __syncthreads (decode.cu:80); threads 32-63 have returned"
const char* name_of(Collective kind);
std::string who_waits_where();
// warp.cpp: carries `kind` out for the lanes of `mask`, whose operands are in their fibers.
void perform(Collective kind, std::uint32_t mask, Fiber* lanes, Place place);
// shared.cpp
void prepare_shared(std::size_t bytes);
void start_shared();
void check_shared();
bool in_shared(const void* address, std::size_t bytes);
Writer* writer_of(const void* address);  // nullptr: not in shared memory
void require_aligned(const void* address, Place place);
void deliver_copies(Fiber& fiber, unsigned groups_in_flight);
// Tells where an address lies if shared memory is near; else an empty text.
void describe_shared(std::uintptr_t address, char* text, std::size_t size);
// launch.cpp
[[noreturn]] void end_launch(const char* message);

}  // namespace paged_host
