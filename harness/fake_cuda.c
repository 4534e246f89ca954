/* Stand-ins for the libraries of CUDA whose versions a process tells: one source for all, for each is asked
 * for its own functions only. ORDER (a string of digits) is the order in which CUDA counts the GPUs whose
 * UUIDs harness.fake_nvml.uuid_of makes. */
#include <string.h>

static int part_of(const int *version, int part, int *value) {
    if (part < 0 || part > 2) return 1;
    *value = version[part];
    return 0;
}

int cublasGetProperty(int part, int *value) { static const int version[] = {CUBLAS}; return part_of(version, part, value); }
int cudnnGetProperty(int part, int *value) { static const int version[] = {CUDNN}; return part_of(version, part, value); }
int ncclGetVersion(int *value) { *value = NCCL; return 0; }
int cuInit(unsigned flags) { return (int)flags; }
int cuDeviceGetCount(int *count) { *count = (int)strlen(ORDER); return 0; }

int cuDeviceGetUuid_v2(unsigned char *uuid, int device) {
    unsigned char gpu = (unsigned char)(ORDER[device] - '0');
    static const unsigned char rest[16] = {0x0a, 0xbc, 0xde, 0xf0, 0, 0, 0x40, 0, 0x80, 0, 0, 0, 0, 0, 0, 0};
    memcpy(uuid, rest, 16);
    uuid[0] |= (unsigned char)(gpu << 4);
    uuid[15] = gpu;
    return 0;
}
