/* Lifecycle, versions, inventory, topology, NVLink and health. */
#include <stdio.h>
#include <string.h>

#include "stub.h"

static unsigned health_on[STUB_MAX_GPUS];
static unsigned health_primed; /* GPUs whose first check has been made */
static unsigned switch_health; /* of a group that has switches */

API dcgmReturn_t dcgmInit(void)
{
    ENTER_ANY();
    return leave(DCGM_ST_OK);
}

API dcgmReturn_t dcgmShutdown(void)
{
    ENTER_ANY();
    leave(DCGM_ST_OK);
    policy_stop_thread();
    engine_lock();
    engine_disconnect();
    return leave(DCGM_ST_OK);
}

API dcgmReturn_t dcgmStartEmbedded(dcgmOperationMode_t mode, dcgmHandle_t *out)
{
    (void)mode;
    ENTER_ANY();
    return leave(engine_connect(out));
}

API dcgmReturn_t dcgmStopEmbedded(dcgmHandle_t h)
{
    ENTER(h);
    engine_disconnect();
    return leave(DCGM_ST_OK);
}

API dcgmReturn_t dcgmConnect_v2(const char *address, dcgmConnectV2Params_t *params, dcgmHandle_t *out)
{
    ENTER_ANY();
    if (!address || !*address || !params)
        return leave(DCGM_ST_BADPARAM);
    if (params->version != dcgmConnectV2Params_version2)
        return leave(DCGM_ST_VER_MISMATCH);
    return leave(engine_connect(out));
}

API dcgmReturn_t dcgmConnect_v3(const char *address, dcgmConnectV3Params_t *params, dcgmHandle_t *out)
{
    ENTER_ANY();
    if (!address || !*address || !params)
        return leave(DCGM_ST_BADPARAM);
    return leave(engine_connect(out));
}

API dcgmReturn_t dcgmDisconnect(dcgmHandle_t h)
{
    ENTER(h);
    engine_disconnect();
    return leave(DCGM_ST_OK);
}

static dcgmReturn_t version(dcgmVersionInfo_t *out)
{
    if (!out)
        return DCGM_ST_BADPARAM;
    if (out->version != dcgmVersionInfo_version)
        return DCGM_ST_VER_MISMATCH;
    snprintf(out->rawBuildInfoString, sizeof out->rawBuildInfoString,
             "version:%s;arch:x86_64;buildtype:Stub;buildplatform:pitcrew sandbox", M->version);
    return DCGM_ST_OK;
}

API dcgmReturn_t dcgmVersionInfo(dcgmVersionInfo_t *out)
{
    ENTER_ANY();
    return leave(version(out));
}

API dcgmReturn_t dcgmHostengineVersionInfo(dcgmHandle_t h, dcgmVersionInfo_t *out)
{
    ENTER(h);
    return leave(version(out));
}

API int DcgmFieldsInit(void)
{
    return 0;
}

API int DcgmFieldsTerm(void)
{
    return 0;
}

API dcgm_field_meta_p DcgmFieldGetById(unsigned short id)
{
    static dcgm_field_meta_t metas[STUB_MAX_FIELD];
    const struct field_row *row = field_row(id);
    dcgm_field_meta_t *m;
    if (!row)
        return NULL;
    engine_lock();
    m = &metas[id];
    m->fieldId = row->id;
    m->fieldType = row->type;
    m->size = row->type == DCGM_FT_STRING ? 0 : 8;
    snprintf(m->tag, sizeof m->tag, "%s", row->tag);
    m->scope = row->level == DCGM_FE_NONE ? DCGM_FS_GLOBAL : DCGM_FS_ENTITY;
    m->entityLevel = row->level;
    engine_unlock();
    return m;
}

static int devices(unsigned int *ids, int only_supported)
{
    int n = 0;
    for (int i = 0; i < M->ngpus; i++)
        if (M->gpus[i].present && (!only_supported || M->gpus[i].status == DcgmEntityStatusOk))
            ids[n++] = (unsigned)i;
    return n;
}

