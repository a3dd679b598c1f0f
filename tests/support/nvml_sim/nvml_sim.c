/* A simulated libnvidia-ml.so.1 that the real pynvml loads. Its state is the file named by NVML_SIM_STATE, read
 * again whenever it changes; the format is described once, in healthd/sim/nvml.py. No NVIDIA header is needed: the
 * struct layouts below are those of nvml.h as nvidia-ml-py 13.615.71 declares them.
 *
 * Another call that answers with numbers is one line in the section "calls".
 */
#include <math.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>

enum {
    OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9,
    GPU_IS_LOST = 15, RESET_REQUIRED = 16, VERSION_MISMATCH = 18, ARGUMENT_VERSION_MISMATCH = 25, UNKNOWN = 999
};
enum { GPUS = 64, LINES = 8192, PLACES = 4 * LINES };

typedef unsigned long long u64;
typedef struct { int index; } *device_t;

/* ---- the state file ---- */

static struct { char key[112]; char value[1536]; } lines[LINES];
static short places[PLACES]; /* by the hash of a key: 1 + the first line that has it; 0 for none */
static int line_count, initialised, started[GPUS];
static struct stat seen;
static struct { int index; } devices[GPUS];

/* Where a key stands in places, or would: most calls ask for lines that are in no file, such as a GPU's fault. */
static short *place_of(const char *key)
{
    unsigned at = 2166136261u;
    for (const char *letter = key; *letter; letter++) at = (at ^ (unsigned char)*letter) * 16777619u;
    for (at %= PLACES; places[at] && strcmp(lines[places[at] - 1].key, key);) at = (at + 1) % PLACES;
    return &places[at];
}

static const char *line_of(const char *key)
{
    short found = *place_of(key);
    return found ? lines[found - 1].value : NULL;
}

static char *trimmed(char *text)
{
    text += strspn(text, " \t");
    size_t length = strlen(text);
    while (length && strchr(" \t\r\n", text[length - 1])) text[--length] = 0;
    return text;
}

static int refresh(void)
{
    const char *path = getenv("NVML_SIM_STATE");
    struct stat now;
    if (!path || stat(path, &now)) return UNKNOWN;
    if (now.st_ino == seen.st_ino && now.st_size == seen.st_size && now.st_mtim.tv_sec == seen.st_mtim.tv_sec &&
        now.st_mtim.tv_nsec == seen.st_mtim.tv_nsec)
        return OK;
    FILE *file = fopen(path, "r");
    if (!file) return UNKNOWN;
    char text[1792];
    memset(places, 0, sizeof places);
    for (line_count = 0; line_count < LINES && fgets(text, sizeof text, file);) {
        char *equals = strchr(text, '=');
        if (!equals || *trimmed(text) == '#') continue;
        *equals = 0;
        snprintf(lines[line_count].key, sizeof lines[0].key, "%s", trimmed(text));
        snprintf(lines[line_count].value, sizeof lines[0].value, "%s", trimmed(equals + 1));
        short *place = place_of(lines[line_count++].key);
        if (!*place) *place = (short)line_count;
    }
    fclose(file);
    seen = now;
    return OK;
}

/* ---- faults ---- */

static void nap(double seconds)
{
    struct timespec until = { (time_t)seconds, (long)((seconds - floor(seconds)) * 1e9) };
    nanosleep(&until, NULL);
}

static int suffer(const char *fault)
{
    if (!fault || !strcmp(fault, "none")) return OK;
    if (!strcmp(fault, "version_mismatch")) return VERSION_MISMATCH;
    if (!strcmp(fault, "driver_not_loaded")) return DRIVER_NOT_LOADED;
    if (!strcmp(fault, "lost")) return GPU_IS_LOST;
    if (!strcmp(fault, "reset_required")) return RESET_REQUIRED;
    if (!strcmp(fault, "unknown_error")) return UNKNOWN;
    if (!strncmp(fault, "hang ", 5)) {
        nap(atof(fault + 5));
        return OK;
    }
    if (!strcmp(fault, "crash")) raise(SIGSEGV);
    return INVALID_ARGUMENT;
}

/* What every call begins with: the file as it is now, and the library's own fault. */
static int enter(void)
{
    int ret = refresh();
    if (!ret) ret = suffer(line_of("lib.fault"));
    return ret ? ret : initialised ? OK : UNINITIALIZED;
}

static const char *gpu_line(device_t gpu, const char *name)
{
    char key[112];
    snprintf(key, sizeof key, "gpu%d.%s", gpu->index, name);
    return line_of(key);
}

