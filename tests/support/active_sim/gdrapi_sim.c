/* A stand-in for libgdrapi.so.2, on the memory of cuda_sim.c. Signatures and struct gdr_info_v2 are those of gdrcopy
 * 2.5's gdrapi.h. A mapping begins one GPU page before the buffer, as the real one may.
 * ACTIVE_SIM_FAULT: gdr_open, gdr_pin, gdr_byte and gdr_lost (both on the second GPU), gdr_hang.
 */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PAGE = 1 << 16 };

typedef struct { unsigned long h; } handle_t;
struct info {
    uint64_t va, mapped_size;
    uint32_t page_size;
    uint64_t tm_cycles;
    uint32_t cycles_per_ms;
    unsigned mapped : 1, wc_mapping : 1;
    int mapping_type;
};

static int pins, library;

static int fault(const char *name)
{
    const char *wanted = getenv("ACTIVE_SIM_FAULT");
    return wanted && !strcmp(wanted, name);
}

void *gdr_open(void)
{
    return fault("gdr_open") ? NULL : &library;
}

int gdr_pin_buffer(void *g, unsigned long address, size_t size, uint64_t token, uint32_t space, handle_t *handle)
{
    if (g != &library || address % PAGE || size % PAGE || token || space) return EINVAL;
    if (fault("gdr_pin")) return ENOMEM;
    pins++;
    handle->h = address;
    return 0;
}

int gdr_map(void *g, handle_t handle, void **va, size_t size)
{
    if (g != &library || size % PAGE) return EINVAL;
    *va = (void *)(handle.h - PAGE);
    return 0;
}

int gdr_get_info_v2(void *g, handle_t handle, struct info *info)
{
    if (g != &library) return EINVAL;
    memset(info, 0, sizeof *info);
    info->va = handle.h - PAGE;
    info->page_size = PAGE;
    info->mapped = 1;
    return 0;
}

int gdr_copy_to_mapping(handle_t handle, void *mapped, const void *host, size_t size)
{
    if ((unsigned long)mapped != handle.h) return EINVAL;
    if (fault("gdr_hang"))
        for (;;) pause();
    if (fault("gdr_lost") && pins == 2) return 0;
    memcpy(mapped, host, size);
    return 0;
}

int gdr_copy_from_mapping(handle_t handle, void *host, const void *mapped, size_t size)
{
    if ((unsigned long)mapped != handle.h) return EINVAL;
    memcpy(host, mapped, size);
    if (fault("gdr_byte") && pins == 2) ((unsigned char *)host)[size / 2] ^= 1;
    return 0;
}

int gdr_unmap(void *g, handle_t handle, void *va, size_t size)
{
    return g == &library && (unsigned long)va == handle.h - PAGE && size % PAGE == 0 ? 0 : EINVAL;
}

int gdr_unpin_buffer(void *g, handle_t handle)
{
    return g == &library && handle.h ? 0 : EINVAL;
}
