// What is said of a kernel that breaks a rule: who waits where.
#include <cstdarg>
#include <cstdio>

#include "state.h"

namespace paged_host {

namespace {

const char* file_name(const char* path) {
    const char* name = path;
    for (; *path != 0; ++path)
        if (*path == '/') name = path + 1;
    return name;
}

std::string doing(const Fiber& fiber) {
    char text[200];
    if (fiber.waiting == Waiting::returned) return "have returned";
    if (fiber.waiting == Waiting::nothing) return "run";
    if (fiber.waiting == Waiting::barrier)
        std::snprintf(text, sizeof text, "wait at __syncthreads (%s:%d)", file_name(fiber.place.file),
                      fiber.place.line);
    else
        std::snprintf(text, sizeof text, "wait at %s of lanes %08x (%s:%d)", name_of(fiber.collective), fiber.mask,
                      file_name(fiber.place.file), fiber.place.line);
    return text;
}

}  // namespace

const char* name_of(Collective kind) {
    static const char* const names[] = {"__syncwarp", "a shuffle", "a vote", "ldmatrix_x4", "ldmatrix_x4_trans",
                                        "mma_bf16", "mma_f16"};
    return names[static_cast<unsigned>(kind)];
}

std::string who_waits_where() {
    std::string text;
    for (unsigned thread = 0; thread < state.launch->threads;) {
        std::string what = doing(state.fibers[thread]);
        unsigned end = thread + 1;
        while (end < state.launch->threads && doing(state.fibers[end]) == what) ++end;
        std::string which = std::to_string(thread);
        if (end > thread + 1) which += "-" + std::to_string(end - 1);
        text += (text.empty() ? "threads " : "; threads ") + which + " " + what;
        thread = end;
    }
    return text;
}

void fail(Place place, const char* format, ...) {
    static char text[8000];
    int length = 0;
    if (place.line != 0) length = std::snprintf(text, sizeof text, "%s:%d: ", file_name(place.file), place.line);
    va_list values;
    va_start(values, format);
    std::vsnprintf(text + length, sizeof text - static_cast<std::size_t>(length), format, values);
    va_end(values);
    end_launch(text);
}

}  // namespace paged_host