static int enter_gpu(device_t gpu)
{
    int ret = enter();
    return ret ? ret : suffer(gpu_line(gpu, "fault"));
}

static int enter_identity(device_t gpu)
{
    int ret = enter_gpu(gpu);
    return ret == RESET_REQUIRED ? OK : ret;
}

/* NOT_SUPPORTED for a line that is missing, the code of "error CODE", else OK. */
static int refusal(const char *value)
{
    if (!value) return NOT_SUPPORTED;
    return strncmp(value, "error ", 6) ? OK : atoi(value + 6);
}

/* ---- values ---- */

static int text_of(const char *value, char *out, unsigned size)
{
    int ret = refusal(value);
    if (ret) return ret;
    if (strlen(value) >= size) return INSUFFICIENT_SIZE;
    strcpy(out, value);
    return OK;
}

static int split(const char *value, u64 *out, int most)
{
    int count = 0;
    for (char *end; count < most; value = end) {
        u64 number = strtoull(value, &end, 0);
        if (end == value) break;
        out[count++] = number;
    }
    return count;
}

/* The numbers of a call: from its line with these arguments, else from its line without. */
static int numbers(device_t gpu, const char *name, const char *arguments, u64 *out, int most, int *count)
{
    int ret = enter_gpu(gpu);
    if (ret) return ret;
    char exact[112];
    snprintf(exact, sizeof exact, "%s%s", name, arguments);
    const char *value = gpu_line(gpu, exact);
    if (!value) value = gpu_line(gpu, name);
    if ((ret = refusal(value))) return ret;
    *count = split(value, out, most);
    return OK;
}

static int numbers_into(device_t gpu, const char *name, const char *arguments, unsigned **out, int wanted)
{
    u64 found[16] = { 0 };
    int count, ret = numbers(gpu, name, arguments, found, 16, &count);
    for (int i = 0; !ret && i < wanted; i++) *out[i] = (unsigned)found[i];
    return ret;
}

static int long_into(device_t gpu, const char *name, const char *arguments, u64 *out)
{
    int count;
    return numbers(gpu, name, arguments, out, 1, &count);
}

/* ---- the library ---- */

int nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    initialised = 1;
    int ret = enter();
    if (ret) initialised = 0;
    return ret;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void)
{
    int ret = enter();
    if (!ret) initialised = 0;
    if (!ret) memset(started, 0, sizeof started);
    return ret;
}
const char *nvmlErrorString(int code) { (void)code; return "simulated error"; }

int nvmlSystemGetDriverVersion(char *out, unsigned size)
{
    int ret = enter();
    return ret ? ret : text_of(line_of("lib.driver_version"), out, size);
}
int nvmlSystemGetNVMLVersion(char *out, unsigned size)
{
    int ret = enter();
    return ret ? ret : text_of(line_of("lib.nvml_version"), out, size);
}
int nvmlGetExcludedDeviceCount(unsigned *out)
{
    int ret = enter();
    const char *value = line_of("lib.excluded_count");
    if (!ret) ret = refusal(value);
    if (!ret) *out = (unsigned)atoi(value);
    return ret;
}
int nvmlDeviceGetCount_v2(unsigned *out)
{
    int ret = enter();
    for (*out = 0; !ret && *out < GPUS; ++*out) {
        devices[*out].index = (int)*out;
        if (!gpu_line((device_t)&devices[*out], "uuid")) break;
    }
    return ret;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t *out)
{
    unsigned count;
    int ret = nvmlDeviceGetCount_v2(&count);
    if (ret) return ret;
    if (index >= count) return INVALID_ARGUMENT;
    *out = (device_t)&devices[index];
    const char *fault = gpu_line(*out, "fault");
    if (fault && (!strcmp(fault, "lost") || !strcmp(fault, "unknown_error"))) return suffer(fault);
    const char *starts_s = gpu_line(*out, "starts_s");
    if (starts_s && !started[index]) nap(atof(starts_s));
    started[index] = 1;
    return OK;
}

static int handle_by(const char *name, const char *wanted, device_t *out)
{
    unsigned count;
    int ret = nvmlDeviceGetCount_v2(&count);
    for (unsigned index = 0; !ret && index < count; index++) {
        const char *value = gpu_line((device_t)&devices[index], name);
        if (value && !strcasecmp(value, wanted)) return nvmlDeviceGetHandleByIndex_v2(index, out);
    }
    return ret ? ret : 6;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, device_t *out) { return handle_by("uuid", uuid, out); }
int nvmlDeviceGetHandleByPciBusId_v2(const char *pci, device_t *out) { return handle_by("pci", pci, out); }

/* ---- who a GPU is ---- */

