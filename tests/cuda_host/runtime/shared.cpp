// Shared memory with guard pages, and copies that are on their way to it.
#include <cstdio>
#include <cstring>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

#include "state.h"

namespace paged_host {

namespace {

const std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
constexpr std::size_t guard = 256 << 10;  // bytes without access, before the pages and behind them

// An array that ends at a page without access. The bytes before it, up to a page's beginning, hold the poison.
struct Guarded {
    const void* key = nullptr;
    unsigned char* pages = nullptr;
    std::size_t mapped = 0;  // without the guards
    std::size_t bytes = 0;
    bool in_use = false;     // poisoned for this block
    std::vector<Writer> writers;  // one for 16 bytes

    unsigned char* begin() const { return pages + mapped - rounded(); }
    std::size_t rounded() const { return (bytes + 15) / 16 * 16; }
    bool holds(const void* address, std::size_t size) const {
        auto first = static_cast<const unsigned char*>(address);
        return in_use && first >= begin() && first + size <= begin() + bytes;
    }
};

void map(Guarded& array, std::size_t bytes) {
    std::size_t mapped = (bytes + page - 1) / page * page;
    void* all = mmap(nullptr, mapped + 2 * guard, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED) end_launch("there is no memory for shared memory");
    array.pages = static_cast<unsigned char*>(all) + guard;
    array.mapped = mapped;
    array.bytes = bytes;
    if (mapped > 0) mprotect(array.pages, mapped, PROT_READ | PROT_WRITE);
}

Guarded dynamic;
std::vector<Guarded> arrays;  // the static ones of all kernels so far

void fill(Guarded& array) {
    std::memset(array.pages, poison, array.mapped);
    array.writers.assign(array.rounded() / 16, 0);
    array.in_use = true;
}

void check(const Guarded& array, const char* what) {
    const unsigned char* begin = array.begin();
    for (const unsigned char* byte = array.pages; byte < begin; ++byte)
        if (*byte != poison) {
            char text[200];
            std::snprintf(text, sizeof text, "%ld bytes before the begin of %s shared memory were written to",
                          static_cast<long>(begin - byte), what);
            end_launch(text);
        }
    for (const unsigned char* byte = begin + array.bytes; byte < begin + array.rounded(); ++byte)
        if (*byte != poison) {
            char text[200];
            std::snprintf(text, sizeof text, "%ld bytes beyond the end of %s shared memory were written to",
                          static_cast<long>(byte - begin - array.bytes), what);
            end_launch(text);
        }
}

void deliver(Fiber& fiber, const Copy& copy) {
    std::memcpy(copy.target, copy.bytes, sizeof copy.bytes);
    note_write(fiber, copy.target);
}

}  // namespace

void prepare_shared(std::size_t bytes) {
    if (dynamic.pages == nullptr || dynamic.bytes != bytes) {
        if (dynamic.pages != nullptr) munmap(dynamic.pages - guard, dynamic.mapped + 2 * guard);
        dynamic = Guarded{};
        map(dynamic, bytes);
    }
}

void start_shared() {
    fill(dynamic);
    for (Guarded& array : arrays) array.in_use = false;
}

void check_shared() {
    check(dynamic, "dynamic");
    for (const Guarded& array : arrays)
        if (array.in_use) check(array, "static");
}

void* dynamic_shared() { return dynamic.begin(); }

void* static_shared(const void* key, std::size_t bytes) {
    for (Guarded& array : arrays)
        if (array.key == key && array.bytes == bytes) {
            if (!array.in_use) fill(array);
            return array.begin();
        }
    Guarded array;
    array.key = key;
    map(array, bytes);
    fill(array);
    arrays.push_back(array);
    return array.begin();
}

bool in_shared(const void* address, std::size_t bytes) {
    if (dynamic.holds(address, bytes)) return true;
    for (const Guarded& array : arrays)
        if (array.holds(address, bytes)) return true;
    return false;
}

void describe_shared(std::uintptr_t address, char* text, std::size_t size) {
    text[0] = 0;
    auto describe = [&](const Guarded& array, const char* what) {
        auto begin = reinterpret_cast<std::uintptr_t>(array.begin()), end = begin + array.bytes;
        auto first = reinterpret_cast<std::uintptr_t>(array.pages) - guard;
        if (!array.in_use || address < first || address >= first + array.mapped + 2 * guard) return;
        if (address < begin)
            std::snprintf(text, size, "%zu bytes before the begin of %s shared memory (%zu bytes)",
                          static_cast<std::size_t>(begin - address), what, array.bytes);
        else
            std::snprintf(text, size, "%zu bytes beyond the end of %s shared memory (%zu bytes)",
                          static_cast<std::size_t>(address - end), what, array.bytes);
    };
    describe(dynamic, "dynamic");
    for (const Guarded& array : arrays) describe(array, "static");
}

Writer* writer_of(const void* address) {
    auto find = [address](Guarded& array) {
        auto offset = static_cast<std::size_t>(static_cast<const unsigned char*>(address) - array.begin());
        return &array.writers[offset / 16];
    };
    if (dynamic.holds(address, 1)) return find(dynamic);
    for (Guarded& array : arrays)
        if (array.holds(address, 1)) return find(array);
    return nullptr;
}

void require_aligned(const void* address, Place place) {
    if (reinterpret_cast<std::uintptr_t>(address) % 16 != 0)
        fail(place, "an access of 16 bytes at %p, which is no multiple of that", address);
}

void begin_copy(void* shared, const void* global, bool valid, Place place) {
    Fiber& fiber = *state.current;
    fiber.place = place;  // for the report, should reading fault
    require_aligned(shared, place);
    if (!in_shared(shared, 16)) fail(place, "cp.async writes to %p, outside shared memory", shared);
    Copy copy{shared, fiber.committed, {}};
    if (valid) {
        require_aligned(global, place);
        if (in_shared(global, 1)) fail(place, "cp.async reads from shared memory");
        std::memcpy(copy.bytes, global, 16);
    }
    // A copy may arrive at any time before its wait. At the latest in an ordered schedule, so that a missing wait
    // shows; under a random one sometimes at once, so that a target still being read shows as well.
    if (state.schedule == Schedule::random && draw() % 2 == 0) return deliver(fiber, copy);
    std::memset(shared, poison, 16);
    fiber.copies.push_back(copy);
}

void commit_copies() { ++state.current->committed; }

void deliver_copies(Fiber& fiber, unsigned groups_in_flight) {
    while (fiber.first_copy < fiber.copies.size()) {
        const Copy& copy = fiber.copies[fiber.first_copy];
        if (copy.group + groups_in_flight >= fiber.committed) return;
        deliver(fiber, copy);
        ++fiber.first_copy;
    }
    fiber.copies.clear();
    fiber.first_copy = 0;
}

void wait_copies(unsigned groups_in_flight) { deliver_copies(*state.current, groups_in_flight); }

}  // namespace paged_host
