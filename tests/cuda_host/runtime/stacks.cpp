// Stacks of the threads, reused from block to block, and the switch from one to another.
#include <sys/mman.h>
#include <unistd.h>

#include "state.h"

namespace paged_host {

#if defined(__x86_64__) && !defined(PAGED_HOST_UCONTEXT)
asm(R"(
.text
.globl paged_host_switch
.hidden paged_host_switch
.type paged_host_switch, @function
paged_host_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size paged_host_switch, .-paged_host_switch
)");
#endif

namespace {

constexpr std::size_t stack_bytes = 128 << 10;

}  // namespace

// A guard page below each stack. Tops are staggered, or all stacks would compete for the same cache lines.
char* stack_of(unsigned thread, std::size_t& bytes) {
    static char* stacks = nullptr;
    static const std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const std::size_t stride = stack_bytes + page;
    if (stacks == nullptr) {
        void* all = mmap(nullptr, stride * max_threads, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (all == MAP_FAILED) end_launch("there is no memory for the stacks of 1024 threads");
        stacks = static_cast<char*>(all);
        for (unsigned i = 0; i < max_threads; ++i)
            mprotect(stacks + i * stride + page, stack_bytes, PROT_READ | PROT_WRITE);
    }
    bytes = stack_bytes - (thread * 704) % (16 << 10) / 64 * 64;
    return stacks + thread * stride + page;
}

}  // namespace paged_host