API dcgmReturn_t dcgmGetAllDevices(dcgmHandle_t h, unsigned int ids[DCGM_MAX_NUM_DEVICES], int *count)
{
    ENTER(h);
    if (!ids || !count)
        return leave(DCGM_ST_BADPARAM);
    *count = devices(ids, 0);
    return leave(DCGM_ST_OK);
}

API dcgmReturn_t dcgmGetAllSupportedDevices(dcgmHandle_t h, unsigned int ids[DCGM_MAX_NUM_DEVICES], int *count)
{
    ENTER(h);
    if (!ids || !count)
        return leave(DCGM_ST_BADPARAM);
    *count = devices(ids, 1);
    return leave(DCGM_ST_OK);
}

static dcgmReturn_t entities_of(dcgm_field_entity_group_t eg, dcgm_field_eid_t *ids, int *count)
{
    int n = 0;
    for (dcgm_field_eid_t id = 0; id < DCGM_MAX_INSTANCES; id++)
        if (entity_exists(M, eg, id)) {
            if (n == *count)
                return DCGM_ST_INSUFFICIENT_SIZE;
            ids[n++] = id;
        }
    *count = n;
    return DCGM_ST_OK;
}

API dcgmReturn_t dcgmGetEntityGroupEntities(dcgmHandle_t h, dcgm_field_entity_group_t eg, dcgm_field_eid_t *ids, int *count,
                                            unsigned int flags)
{
    unsigned int all[DCGM_MAX_NUM_DEVICES];
    int n;
    ENTER(h);
    if (!ids || !count)
        return leave(DCGM_ST_BADPARAM);
    if (eg != DCGM_FE_GPU)
        return leave(entities_of(eg, ids, count));
    n = devices(all, (flags & DCGM_GEGE_FLAG_ONLY_SUPPORTED) != 0);
    if (n > *count) {
        *count = n;
        return leave(DCGM_ST_INSUFFICIENT_SIZE);
    }
    for (int i = 0; i < n; i++)
        ids[i] = all[i];
    *count = n;
    return leave(DCGM_ST_OK);
}

static int is_gpu(unsigned int gpu)
{
    return (int)gpu < M->ngpus && M->gpus[gpu].present;
}

API dcgmReturn_t dcgmGetGpuStatus(dcgmHandle_t h, unsigned int gpu, DcgmEntityStatus_t *out)
{
    ENTER(h);
    if (!out || !is_gpu(gpu))
        return leave(DCGM_ST_BADPARAM);
    *out = (DcgmEntityStatus_t)M->gpus[gpu].status;
    return leave(DCGM_ST_OK);
}

static unsigned whole(unsigned int gpu, unsigned short field)
{
    struct reading r = read_driver(M, (int)gpu, field, now_us());
    if (r.status != DCGM_ST_OK)
        return (unsigned)DCGM_INT32_BLANK;
    return (unsigned)(r.type == DCGM_FT_DOUBLE ? (int64_t)r.dbl : r.i64);
}

API dcgmReturn_t dcgmGetDeviceAttributes(dcgmHandle_t h, unsigned int gpu, dcgmDeviceAttributes_t *out)
{
    const struct gpu *g;
    ENTER(h);
    if (!out || !is_gpu(gpu))
        return leave(DCGM_ST_BADPARAM);
    if (out->version != dcgmDeviceAttributes_version3)
        return leave(DCGM_ST_VER_MISMATCH);
    g = &M->gpus[gpu];
    snprintf(out->identifiers.uuid, sizeof out->identifiers.uuid, "%s", g->uuid);
    snprintf(out->identifiers.pciBusId, sizeof out->identifiers.pciBusId, "%s", g->pci);
    snprintf(out->identifiers.deviceName, sizeof out->identifiers.deviceName, "%s", g->name);
    snprintf(out->identifiers.serial, sizeof out->identifiers.serial, "%s", g->serial);
    snprintf(out->identifiers.driverVersion, sizeof out->identifiers.driverVersion, "%s", M->driver);
    snprintf(out->identifiers.brandName, sizeof out->identifiers.brandName, "NVIDIA");
    out->powerLimits.defaultPowerLimit = whole(gpu, 164);
    out->powerLimits.enforcedPowerLimit = whole(gpu, 164);
    out->thermalSettings.slowdownTemp = whole(gpu, 158);
    out->thermalSettings.shutdownTemp = whole(gpu, 159);
    out->memoryUsage.fbTotal = whole(gpu, 250);
    out->memoryUsage.fbUsed = whole(gpu, 252);
    out->memoryUsage.fbFree = whole(gpu, 251);
    out->memoryUsage.bar1Total = 131072;
    return leave(DCGM_ST_OK);
}

