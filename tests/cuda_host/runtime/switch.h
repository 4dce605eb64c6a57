// Switches between stacks. x86-64: eight instructions, no system call; elsewhere ucontext.
#pragma once
#include <cstddef>

namespace paged_host {

#if defined(__x86_64__) && !defined(PAGED_HOST_UCONTEXT)

struct Context {
    void* stack_pointer = nullptr;
};

extern "C" void paged_host_switch(void** from, void* to);

inline void switch_context(Context& from, Context& to) { paged_host_switch(&from.stack_pointer, to.stack_pointer); }

// `main` never returns.
inline void start_context(Context& context, void* stack, std::size_t bytes, void (*main)()) {
    void** top = reinterpret_cast<void**>(static_cast<char*>(stack) + bytes);
    *--top = nullptr;  // where main would return to; keeps the stack aligned as after a call
    *--top = reinterpret_cast<void*>(main);
    for (int i = 0; i < 6; ++i) *--top = nullptr;  // rbp, rbx, r12 .. r15
    context.stack_pointer = top;
}

#else

}  // namespace paged_host

#include <ucontext.h>

namespace paged_host {

struct Context {
    ucontext_t context;
};

inline void switch_context(Context& from, Context& to) { swapcontext(&from.context, &to.context); }

inline void start_context(Context& context, void* stack, std::size_t bytes, void (*main)()) {
    getcontext(&context.context);
    context.context.uc_stack.ss_sp = stack;
    context.context.uc_stack.ss_size = bytes;
    context.context.uc_link = nullptr;
    makecontext(&context.context, main, 0);
}

#endif

}  // namespace paged_host
