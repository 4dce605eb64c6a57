// A launch: blocks one after the other, faults turned into messages. Called by host.py through ctypes.
#include <csetjmp>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <vector>

#include <ucontext.h>

#include "state.h"

namespace paged_host {

namespace {

struct Region {
    std::uintptr_t begin;
    std::size_t bytes;
    char name[64];
};

std::vector<Region> regions;  // memory that is named in reports
sigjmp_buf way_out;
thread_local bool launching = false;  // this thread is inside a launch
bool in_kernel = false;
char report[10000];
std::uintptr_t fault_code = 0;  // address of the instruction that faulted, 0 if none did

void describe_address(std::uintptr_t address, char* text, std::size_t size) {
    const Region* nearest = nullptr;
    std::uintptr_t least = 1 << 20;
    for (const Region& region : regions) {
        std::uintptr_t end = region.begin + region.bytes;
        std::uintptr_t distance = address < region.begin ? region.begin - address : address >= end ? address - end : 0;
        if (distance < least) {
            least = distance;
            nearest = &region;
        }
    }
    if (nearest == nullptr) {
        std::snprintf(text, size, "near no named memory");
    } else if (address < nearest->begin) {
        std::snprintf(text, size, "%zu bytes before the begin of %s (%zu bytes)", nearest->begin - address,
                      nearest->name, nearest->bytes);
    } else if (address >= nearest->begin + nearest->bytes) {
        std::snprintf(text, size, "%zu bytes beyond the end of %s (%zu bytes)",
                      address - nearest->begin - nearest->bytes, nearest->name, nearest->bytes);
    } else {
        std::snprintf(text, size, "in %s", nearest->name);
    }
}

void on_signal(int number, siginfo_t* info, void* context) {
    if (!launching) {  // not ours: as if this handler were not there
        std::signal(number, SIG_DFL);
        return;
    }
#if defined(__x86_64__)
    fault_code = static_cast<std::uintptr_t>(static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP]);
#else
    (void)context;
    fault_code = 1;
#endif
    char text[300], where[160];
    auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
    describe_shared(address, where, sizeof where);
    if (where[0] == 0) describe_address(address, where, sizeof where);
    if (number == SIGFPE) {
        std::snprintf(text, sizeof text, "an integer division by zero");
    } else if (number == SIGILL) {
        std::snprintf(text, sizeof text, "undefined behaviour (index of an array, shift, overflow or alignment)");
    } else {
        std::snprintf(text, sizeof text, "an access outside of memory at %p: %s", info->si_addr, where);
    }
    end_launch(text);
}

// Takes the signals for the time of a launch, on a stack of its own: a thread may have overrun its own.
class Signals {
  public:
    Signals() {
        static char stack[64 << 10];
        stack_t own{};
        own.ss_sp = stack;
        own.ss_size = sizeof stack;
        sigaltstack(&own, &stack_before_);
        struct sigaction action{};
        action.sa_sigaction = on_signal;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK;
        sigemptyset(&action.sa_mask);
        for (unsigned i = 0; i < 4; ++i) sigaction(numbers[i], &action, &before_[i]);
        launching = true;
    }
    ~Signals() {
        launching = false;
        for (unsigned i = 0; i < 4; ++i) sigaction(numbers[i], &before_[i], nullptr);
        if ((stack_before_.ss_flags & SS_DISABLE) == 0) sigaltstack(&stack_before_, nullptr);
    }

  private:
    static constexpr int numbers[4] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
    stack_t stack_before_{};
    struct sigaction before_[4];
};

// Block i of the order in which blocks run.
std::uint64_t nth_block(std::uint64_t i, std::uint64_t total, std::uint64_t stride) {
    if (state.schedule == Schedule::reverse) return total - 1 - i;
    return i * stride % total;
}

std::uint64_t stride_through(std::uint64_t total) {
    if (state.schedule != Schedule::random || total < 3) return 1;
    for (;;) {
        std::uint64_t stride = 1 + draw() % (total - 1), a = stride, b = total;
        while (b != 0) {
            std::uint64_t rest = a % b;
            a = b;
            b = rest;
        }
        if (a == 1) return stride;
    }
}

void run_blocks(const Launch& launch) {
    gridDim = {launch.grid[0], launch.grid[1], launch.grid[2]};
    blockDim = {launch.threads, 1, 1};
    threadIdx = {0, 0, 0};
    prepare_shared(launch.shared_bytes);
    std::uint64_t total = std::uint64_t{launch.grid[0]} * launch.grid[1] * launch.grid[2];
    std::uint64_t stride = stride_through(total);
    for (std::uint64_t i = 0; i < total; ++i) {
        std::uint64_t block = nth_block(i, total, stride);
        blockIdx = {static_cast<unsigned>(block % launch.grid[0]),
                    static_cast<unsigned>(block / launch.grid[0] % launch.grid[1]),
                    static_cast<unsigned>(block / launch.grid[0] / launch.grid[1])};
        start_shared();
        in_kernel = true;
        run_block();
        in_kernel = false;
        check_shared();
    }
}

}  // namespace

void end_launch(const char* message) {
    int length = std::snprintf(report, sizeof report, "%s, block (%u, %u, %u)", state.launch->kernel, blockIdx.x,
                               blockIdx.y, blockIdx.z);
    if (in_kernel)
        length += std::snprintf(report + length, sizeof report - static_cast<std::size_t>(length), ", thread %u",
                                threadIdx.x);
    std::snprintf(report + length, sizeof report - static_cast<std::size_t>(length), ": %s", message);
    siglongjmp(way_out, 1);
}

extern "C" {

// Runs the grid. Returns nullptr, or what went wrong; `code` is then the address of the instruction that faulted, or 0.
__attribute__((visibility("default"))) const char* paged_host_launch(const Launch* launch, std::uintptr_t* code) {
    state.launch = launch;
    state.schedule = static_cast<Schedule>(launch->schedule);
    state.random = launch->seed * 2654435761u + 1;
    in_kernel = false;
    fault_code = 0;
    Signals signals;
    if (sigsetjmp(way_out, 1) == 0) {
        run_blocks(*launch);
        return nullptr;
    }
    *code = fault_code;
    return report;
}

__attribute__((visibility("default"))) void paged_host_name_region(std::uintptr_t begin, std::size_t bytes,
                                                                   const char* name) {
    Region region{begin, bytes, {}};
    std::snprintf(region.name, sizeof region.name, "%s", name);
    regions.push_back(region);
}

__attribute__((visibility("default"))) void paged_host_forget_region(std::uintptr_t begin) {
    for (std::size_t i = 0; i < regions.size(); ++i)
        if (regions[i].begin == begin) {
            regions.erase(regions.begin() + static_cast<std::ptrdiff_t>(i));
            return;
        }
}
}

}  // namespace paged_host
