/* Stand-ins for the libraries of CUDA whose versions a process tells: one source for all, for each is asked
 * for its own functions only. */

static int part_of(const int *version, int part, int *value) {
    if (part < 0 || part > 2) return 1;
    *value = version[part];
    return 0;
}

int cublasGetProperty(int part, int *value) { static const int version[] = {CUBLAS}; return part_of(version, part, value); }
int cudnnGetProperty(int part, int *value) { static const int version[] = {CUDNN}; return part_of(version, part, value); }
int ncclGetVersion(int *value) { *value = NCCL; return 0; }
