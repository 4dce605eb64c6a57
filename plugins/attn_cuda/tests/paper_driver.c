// A driver on paper: it has no GPU, answers what cuda.core asks on the way to a launch, and keeps what was launched.
// What it does not know answers CUDA_ERROR_NOT_SUPPORTED; the launches are read by the test through `launched`.
#include <stdint.h>
#include <string.h>

typedef int Result;

struct Launch {
    unsigned grid[3], block[3], shared_bytes;
    uint64_t stream, kernel, values[32];
    int num_values;
};

struct Launch launched[64];
int num_launched;
int allowed_shared;  // what cuKernelSetAttribute was given last
size_t parameter_sizes[32];
int num_parameters;
char kernel_symbol[512];  // the one kernel that every library holds

static Result init(unsigned flags) { return 0; }
static Result driver_version(int* version) { *version = 13000; return 0; }
static Result device_count(int* count) { *count = 1; return 0; }
static Result device_get(int* device, int ordinal) { *device = ordinal; return 0; }
static Result device_name(char* name, int length, int device) { strncpy(name, "NVIDIA of paper", length); return 0; }

static Result device_attribute(int* value, int attribute, int device) {
    switch (attribute) {
        case 16: *value = 132; break;      // MULTIPROCESSOR_COUNT
        case 75: *value = 9; break;        // COMPUTE_CAPABILITY_MAJOR
        case 76: *value = 0; break;        // COMPUTE_CAPABILITY_MINOR
        case 97: *value = 232448; break;   // MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
        default: *value = 0;
    }
    return 0;
}

static void* current;
static Result context_retain(void** context, int device) { *context = (void*)0x100; return 0; }
static Result context_release(int device) { return 0; }
static Result context_current(void** context) { *context = current; return 0; }
static Result context_set(void* context) { current = context; return 0; }
static Result context_push(void* context) { current = context; return 0; }
static Result context_pop(void** context) { *context = current; return 0; }
static Result context_device(int* device) { *device = 0; return 0; }

static Result library_load(void** library, const void* code, void** a, void** b, unsigned c, void** d, void** e, unsigned f) {
    if (memcmp(code, "\177ELF", 4)) return 209;  // NO_BINARY_FOR_GPU
    *library = (void*)0x200;
    return 0;
}
static Result library_unload(void* library) { return 0; }
static Result library_kernel(void** kernel, void* library, const char* name) {
    if (strcmp(name, kernel_symbol)) return 500;  // NOT_FOUND
    *kernel = (void*)0x300;
    return 0;
}
static Result kernel_library(void** library, void* kernel) { *library = (void*)0x200; return 0; }
static Result parameter(void* kernel, size_t index, size_t* offset, size_t* size) {
    if (index >= (size_t)num_parameters) return 1;  // INVALID_VALUE: there are no more
    *offset = 8 * index;
    *size = parameter_sizes[index];
    return 0;
}
static Result kernel_set(int attribute, int value, void* kernel, int device) {
    if (attribute != 8 || value > 232448) return 1;  // MAX_DYNAMIC_SHARED_SIZE_BYTES
    allowed_shared = value;
    return 0;
}

struct Config {
    unsigned grid[3], block[3], shared_bytes;
    void* stream;
    void* attributes;
    unsigned num_attributes;
};

static Result launch(const struct Config* config, void* kernel, void** arguments, void** extra) {
    struct Launch* kept = &launched[num_launched++ % 64];
    memcpy(kept->grid, config->grid, sizeof kept->grid);
    memcpy(kept->block, config->block, sizeof kept->block);
    kept->shared_bytes = config->shared_bytes;
    kept->stream = (uint64_t)config->stream;
    kept->kernel = (uint64_t)kernel;
    kept->num_values = num_parameters;
    for (int i = 0; i < num_parameters; i++) {  // as a driver does: as many bytes as the parameter has
        kept->values[i] = 0;
        memcpy(&kept->values[i], arguments[i], parameter_sizes[i]);
    }
    return 0;
}

static Result error_name(Result code, const char** name) { *name = "CUDA_ERROR_OF_PAPER"; return 0; }
static Result unknown(void) { return 801; }

Result cuGetProcAddress_v2(const char* name, void** address, int version, uint64_t flags, int* status) {
    static const struct { const char* name; void* address; } known[] = {
        {"cuInit", init}, {"cuDriverGetVersion", driver_version}, {"cuDeviceGetCount", device_count},
        {"cuDeviceGet", device_get}, {"cuDeviceGetName", device_name}, {"cuDeviceGetAttribute", device_attribute},
        {"cuDevicePrimaryCtxRetain", context_retain}, {"cuDevicePrimaryCtxRelease", context_release},
        {"cuCtxGetCurrent", context_current}, {"cuCtxSetCurrent", context_set}, {"cuCtxPushCurrent", context_push},
        {"cuCtxPopCurrent", context_pop}, {"cuCtxGetDevice", context_device},
        {"cuLibraryLoadData", library_load}, {"cuLibraryUnload", library_unload},
        {"cuLibraryGetKernel", library_kernel}, {"cuKernelGetLibrary", kernel_library},
        {"cuKernelGetParamInfo", parameter}, {"cuKernelSetAttribute", kernel_set}, {"cuLaunchKernelEx", launch},
        {"cuGetErrorName", error_name}, {"cuGetErrorString", error_name},
    };
    *address = unknown;
    for (unsigned i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(known[i].name, name)) *address = known[i].address;
    if (status) *status = 0;
    return 0;
}
