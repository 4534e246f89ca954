/* A stand-in for NVIDIA's management library: answers from a text file that is read anew with every question.
 *
 * The file is gpus.txt beside the library. Each line is `GPU KEY VALUE RATE EVERY SINCE`: the answer
 * is VALUE plus RATE for each second of CLOCK_MONOTONIC since SINCE, in jumps of EVERY seconds (0: smoothly). GPU is an
 * index, or - for the machine. KEY is a function's name, with its numbers after dots. A VALUE !N is NVML's error N; the
 * KEY * is an error whatever is asked. What has no line is not supported (error 3). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define OK 0
#define INVALID 2
#define NOT_SUPPORTED 3
#define NOT_FOUND 6
#define TOO_SMALL 7
#define NO_DRIVER 9
#define MIG_HANDLES 1000

typedef struct { char text[256]; double rate, every, since; } answer_t;
typedef struct { unsigned field, scope; int64_t at, latency; unsigned type, status; union { uint64_t whole; unsigned part; } value; } field_t;
typedef struct { unsigned pid; uint64_t bytes; unsigned gpu_instance, compute_instance; } process_t;

static int owner_of(void *device) {
    long handle = (long)device;
    if (handle < MIG_HANDLES) return (int)handle - 1;
    return (int)(handle / MIG_HANDLES) - 1;
}

static FILE *open_state(void) {
    char path[4096];
    Dl_info own;
    if (!dladdr((void *)open_state, &own) || strlen(own.dli_fname) + 16 > sizeof path) return NULL;
    strcpy(path, own.dli_fname);
    char *last = strrchr(path, '/');
    strcpy(last == NULL ? path : last + 1, "gpus.txt");
    return fopen(path, "r");
}

/* One line of the file: 0, or NVML's error. */
static int find(int gpu, const char *key, answer_t *found) {
    char line[512], owner[16], name[128], wanted[16];
    int status = NOT_SUPPORTED;
    FILE *file = open_state();
    if (file == NULL) return NO_DRIVER;
    if (gpu < 0) strcpy(wanted, "-"); else snprintf(wanted, sizeof wanted, "%d", gpu);
    while (fgets(line, sizeof line, file)) {
        answer_t seen = {{0}, 0, 0, 0};
        if (sscanf(line, "%15s %127s %255s %lf %lf %lf", owner, name, seen.text, &seen.rate, &seen.every, &seen.since) < 3) continue;
        if (strcmp(owner, wanted) != 0) continue;
        if (strcmp(name, "*") == 0) { status = atoi(seen.text + 1); break; }
        if (strcmp(name, key) != 0) continue;
        *found = seen;
        status = seen.text[0] == '!' ? atoi(seen.text + 1) : OK;
    }
    fclose(file);
    return status;
}

static int number(int gpu, const char *key, uint64_t *value) {
    answer_t found;
    struct timespec now;
    int status = find(gpu, key, &found);
    if (status != OK) return status;
    *value = strtoull(found.text, NULL, 10);
    if (found.rate != 0) {
        clock_gettime(CLOCK_MONOTONIC, &now);
        double passed = (double)now.tv_sec + (double)now.tv_nsec * 1e-9 - found.since;
        if (found.every > 0) passed = (double)(int64_t)(passed / found.every) * found.every;
        *value += (uint64_t)(int64_t)(found.rate * passed);
    }
    return OK;
}

static int text(int gpu, const char *key, char *into, unsigned length) {
    answer_t found;
    int status = find(gpu, key, &found);
    if (status != OK) return status;
    if (strlen(found.text) + 1 > length) return TOO_SMALL;
    for (char *c = strcpy(into, found.text); *c; c++) if (*c == '_') *c = ' ';
    return OK;
}

static int small(int gpu, const char *key, unsigned *value) {
    uint64_t whole = 0;
    int status = number(gpu, key, &whole);
    if (status == OK) *value = (unsigned)whole;
    return status;
}

#define UINT(name) int name(void *device, unsigned *value) { return small(owner_of(device), #name, value); }
#define WHOLE(name) int name(void *device, uint64_t *value) { return number(owner_of(device), #name, value); }
#define TEXT(name) int name(void *device, char *into, unsigned length) { return text(owner_of(device), #name, into, length); }
#define OF_KIND(name) int name(void *device, unsigned kind, unsigned *value) { \
    char key[128]; snprintf(key, sizeof key, "%s.%u", #name, kind); return small(owner_of(device), key, value); }
#define TWO(name) int name(void *device, unsigned *one, unsigned *two) { \
    int status = small(owner_of(device), #name ".0", one); return status != OK ? status : small(owner_of(device), #name ".1", two); }

int nvmlInitWithFlags(unsigned flags) { uint64_t count; (void)flags; return number(-1, "nvmlDeviceGetCount", &count); }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int status) { static char words[64]; snprintf(words, sizeof words, "fake error %d", status); return words; }
int nvmlSystemGetDriverVersion(char *into, unsigned length) { return text(-1, "nvmlSystemGetDriverVersion", into, length); }
int nvmlSystemGetCudaDriverVersion_v2(int *value) { return small(-1, "nvmlSystemGetCudaDriverVersion_v2", (unsigned *)value); }
int nvmlDeviceGetCount_v2(unsigned *value) { return small(-1, "nvmlDeviceGetCount", value); }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    unsigned count = 0;
    answer_t found;
    int status = small(-1, "nvmlDeviceGetCount", &count);
    if (status != OK) return status;
    if (index >= count) return INVALID;
    if ((status = find((int)index, "nvmlDeviceGetHandleByIndex", &found)) != OK && status != NOT_SUPPORTED) return status;
    *device = (void *)(long)(index + 1);
    return OK;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    unsigned count = 0, gpu, part;
    char key[64];
    answer_t found;
    small(-1, "nvmlDeviceGetCount", &count);
    for (gpu = 0; gpu < count; gpu++) {
        if (find((int)gpu, "nvmlDeviceGetUUID", &found) == OK && strcmp(found.text, uuid) == 0) {
            *device = (void *)(long)(gpu + 1);
            return OK;
        }
        for (part = 0; part < 8; part++) {
            snprintf(key, sizeof key, "mig.%u", part);
            if (find((int)gpu, key, &found) == OK && strcmp(found.text, uuid) == 0) {
                *device = (void *)(long)((gpu + 1) * MIG_HANDLES + part);
                return OK;
            }
        }
    }
    return NOT_FOUND;
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *part, void **device) {
    if ((long)part < MIG_HANDLES) return INVALID;
    *device = (void *)(long)(owner_of(part) + 1);
    return OK;
}