int nvmlDeviceGetUUID(device_t gpu, char *out, unsigned size)
{
    int ret = enter_identity(gpu);
    return ret ? ret : text_of(gpu_line(gpu, "uuid"), out, size);
}

typedef struct {
    char legacy[16];
    unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
    char id[32];
} pci_t;

int nvmlDeviceGetPciInfo_v3(device_t gpu, pci_t *out)
{
    int ret = enter_identity(gpu);
    memset(out, 0, sizeof *out);
    if (!ret) ret = text_of(gpu_line(gpu, "pci"), out->id, sizeof out->id);
    if (ret) return ret;
    if (sscanf(out->id, "%x:%x:%x", &out->domain, &out->bus, &out->device) != 3) return UNKNOWN;
    snprintf(out->legacy, sizeof out->legacy, "%04x:%02x:%02x.0", out->domain & 0xffff, out->bus & 0xff, out->device & 0xff);
    return OK;
}

/* ---- calls: name, then what it answers with ---- */

#define ARGS(...) char arguments[64]; snprintf(arguments, sizeof arguments, __VA_ARGS__)
#define TEXT(name) \
    int name(device_t gpu, char *out, unsigned size) \
    { int ret = enter_gpu(gpu); return ret ? ret : text_of(gpu_line(gpu, #name), out, size); }
#define ONE(name) \
    int name(device_t gpu, unsigned *out) { return numbers_into(gpu, #name, "", &out, 1); }
#define ONE_OF(name) \
    int name(device_t gpu, unsigned a, unsigned *out) { ARGS("(%u)", a); return numbers_into(gpu, #name, arguments, &out, 1); }
#define LONG(name) \
    int name(device_t gpu, u64 *out) { return long_into(gpu, #name, "", out); }
#define TWO(name) \
    int name(device_t gpu, unsigned *a, unsigned *b) \
    { unsigned *out[] = { a, b }; return numbers_into(gpu, #name, "", out, 2); }
#define FOUR(name) \
    int name(device_t gpu, unsigned *a, unsigned *b, unsigned *c, unsigned *d) \
    { unsigned *out[] = { a, b, c, d }; return numbers_into(gpu, #name, "", out, 4); }

TEXT(nvmlDeviceGetName)
TEXT(nvmlDeviceGetSerial)
TEXT(nvmlDeviceGetVbiosVersion)
TWO(nvmlDeviceGetEccMode)
TWO(nvmlDeviceGetMigMode)
ONE(nvmlDeviceGetPersistenceMode)
ONE(nvmlDeviceGetRetiredPagesPendingStatus)
ONE(nvmlDeviceGetPowerUsage)
ONE(nvmlDeviceGetEnforcedPowerLimit)
ONE(nvmlDeviceGetPowerManagementDefaultLimit)
ONE(nvmlDeviceGetCurrPcieLinkWidth)
ONE(nvmlDeviceGetMaxPcieLinkWidth)
ONE(nvmlDeviceGetCurrPcieLinkGeneration)
ONE(nvmlDeviceGetMaxPcieLinkGeneration)
ONE(nvmlDeviceGetGpuMaxPcieLinkGeneration)
ONE(nvmlDeviceGetPcieReplayCounter)
ONE_OF(nvmlDeviceGetTemperature)
ONE_OF(nvmlDeviceGetTemperatureThreshold)
ONE_OF(nvmlDeviceGetNvLinkState)
ONE_OF(nvmlDeviceGetClockInfo)
ONE_OF(nvmlDeviceGetMaxClockInfo)
LONG(nvmlDeviceGetCurrentClocksEventReasons)
LONG(nvmlDeviceGetCurrentClocksThrottleReasons)
FOUR(nvmlDeviceGetRemappedRows)

int nvmlDeviceValidateInforom(device_t gpu)
{
    int count, ret;
    u64 ignored[1];
    ret = numbers(gpu, "nvmlDeviceValidateInforom", "", ignored, 1, &count);
    return ret;
}
int nvmlDeviceGetP2PStatus(device_t gpu, device_t peer, unsigned index, unsigned *out)
{
    ARGS("(%d,%u)", peer->index, index);
    return numbers_into(gpu, "nvmlDeviceGetP2PStatus", arguments, &out, 1);
}
int nvmlDeviceGetNvLinkErrorCounter(device_t gpu, unsigned link, unsigned counter, u64 *out)
{
    ARGS("(%u,%u)", link, counter);
    return long_into(gpu, "nvmlDeviceGetNvLinkErrorCounter", arguments, out);
}
int nvmlDeviceGetTotalEccErrors(device_t gpu, unsigned type, unsigned counter, u64 *out)
{
    ARGS("(%u,%u)", type, counter);
    return long_into(gpu, "nvmlDeviceGetTotalEccErrors", arguments, out);
}
int nvmlDeviceGetMemoryErrorCounter(device_t gpu, unsigned type, unsigned counter, unsigned location, u64 *out)
{
    ARGS("(%u,%u,%u)", type, counter, location);
    return long_into(gpu, "nvmlDeviceGetMemoryErrorCounter", arguments, out);
}
int nvmlDeviceGetRowRemapperHistogram(device_t gpu, unsigned out[5])
{
    unsigned *into[] = { out, out + 1, out + 2, out + 3, out + 4 };
    return numbers_into(gpu, "nvmlDeviceGetRowRemapperHistogram", "", into, 5);
}

/* Address and time of each page. pynvml's first call asks for the number only, and passes no array for the times. */
int nvmlDeviceGetRetiredPages_v2(device_t gpu, unsigned cause, unsigned *count, u64 *addresses, u64 *times)
{
    u64 found[128];
    int all, ret;
    ARGS("(%u)", cause);
    if ((ret = numbers(gpu, "nvmlDeviceGetRetiredPages_v2", arguments, found, 128, &all))) return ret;
    unsigned pages = (unsigned)all / 2, room = *count;
    *count = pages;
    if (room < pages) return INSUFFICIENT_SIZE;
    for (unsigned i = 0; addresses && i < pages; i++) addresses[i] = found[2 * i], times[i] = found[2 * i + 1];
    return OK;
}

/* ---- structs without a version ---- */

typedef struct { u64 total, free, used; } memory_t;

int nvmlDeviceGetMemoryInfo(device_t gpu, memory_t *out)
{
    u64 found[3] = { 0 };
    int count, ret = numbers(gpu, "nvmlDeviceGetMemoryInfo", "", found, 3, &count);
    if (!ret) *out = (memory_t){ found[0], found[1], found[2] };
    return ret;
}

typedef struct { unsigned gpu, memory; } utilization_t;

int nvmlDeviceGetUtilizationRates(device_t gpu, utilization_t *out)
{
    unsigned *into[] = { &out->gpu, &out->memory };
    return numbers_into(gpu, "nvmlDeviceGetUtilizationRates", "", into, 2);
}

/* Processes: four numbers each. pynvml's first call brings no room. */
typedef struct { unsigned pid; u64 memory; unsigned gpu_instance, compute_instance; } process_t;

static int processes(device_t gpu, const char *name, unsigned *count, process_t *out)
{
    u64 found[256] = { 0 };
    int all, ret;
    if ((ret = numbers(gpu, name, "", found, 256, &all))) return ret;
    unsigned there = (unsigned)all / 4, room = *count;
    *count = there;
    if (room < there) return INSUFFICIENT_SIZE;
    for (unsigned i = 0; out && i < there; i++)
        out[i] = (process_t){ (unsigned)found[4 * i], found[4 * i + 1], (unsigned)found[4 * i + 2], (unsigned)found[4 * i + 3] };
    return OK;
}
int nvmlDeviceGetComputeRunningProcesses_v3(device_t gpu, unsigned *count, process_t *out)
{
    return processes(gpu, "nvmlDeviceGetComputeRunningProcesses", count, out);
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(device_t gpu, unsigned *count, process_t *out)
{
    return processes(gpu, "nvmlDeviceGetGraphicsRunningProcesses", count, out);
}

/* ---- calls that fill a struct the caller brings ---- */

typedef struct { unsigned version; int margin; } margin_t;

int nvmlDeviceGetMarginTemperature(device_t gpu, margin_t *out)
{
    u64 found[1] = { 0 };
    int count, ret;
    if (out->version != (1u << 24 | sizeof *out)) return ARGUMENT_VERSION_MISMATCH;
    if (!(ret = numbers(gpu, "nvmlDeviceGetMarginTemperature", "", found, 1, &count))) out->margin = (int)found[0];
    return ret;
}

typedef struct { unsigned version, flags[2]; } flags_t;

int nvmlDeviceGetRepairStatus(device_t gpu, flags_t *out)
{
    unsigned *into[] = { &out->flags[0], &out->flags[1] };
    if (out->version != (1u << 24 | sizeof *out)) return ARGUMENT_VERSION_MISMATCH;
    return numbers_into(gpu, "nvmlDeviceGetRepairStatus", "", into, 2);
}
int nvmlDeviceGetUnrepairableMemoryFlag_v1(device_t gpu, flags_t *out)
{
    unsigned *into[] = { &out->flags[0] };
    if (out->version != (1u << 24 | 8)) return ARGUMENT_VERSION_MISMATCH;
    return numbers_into(gpu, "nvmlDeviceGetUnrepairableMemoryFlag_v1", "", into, 1);
}

typedef struct { unsigned version; u64 counts[11]; unsigned threshold_exceeded; } sram_t;

int nvmlDeviceGetSramEccErrorStatus(device_t gpu, sram_t *out)
{
    u64 found[12] = { 0 };
    int count, ret;
    if (out->version != (1u << 24 | sizeof *out)) return ARGUMENT_VERSION_MISMATCH;
    if ((ret = numbers(gpu, "nvmlDeviceGetSramEccErrorStatus", "", found, 12, &count))) return ret;
    memcpy(out->counts, found, sizeof out->counts);
    out->threshold_exceeded = (unsigned)found[11];
    return OK;
}

typedef struct { unsigned version, count; unsigned (*entries)[7]; } sram_unique_t;

int nvmlDeviceGetSramUniqueUncorrectedEccErrorCounts(device_t gpu, sram_unique_t *out)
{
    u64 found[112] = { 0 };
    int all, ret;
    if (out->version != (1u << 24 | sizeof *out)) return ARGUMENT_VERSION_MISMATCH;
    if ((ret = numbers(gpu, "nvmlDeviceGetSramUniqueUncorrectedEccErrorCounts", "", found, 112, &all))) return ret;
    unsigned entries = (unsigned)all / 7, room = out->count;
    out->count = entries;
    if (room < entries) return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < entries * 7; i++) out->entries[i / 7][i % 7] = (unsigned)found[i];
    return OK;
}

typedef struct {
    unsigned version;
    uint8_t cluster[16];
    unsigned status, clique, state, health_mask;
    uint8_t health_summary;
} fabric_t;

int nvmlDeviceGetGpuFabricInfoV(device_t gpu, fabric_t *out)
{
    u64 found[5] = { 0 };
    int count, ret, v3 = out->version == (3u << 24 | sizeof *out);
    if (!v3 && out->version != (2u << 24 | 36)) return ARGUMENT_VERSION_MISMATCH;
    if ((ret = numbers(gpu, "nvmlDeviceGetGpuFabricInfoV", "", found, 5, &count))) return ret;
    memset(out->cluster, 0, sizeof out->cluster);
    out->status = (unsigned)found[0], out->clique = (unsigned)found[1], out->state = (unsigned)found[2];
    out->health_mask = (unsigned)found[3];
    if (v3) out->health_summary = (uint8_t)found[4];
    return OK;
}

/* ---- field values: a refusal is in each result, the call itself succeeds ---- */

typedef union { double d; unsigned ui; unsigned long ul; u64 ull; long long sll; int si; unsigned short us; } value_t;
typedef struct {
    uint32_t field, scope;
    int64_t timestamp, latency_us;
    unsigned type, ret;
    value_t value;
} field_t;

static void fill(field_t *out, const char *text)
{
    static const char *types[] = { "double", "uint", "ulong", "ull", "sll", "int", "ushort" };
    const char *colon = strchr(text, ':');
    out->type = 1;
    for (unsigned i = 0; colon && i < 7; i++)
        if (strlen(types[i]) == (size_t)(colon - text) && !strncmp(text, types[i], (size_t)(colon - text))) out->type = i;
    const char *number = colon ? colon + 1 : text;
    switch (out->type) {
    case 0: out->value.d = atof(number); break;
    case 1: out->value.ui = (unsigned)strtoul(number, NULL, 0); break;
    case 2: out->value.ul = strtoul(number, NULL, 0); break;
    case 3: out->value.ull = strtoull(number, NULL, 0); break;
    case 4: out->value.sll = strtoll(number, NULL, 0); break;
    case 5: out->value.si = (int)strtol(number, NULL, 0); break;
    case 6: out->value.us = (unsigned short)strtoul(number, NULL, 0); break;
    }
}

int nvmlDeviceGetFieldValues(device_t gpu, int count, field_t *out)
{
    int ret = enter_gpu(gpu);
    for (int i = 0; !ret && i < count; i++) {
        char key[64];
        snprintf(key, sizeof key, "field.%u/%u", out[i].field, out[i].scope);
        const char *text = gpu_line(gpu, key);
        snprintf(key, sizeof key, "field.%u", out[i].field);
        if (!text) text = gpu_line(gpu, key);
        memset(&out[i].value, 0, sizeof out[i].value);
        out[i].latency_us = 1;
        if (!(out[i].ret = (unsigned)refusal(text))) fill(&out[i], text);
    }
    return ret;
}