API dcgmReturn_t dcgmGetDeviceTopology(dcgmHandle_t h, unsigned int gpu, dcgmDeviceTopology_v2 *out)
{
    ENTER(h);
    if (!out || !is_gpu(gpu))
        return leave(DCGM_ST_BADPARAM);
    if (out->version != dcgmDeviceTopology_version2)
        return leave(DCGM_ST_VER_MISMATCH);
    out->numGpus = 0;
    for (int i = 0; i < M->ngpus; i++)
        if (is_gpu((unsigned)i) && i != (int)gpu) { /* all-to-all through NVSwitch, as in an HGX baseboard */
            out->gpuPaths[out->numGpus].gpuId = (unsigned)i;
            out->gpuPaths[out->numGpus].path = M->path[gpu][i] ? M->path[gpu][i] : DCGM_TOPOLOGY_SYSTEM | DCGM_TOPOLOGY_NVLINK18;
            out->gpuPaths[out->numGpus++].localNvLinkIds = M->path[gpu][i] ? 0 : (1u << 18) - 1;
        }
    return leave(DCGM_ST_OK);
}

API dcgmReturn_t dcgmGetNvLinkLinkStatus(dcgmHandle_t h, dcgmNvLinkStatus_v5 *out)
{
    ENTER(h);
    if (!out)
        return leave(DCGM_ST_BADPARAM);
    if (out->version != dcgmNvLinkStatus_version5)
        return leave(DCGM_ST_VER_MISMATCH);
    out->numGpus = 0;
    out->numNvSwitches = 0;
    for (int i = 0; i < M->ngpus; i++) {
        if (!is_gpu((unsigned)i))
            continue;
        out->gpus[out->numGpus].entityId = (unsigned)i;
        for (int l = 0; l < STUB_MAX_LINKS; l++)
            out->gpus[out->numGpus].linkState[l] = (dcgmNvLinkLinkState_t)M->gpus[i].nvlink[l];
        out->numGpus++;
    }
    for (int i = 0; i < M->nswitches; i++) {
        dcgmNvLinkNvSwitchLinkStatus_t *to = &out->nvSwitches[out->numNvSwitches];
        if (!M->switches[i].present)
            continue;
        to->entityId = (unsigned)i;
        for (int l = 0; l < DCGM_NVLINK_MAX_LINKS_PER_NVSWITCH; l++)
            to->linkState[l] = l < STUB_SWITCH_LINKS ? (dcgmNvLinkLinkState_t)M->switches[i].link[l] : DcgmNvLinkLinkStateNotSupported;
        out->numNvSwitches++;
    }
    return leave(DCGM_ST_OK);
}

API dcgmReturn_t dcgmGetNvLinkP2PStatus(dcgmHandle_t h, dcgmNvLinkP2PStatus_v1 *out)
{
    ENTER(h);
    if (!out)
        return leave(DCGM_ST_BADPARAM);
    if (out->version != dcgmNvLinkP2PStatus_version1)
        return leave(DCGM_ST_VER_MISMATCH);
    out->numGpus = 0;
    for (int i = 0; i < M->ngpus; i++) {
        out->gpus[out->numGpus].entityId = (unsigned)i;
        for (int j = 0; j < M->ngpus; j++)
            out->gpus[out->numGpus].linkStatus[j] = is_gpu((unsigned)i) && is_gpu((unsigned)j) ? DcgmNvLinkP2pStatusOK : DcgmNvLinkP2pStatusUnknown;
        out->numGpus++;
    }
    return leave(DCGM_ST_OK);
}