TEXT(nvmlDeviceGetUUID)
TEXT(nvmlDeviceGetName)
TEXT(nvmlDeviceGetVbiosVersion)
int nvmlDeviceGetGspFirmwareVersion(void *device, char *into) { return text(owner_of(device), "nvmlDeviceGetGspFirmwareVersion", into, 64); }
UINT(nvmlDeviceGetPowerUsage)
UINT(nvmlDeviceGetEnforcedPowerLimit)
UINT(nvmlDeviceGetPowerManagementLimit)
UINT(nvmlDeviceGetPersistenceMode)
UINT(nvmlDeviceGetMemoryBusWidth)
UINT(nvmlDeviceGetNumGpuCores)
UINT(nvmlDeviceGetPcieReplayCounter)
OF_KIND(nvmlDeviceGetClockInfo)
OF_KIND(nvmlDeviceGetMaxClockInfo)
OF_KIND(nvmlDeviceGetApplicationsClock)
OF_KIND(nvmlDeviceGetTemperature)
OF_KIND(nvmlDeviceGetNvLinkState)
WHOLE(nvmlDeviceGetCurrentClocksEventReasons)
WHOLE(nvmlDeviceGetCurrentClocksThrottleReasons)
WHOLE(nvmlDeviceGetTotalEnergyConsumption)
TWO(nvmlDeviceGetMigMode)
TWO(nvmlDeviceGetEccMode)
TWO(nvmlDeviceGetCudaComputeCapability)

int nvmlDeviceGetUtilizationRates(void *device, unsigned *rates) {
    int status = small(owner_of(device), "nvmlDeviceGetUtilizationRates.0", rates);
    return status != OK ? status : small(owner_of(device), "nvmlDeviceGetUtilizationRates.1", rates + 1);
}

int nvmlDeviceGetTotalEccErrors(void *device, unsigned kind, unsigned since, uint64_t *value) {
    char key[128];
    snprintf(key, sizeof key, "nvmlDeviceGetTotalEccErrors.%u.%u", kind, since);
    return number(owner_of(device), key, value);
}

int nvmlDeviceGetMemoryInfo(void *device, uint64_t *memory) {
    static const char *keys[] = {"memory.total", "memory.free", "memory.used"};
    int status = OK;
    for (int i = 0; i < 3 && status == OK; i++) status = number(owner_of(device), keys[i], memory + i);
    return status;
}

int nvmlDeviceGetMemoryInfo_v2(void *device, void *memory) {
    static const char *keys[] = {"memory.total", "memory.reserved", "memory.free", "memory.used"};
    uint64_t *figures = (uint64_t *)((char *)memory + 8);
    int status = OK;
    for (int i = 0; i < 4 && status == OK; i++) status = number(owner_of(device), keys[i], figures + i);
    return status;
}

/* The line of key `processes` holds process numbers with commas between. */
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, process_t *processes) {
    answer_t found;
    unsigned room = *count;
    int status = find(owner_of(device), "processes", &found);
    if (status != OK) return status;
    *count = 0;
    for (char *part = strtok(found.text, ","); part != NULL; part = strtok(NULL, ",")) {
        if (atol(part) <= 0) continue;
        if (*count < room && processes != NULL) processes[*count] = (process_t){(unsigned)atol(part), 0, 0, 0};
        (*count)++;
    }
    return *count > room ? TOO_SMALL : OK;
}

/* A field that has no line is not supported, as one of a newer driver; the others of the question are answered. */
int nvmlDeviceGetFieldValues(void *device, int count, field_t *fields) {
    answer_t found;
    char key[64];
    int status = find(owner_of(device), "nvmlDeviceGetFieldValues", &found);
    if (status != OK && status != NOT_SUPPORTED) return status;
    for (int i = 0; i < count; i++) {
        snprintf(key, sizeof key, "field.%u", fields[i].field);
        fields[i].type = 3;
        fields[i].status = (unsigned)number(owner_of(device), key, &fields[i].value.whole);
    }
    return OK;
}
