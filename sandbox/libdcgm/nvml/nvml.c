/* The stub of libnvidia-ml.so.1: what the driver says of MIG devices, from the script that the stub of libdcgm reads. It answers the
 * seven functions that the dcgm receiver asks for, and is compiled together with the script's parser. */
#include <stdio.h>
#include <string.h>

#include "stub.h" /* and by it NVML's own types */

/* A handle is a GPU's number and one more, of a MIG device also its place on the GPU and one more. */
#define GPU_OF(h) ((int)((uintptr_t)(h) & 0xff) - 1)
#define PLACE_OF(h) ((int)((uintptr_t)(h) >> 8) - 1)

static void look(void)
{
    engine_lock();
    engine_reload();
}

static nvmlReturn_t say(nvmlReturn_t r)
{
    engine_unlock();
    return r;
}

static const struct compute *place(int gpu, int k, const struct instance **in)
{
    for (int i = 0; i < M->ninstances; i++) {
        *in = &M->instances[i];
        if ((*in)->gpu != gpu)
            continue;
        if (k < (*in)->ncompute)
            return &(*in)->compute[k];
        k -= (*in)->ncompute;
    }
    return NULL;
}

API nvmlReturn_t nvmlInit_v2(void)
{
    look();
    return say(NVML_SUCCESS);
}

API nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    look();
    for (int i = 0; uuid && device && i < M->ngpus; i++)
        if (M->gpus[i].present && !strcmp(M->gpus[i].uuid, uuid)) {
            *device = (nvmlDevice_t)(uintptr_t)(i + 1);
            return say(M->gpus[i].status == DcgmEntityStatusLost ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS);
        }
    return say(NVML_ERROR_NOT_FOUND);
}

API nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count)
{
    look();
    if (!count || GPU_OF(device) < 0 || GPU_OF(device) >= M->ngpus)
        return say(NVML_ERROR_INVALID_ARGUMENT);
    *count = 7;
    return say(NVML_SUCCESS);
}

API nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *mig)
{
    const struct instance *in;
    look();
    if (!mig || !place(GPU_OF(device), (int)index, &in))
        return say(NVML_ERROR_NOT_FOUND);
    *mig = (nvmlDevice_t)((uintptr_t)device | (uintptr_t)(index + 1) << 8);
    return say(NVML_SUCCESS);
}

API nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
    const struct instance *in;
    const struct compute *c;
    look();
    c = place(GPU_OF(device), PLACE_OF(device), &in);
    if (!uuid || PLACE_OF(device) < 0 || !c)
        return say(NVML_ERROR_INVALID_ARGUMENT);
    if (snprintf(uuid, length, "%s", c->uuid) >= (int)length)
        return say(NVML_ERROR_INSUFFICIENT_SIZE);
    return say(NVML_SUCCESS);
}

static nvmlReturn_t number(nvmlDevice_t device, unsigned int *id, int compute)
{
    const struct instance *in;
    const struct compute *c;
    look();
    c = place(GPU_OF(device), PLACE_OF(device), &in);
    if (!id || PLACE_OF(device) < 0 || !c)
        return say(NVML_ERROR_INVALID_ARGUMENT);
    *id = (unsigned)(compute ? c->ci : in->gi);
    return say(NVML_SUCCESS);
}

API nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id)
{
    return number(device, id, 0);
}

API nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id)
{
    return number(device, id, 1);
}
