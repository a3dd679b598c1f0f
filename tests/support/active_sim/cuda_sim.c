/* A stand-in for libcuda.so.1: the calls of healthd/probe/cuda_driver.py, on GPUs whose memory is this process's own.
 * No NVIDIA header is needed; signatures and codes are those of cuda.h as cuda-bindings 13.5 declares them.
 * ACTIVE_SIM_GPUS: how many. ACTIVE_SIM_FAULT: cuda_init, no_device, memory_full.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101,
       INVALID_CONTEXT = 201, UNKNOWN = 999 };

static int ready;
static __thread long current = -1;

static int fault(const char *name)
{
    const char *wanted = getenv("ACTIVE_SIM_FAULT");
    return wanted && !strcmp(wanted, name);
}

static int gpus(void)
{
    const char *count = getenv("ACTIVE_SIM_GPUS");
    return count ? atoi(count) : 2;
}

int cuInit(unsigned flags)
{
    (void)flags;
    if (fault("cuda_init")) return UNKNOWN;
    if (fault("no_device")) return NO_DEVICE;
    ready = 1;
    return SUCCESS;
}

int cuDeviceGetCount(int *count)
{
    if (!ready) return NOT_INITIALIZED;
    *count = gpus();
    return SUCCESS;
}

int cuDeviceGet(int *device, int index)
{
    if (index < 0 || index >= gpus()) return INVALID_DEVICE;
    *device = index;
    return SUCCESS;
}

int cuDeviceGetPCIBusId(char *text, int length, int device)
{
    snprintf(text, (size_t)length, "0000:%02X:00.0", device * 0x11);
    return SUCCESS;
}

int cuDevicePrimaryCtxRetain(void **context, int device)
{
    *context = (void *)(intptr_t)(device + 1);
    return SUCCESS;
}

int cuCtxSetCurrent(void *context)
{
    current = (long)(intptr_t)context - 1;
    return SUCCESS;
}

int cuCtxSynchronize(void)
{
    return current < 0 ? INVALID_CONTEXT : SUCCESS;
}

int cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    if (current < 0) return INVALID_CONTEXT;
    *total = (size_t)80 << 30;
    *free_bytes = fault("memory_full") ? (size_t)64 << 20 : *total;
    return SUCCESS;
}

int cuMemAlloc_v2(uint64_t *address, size_t size)
{
    if (current < 0) return INVALID_CONTEXT;
    char *memory = malloc(size + 4096);
    if (!memory) return OUT_OF_MEMORY;
    *address = (uint64_t)(uintptr_t)memory + 512; /* aligned to less than a GPU page, as the real one may be */
    return SUCCESS;
}

int cuPointerSetAttribute(const void *value, int attribute, uint64_t address)
{
    return attribute == 6 && *(const unsigned *)value == 1 && address ? SUCCESS : INVALID_VALUE;
}

int cuMemsetD8_v2(uint64_t address, unsigned char byte, size_t size)
{
    if (current < 0) return INVALID_CONTEXT;
    memset((void *)(uintptr_t)address, byte, size);
    return SUCCESS;
}

int cuMemcpyHtoD_v2(uint64_t address, const void *host, size_t size)
{
    if (current < 0) return INVALID_CONTEXT;
    memcpy((void *)(uintptr_t)address, host, size);
    return SUCCESS;
}

int cuMemcpyDtoH_v2(void *host, uint64_t address, size_t size)
{
    if (current < 0) return INVALID_CONTEXT;
    memcpy(host, (const void *)(uintptr_t)address, size);
    return SUCCESS;
}

int cuStreamCreate(void **stream, unsigned flags)
{
    if (current < 0 || flags != 1) return INVALID_VALUE;
    *stream = (void *)(intptr_t)(current + 100);
    return SUCCESS;
}

int cuStreamQuery(void *stream)
{
    return stream ? SUCCESS : INVALID_VALUE;
}

int cuGetErrorName(int code, const char **name)
{
    switch (code) {
    case NO_DEVICE: *name = "CUDA_ERROR_NO_DEVICE"; return SUCCESS;
    case INVALID_CONTEXT: *name = "CUDA_ERROR_INVALID_CONTEXT"; return SUCCESS;
    case UNKNOWN: *name = "CUDA_ERROR_UNKNOWN"; return SUCCESS;
    default: return INVALID_VALUE;
    }
}