API dcgmReturn_t dcgmHealthSet(dcgmHandle_t h, dcgmGpuGrp_t g, dcgmHealthSystems_t systems)
{
    dcgmReturn_t r;
    unsigned mask;
    ENTER(h);
    mask = group_gpu_mask(g, &r);
    for (int i = 0; i < STUB_MAX_GPUS; i++)
        if (mask >> i & 1)
            health_on[i] = (unsigned)systems;
    if (group_has(g, DCGM_FE_SWITCH))
        switch_health = (unsigned)systems;
    health_primed &= ~mask;
    return leave(r);
}

API dcgmReturn_t dcgmHealthGet(dcgmHandle_t h, dcgmGpuGrp_t g, dcgmHealthSystems_t *systems)
{
    dcgmReturn_t r;
    unsigned mask, on = 0;
    ENTER(h);
    mask = group_gpu_mask(g, &r);
    if (!systems)
        return leave(DCGM_ST_BADPARAM);
    for (int i = 0; i < STUB_MAX_GPUS; i++)
        if (mask >> i & 1)
            on |= health_on[i];
    *systems = (dcgmHealthSystems_t)on;
    return leave(r);
}

/* As the header has it: the first check only sets the state up, later ones report. */
API dcgmReturn_t dcgmHealthCheck(dcgmHandle_t h, dcgmGpuGrp_t g, dcgmHealthResponse_t *out)
{
    dcgmReturn_t r;
    unsigned mask, primed;
    ENTER(h);
    mask = group_gpu_mask(g, &r);
    if (r != DCGM_ST_OK || !out)
        return leave(DCGM_ST_BADPARAM);
    if (out->version != dcgmHealthResponse_version5)
        return leave(DCGM_ST_VER_MISMATCH);
    primed = health_primed;
    health_primed |= mask;
    out->overallHealth = DCGM_HEALTH_RESULT_PASS;
    out->incidentCount = 0;
    for (int i = 0; i < M->nincidents; i++) {
        const struct incident *in = &M->incidents[i];
        dcgmIncidentInfo_t *to = &out->incidents[out->incidentCount];
        if (in->eg == DCGM_FE_SWITCH) {
            if (!(mask & primed) || !(switch_health & in->system) || !entity_exists(M, in->eg, (unsigned)in->id))
                continue;
        } else if (!(mask & primed) || !((mask & primed) >> in->id & 1) || !(health_on[in->id] & in->system) || !is_gpu((unsigned)in->id)) {
            continue;
        }
        to->system = (dcgmHealthSystems_t)in->system;
        to->health = (dcgmHealthWatchResults_t)in->result;
        to->error.code = in->code;
        snprintf(to->error.msg, sizeof to->error.msg, "%s", in->msg);
        to->entityInfo.entityGroupId = in->eg;
        to->entityInfo.entityId = (unsigned)in->id;
        out->incidentCount++;
        if (in->result > (unsigned)out->overallHealth)
            out->overallHealth = (dcgmHealthWatchResults_t)in->result;
    }
    return leave(DCGM_ST_OK);
}

API dcgmReturn_t dcgmProfGetSupportedMetricGroups(dcgmHandle_t h, dcgmProfGetMetricGroups_t *out)
{
    ENTER(h);
    if (!out || !is_gpu(out->gpuId))
        return leave(DCGM_ST_BADPARAM);
    if (out->version != dcgmProfGetMetricGroups_version3)
        return leave(DCGM_ST_VER_MISMATCH);
    if (!M->ngroups)
        return leave(DCGM_ST_PROFILING_NOT_SUPPORTED);
    out->numMetricGroups = (unsigned)M->ngroups;
    for (int i = 0; i < M->ngroups; i++) {
        out->metricGroups[i].majorId = (unsigned short)M->groups[i].major;
        out->metricGroups[i].minorId = (unsigned short)M->groups[i].minor;
        out->metricGroups[i].numFieldIds = (unsigned)M->groups[i].n;
        memcpy(out->metricGroups[i].fieldIds, M->groups[i].ids, (size_t)M->groups[i].n * sizeof M->groups[i].ids[0]);
    }
    return leave(DCGM_ST_OK);
}
