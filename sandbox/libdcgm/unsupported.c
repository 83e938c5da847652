/* Error texts, and the symbols that exist so that a call is an answer and not the end of the process. */
#include <stddef.h>

#include "stub.h"

API const char *errorString(dcgmReturn_t r)
{
    static const struct { int code; const char *text; } texts[] = {
        {DCGM_ST_OK, "Success"},
        {DCGM_ST_BADPARAM, "Bad parameter passed to function"},
        {DCGM_ST_GENERIC_ERROR, "Generic unspecified error"},
        {DCGM_ST_MEMORY, "Out of memory error"},
        {DCGM_ST_NOT_CONFIGURED, "Setting not configured"},
        {DCGM_ST_NOT_SUPPORTED, "Feature not supported"},
        {DCGM_ST_INIT_ERROR, "DCGM initialization error"},
        {DCGM_ST_NVML_ERROR, "NVML error"},
        {DCGM_ST_UNINITIALIZED, "Object is in an undefined state"},
        {DCGM_ST_TIMEOUT, "Timeout"},
        {DCGM_ST_VER_MISMATCH, "API version mismatch"},
        {DCGM_ST_UNKNOWN_FIELD, "Unknown field identifier"},
        {DCGM_ST_NO_DATA, "No data is available"},
        {DCGM_ST_STALE_DATA, "Data is considered stale"},
        {DCGM_ST_NOT_WATCHED, "Field is not being updated"},
        {DCGM_ST_NO_PERMISSION, "Insufficient permissions"},
        {DCGM_ST_GPU_IS_LOST, "GPU is lost"},
        {DCGM_ST_RESET_REQUIRED, "GPU requires a reset"},
        {DCGM_ST_CONNECTION_NOT_VALID, "Host engine connection invalid/disconnected"},
        {DCGM_ST_GPU_NOT_SUPPORTED, "This GPU is not supported by DCGM"},
        {DCGM_ST_MAX_LIMIT, "Maximum limit reached"},
        {DCGM_ST_DUPLICATE_KEY, "Duplicate key passed to function"},
        {DCGM_ST_INSUFFICIENT_SIZE, "Insufficient size"},
        {DCGM_ST_MODULE_NOT_LOADED, "This request is serviced by a module of DCGM that is not currently loaded"},
        {DCGM_ST_IN_USE, "The requested operation could not be completed because the affected resource is in use"},
        {DCGM_ST_PROFILING_NOT_SUPPORTED, "Profiling is not supported for this group of GPUs or GPU"},
        {DCGM_ST_PROFILING_MULTI_PASS, "The requested profiling metrics cannot be collected in a single pass"},
        {DCGM_ST_NVML_DRIVER_TIMEOUT, "Cannot perform operation because an NVML driver timeout error was detected"},
        {DCGM_ST_GPUS_DETACHED, "GPUs are detached"},
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        if (texts[i].code == (int)r)
            return texts[i].text;
    return "Unknown error";
}

API const dcgm_error_meta_t *dcgmGetErrorMeta(dcgmError_t error)
{
    (void)error;
    return NULL;
}

/* The gate still applies: hangs, scripted errors and a dead engine come before "not supported". */
#define UNSUPPORTED(name, ...)                                      \
    API dcgmReturn_t name(dcgmHandle_t h, __VA_ARGS__)              \
    {                                                               \
        ENTER(h);                                                   \
        return leave(DCGM_ST_NOT_SUPPORTED);                        \
    }
#define UNSUPPORTED0(name)                                          \
    API dcgmReturn_t name(dcgmHandle_t h)                           \
    {                                                               \
        ENTER(h);                                                   \
        return leave(DCGM_ST_NOT_SUPPORTED);                        \
    }

#pragma GCC diagnostic ignored "-Wunused-parameter"
UNSUPPORTED(dcgmIntrospectGetHostengineMemoryUsage, dcgmIntrospectMemory_t *out, int wait)
UNSUPPORTED(dcgmIntrospectGetHostengineCpuUtilization, dcgmIntrospectCpuUtil_t *out, int wait)
UNSUPPORTED(dcgmInjectFieldValue, unsigned int gpu, dcgmInjectFieldValue_t *value)
UNSUPPORTED(dcgmCreateFakeEntities, dcgmCreateFakeEntities_t *entities)
UNSUPPORTED0(dcgmAttachDriver)
UNSUPPORTED0(dcgmDetachDriver)
UNSUPPORTED(dcgmGetCpuHierarchy, dcgmCpuHierarchy_v1 *out)
UNSUPPORTED(dcgmGetCpuHierarchy_v2, dcgmCpuHierarchy_v2 *out)
UNSUPPORTED(dcgmGetPidInfo, dcgmGpuGrp_t group, dcgmPidInfo_t *info)
UNSUPPORTED(dcgmWatchPidFields, dcgmGpuGrp_t group, long long freq, double age, int keep)
UNSUPPORTED(dcgmRunDiagnostic, dcgmGpuGrp_t group, dcgmDiagnosticLevel_t level, dcgmDiagResponse_v12 *out)
