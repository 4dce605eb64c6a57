// What kernels ask of the runtime (runtime/*.cpp): fibers for threads, barriers, warp collectives, shared memory.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#pragma GCC visibility push(default)

struct dim3 {
    unsigned x = 1, y = 1, z = 1;
};

// The built-in variables. Every switch to another fiber sets threadIdx.
extern dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace paged_host {

// Where a call stands in the kernel's source.
struct Place {
    const char* file;
    int line;

    // As a default argument: the place of the call that leaves it out.
    static constexpr Place here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
        return {file, line};
    }
};

// What all lanes of a mask do together; `Operands` of a lane lie on its own stack.
enum class Collective : std::uint32_t { syncwarp, shuffle, ballot, ldmatrix, ldmatrix_trans, mma_bf16, mma_f16 };

struct Shuffle {
    std::uint64_t value;   // replaced by the value of lane `source`
    std::uint32_t source;
};

struct Ballot {
    bool predicate;
    std::uint32_t votes;
};

struct LoadMatrix {
    const void* row;
    std::uint32_t* registers;  // [4]
};

struct Mma {
    float* d;                // [4], accumulated in place
    const std::uint32_t* a;  // [4]
    const std::uint32_t* b;  // [2]
};

// All threads of the block meet here.
void barrier(Place place);
// The lanes of `mask` meet here; then the collective is carried out for all of them.
void collective(Collective kind, std::uint32_t mask, void* operands, Place place);
// Another ready fiber may run here (under a random schedule only).
void pause();

// Shared memory of the block: filled with 0xff at its start, ends at a guard page.
void* dynamic_shared();
void* static_shared(const void* key, std::size_t bytes);

// cp.async: `shared` is poisoned now and gets its 16 bytes at the wait that covers their group.
void begin_copy(void* shared, const void* global, bool valid, Place place);
void commit_copies();
void wait_copies(unsigned groups_in_flight);

// Ends the launch with an error that names kernel, block and thread.
[[noreturn]] void fail(Place place, const char* format, ...) __attribute__((format(printf, 2, 3)));

// Accesses of 16 bytes: aligned; and what another thread has written to shared memory is read behind a barrier only.
void check_load(const void* address, Place place);
void check_store(void* address, Place place);

#pragma GCC visibility pop

// Calls a kernel with parameters unpacked from an array of addresses, as cuLaunchKernel takes them.
template <typename... Parameters, std::size_t... I>
inline void unpack(void (*kernel)(Parameters...), void** arguments, std::index_sequence<I...>) {
    kernel(*static_cast<std::remove_const_t<Parameters>*>(arguments[I])...);
}

template <typename... Parameters>
inline void call(void (*kernel)(Parameters...), void** arguments) {
    unpack(kernel, arguments, std::index_sequence_for<Parameters...>{});
}

// A letter and a size a parameter, so that a launch with other arguments is refused.
template <typename T>
constexpr char letter() {
    return std::is_pointer_v<T> ? 'p' : std::is_floating_point_v<T> ? 'f' : std::is_integral_v<T> ? 'i' : 's';
}

template <typename... Parameters>
inline const char* letters(void (*)(Parameters...)) {
    static const char text[] = {letter<std::remove_const_t<Parameters>>()..., '\0'};
    return text;
}

template <typename... Parameters>
inline const std::size_t* sizes(void (*)(Parameters...)) {
    static const std::size_t bytes[] = {sizeof(Parameters)..., 0};
    return bytes;
}

}  // namespace paged_host

// Stands once at the end of each translation unit that is built for a launch.
#define PAGED_HOST_ENTRY(...)                                                                            \
    extern "C" __attribute__((visibility("default"))) void paged_host_entry(void** arguments) {          \
        ::paged_host::call(&__VA_ARGS__, arguments);                                                     \
    }                                                                                                    \
    extern "C" __attribute__((visibility("default"))) const char* paged_host_letters() {                 \
        return ::paged_host::letters(&__VA_ARGS__);                                                    \
    }                                                                                                    \
    extern "C" __attribute__((visibility("default"))) const std::size_t* paged_host_sizes() {            \
        return ::paged_host::sizes(&__VA_ARGS__);                                                        \
    }
