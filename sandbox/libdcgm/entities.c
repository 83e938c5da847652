/* Entities that are no GPUs: MIG instances, NVSwitches and their links; and what of profiling can be watched together. */
#include <stdio.h>
#include <string.h>

#include "stub.h"

const struct instance *instance_of(const struct model *m, dcgm_field_eid_t id)
{
    for (int i = 0; i < m->ninstances; i++)
        if (m->instances[i].id == id)
            return &m->instances[i];
    return NULL;
}

/* Compute instances are numbered as instances are: 8 for each GPU, in order. */
static const struct compute *compute_of(const struct model *m, dcgm_field_eid_t id, const struct instance **in)
{
    int gpu = (int)(id / DCGM_MAX_COMPUTE_INSTANCES_PER_GPU), k = (int)(id % DCGM_MAX_COMPUTE_INSTANCES_PER_GPU);
    for (int i = 0; i < m->ninstances; i++) {
        *in = &m->instances[i];
        if ((*in)->gpu != gpu)
            continue;
        if (k < (*in)->ncompute)
            return &(*in)->compute[k];
        k -= (*in)->ncompute;
    }
    return NULL;
}

int entity_exists(const struct model *m, dcgm_field_entity_group_t eg, dcgm_field_eid_t id)
{
    const struct instance *in;
    switch (eg) {
    case DCGM_FE_GPU_I:
        in = instance_of(m, id);
        return in && m->gpus[in->gpu].present;
    case DCGM_FE_GPU_CI:
        return compute_of(m, id, &in) && m->gpus[in->gpu].present;
    case DCGM_FE_SWITCH:
        return (int)id < m->nswitches && m->switches[id].present;
    default:
        return 0;
    }
}

static const struct sig *override_of(const struct model *m, dcgm_field_entity_group_t eg, dcgm_field_eid_t id, unsigned short field)
{
    for (int i = m->nesigs - 1; i >= 0; i--)
        if (m->esigs[i].eg == eg && m->esigs[i].id == id && m->esigs[i].sig.field == field)
            return &m->esigs[i].sig;
    return NULL;
}

/* Memory and activity are the instance's own; for any other field the engine gives the GPU's value. */
static struct reading read_instance(const struct model *m, const struct instance *in, unsigned short field, int64_t t)
{
    struct reading r = {.type = DCGM_FT_INT64, .status = DCGM_ST_OK, .ts = t};
    const struct sig *s = override_of(m, DCGM_FE_GPU_I, in->id, field);
    if (m->gpus[in->gpu].status == DcgmEntityStatusLost)
        return blank_reading(field_type(m, in->gpu, field), DCGM_ST_GPU_IS_LOST, 0, t);
    if (s)
        return read_signal(m, s, field_type(m, in->gpu, field), (int)in->id + 1000, t);
    switch (field) { /* a tenth of a card of 80 GB for each slice */
    case 50: r.type = DCGM_FT_STRING; r.str = in->profile; return r;
    case 250: r.i64 = 9984 * in->slices; return r;
    case 251: r.i64 = 3760 * in->slices; return r;
    case 252: r.i64 = 6144 * in->slices; return r;
    case 253: r.i64 = 80 * in->slices; return r;
    }
    if (field >= 1001 && field <= 1008) {
        struct sig noise = {.field = field, .kind = SIG_NOISE, .a = 0.6, .b = 0.1};
        return read_signal(m, &noise, DCGM_FT_DOUBLE, (int)in->id + 1000, t);
    }
    return read_driver(m, in->gpu, field, t);
}

static struct reading read_default(const struct model *m, const struct sig *s, unsigned short field, int salt, int64_t t)
{
    const struct field_row *row = field_row(field);
    struct sig def;
    if (s)
        return read_signal(m, s, row ? row->type : DCGM_FT_INT64, salt, t);
    if (!row)
        return blank_reading(DCGM_FT_INT64, DCGM_ST_UNKNOWN_FIELD, 2, t);
    def = (struct sig){.field = field, .kind = row->kind, .a = row->a, .b = row->b, .max = 1e300, .since_us = m->origin_us};
    return read_signal(m, &def, row->type, salt, t);
}

static struct reading read_switch(const struct model *m, int id, unsigned short field, int64_t t)
{
    const struct nvswitch *sw = &m->switches[id];
    struct reading r = {.type = DCGM_FT_INT64, .status = DCGM_ST_OK, .ts = t};
    unsigned domain = 0, bus = 0, device = 0, function = 0;
    const struct field_row *row = field_row(field);
    if (!row || row->level != DCGM_FE_SWITCH)
        return blank_reading(DCGM_FT_INT64, row ? DCGM_ST_NOT_SUPPORTED : DCGM_ST_UNKNOWN_FIELD, 2, t);
    sscanf(sw->pci, "%x:%x:%x.%x", &domain, &bus, &device, &function);
    switch (field) {
    case 866: r.i64 = domain; return r;
    case 867: r.i64 = bus; return r;
    case 868: r.i64 = device; return r;
    case 869: r.i64 = function; return r;
    case 878: r.type = DCGM_FT_STRING; r.str = sw->uuid; return r;
    }
    return read_default(m, override_of(m, DCGM_FE_SWITCH, (unsigned)id, field), field, id + 2000, t);
}

static struct reading read_switch_link(const struct model *m, dcgm_field_eid_t raw, unsigned short field, int64_t t)
{
    struct reading r = {.type = DCGM_FT_INT64, .status = DCGM_ST_OK, .ts = t};
    const struct field_row *row = field_row(field);
    dcgm_link_t link;
    int state;
    link.raw = raw;
    if (!entity_exists(m, DCGM_FE_SWITCH, link.parsed.switchId) || link.parsed.index >= STUB_SWITCH_LINKS)
        return blank_reading(DCGM_FT_INT64, DCGM_ST_BADPARAM, 1, t);
    state = m->switches[link.parsed.switchId].link[link.parsed.index];
    if (!row || row->level != DCGM_FE_LINK || field < 780 || state == DcgmNvLinkLinkStateNotSupported)
        return blank_reading(DCGM_FT_INT64, DCGM_ST_NOT_SUPPORTED, 2, t);
    if (field == 870) { /* off 0, active 2 */
        r.i64 = state == DcgmNvLinkLinkStateUp ? 2 : 0;
        return r;
    }
    return read_default(m, override_of(m, DCGM_FE_LINK, raw, field), field, (int)raw, t);
}

struct reading read_entity(const struct model *m, dcgm_field_entity_group_t eg, dcgm_field_eid_t id, unsigned short field, int64_t t)
{
    const struct instance *in;
    const struct compute *c;
    struct reading r = {.type = DCGM_FT_STRING, .status = DCGM_ST_OK, .ts = t};
    if (eg == DCGM_FE_LINK)
        return read_switch_link(m, id, field, t);
    if (!entity_exists(m, eg, id))
        return blank_reading(field_type(m, -1, field), DCGM_ST_BADPARAM, 1, t);
    if (eg == DCGM_FE_SWITCH)
        return read_switch(m, (int)id, field, t);
    if (eg == DCGM_FE_GPU_I)
        return read_instance(m, instance_of(m, id), field, t);
    c = compute_of(m, id, &in);
    if (field != 54 || !c->told)
        return blank_reading(field_type(m, -1, field), DCGM_ST_NOT_SUPPORTED, 2, t);
    r.str = c->uuid;
    return r;
}

API dcgmReturn_t dcgmGetGpuInstanceHierarchy(dcgmHandle_t h, dcgmMigHierarchy_v2 *out)
{
    static const unsigned nvml_profile[] = {0, 0, 1, 2, 3, 3, 7, 4, 5}; /* NVML_GPU_INSTANCE_PROFILE_<n>_SLICE */
    int computes[STUB_MAX_GPUS] = {0};
    ENTER(h);
    if (!out)
        return leave(DCGM_ST_BADPARAM);
    if (out->version != dcgmMigHierarchy_version2)
        return leave(DCGM_ST_VER_MISMATCH);
    out->count = 0;
    for (int i = 0; i < M->ninstances; i++) {
        const struct instance *in = &M->instances[i];
        if (!M->gpus[in->gpu].present) {
            computes[in->gpu] += in->ncompute;
            continue;
        }
        for (int k = -1; k < in->ncompute; k++) {
            dcgmMigHierarchyInfo_v2 *e = &out->entityList[out->count++];
            memset(e, 0, sizeof *e);
            snprintf(e->info.gpuUuid, sizeof e->info.gpuUuid, "%s", M->gpus[in->gpu].uuid);
            e->info.nvmlGpuIndex = (unsigned)in->gpu;
            e->info.nvmlInstanceId = (unsigned)in->gi;
            e->info.nvmlMigProfileId = nvml_profile[in->slices & 7];
            e->info.nvmlProfileSlices = (unsigned)in->slices;
            if (k < 0) {
                e->entity = (dcgmGroupEntityPair_t){DCGM_FE_GPU_I, in->id};
                e->parent = (dcgmGroupEntityPair_t){DCGM_FE_GPU, (unsigned)in->gpu};
                e->info.nvmlComputeInstanceId = (unsigned)-1;
                continue;
            }
            e->entity = (dcgmGroupEntityPair_t){DCGM_FE_GPU_CI, (unsigned)(in->gpu * DCGM_MAX_COMPUTE_INSTANCES_PER_GPU + computes[in->gpu]++)};
            e->parent = (dcgmGroupEntityPair_t){DCGM_FE_GPU_I, in->id};
            e->info.nvmlComputeInstanceId = (unsigned)in->compute[k].ci;
        }
    }
    return leave(DCGM_ST_OK);
}

static int group_holds(const struct metric_group *g, unsigned short id)
{
    for (int i = 0; i < g->n; i++)
        if (g->ids[i] == id)
            return 1;
    return 0;
}

/* As an engine that does not multiplex: of each major, one group must hold all that is asked of that major. */
dcgmReturn_t profiling_watch(const struct model *m, const char wanted[STUB_MAX_FIELD])
{
    for (unsigned short id = 1001; id < 1200; id++) {
        int major = -1, together = 0;
        if (!wanted[id])
            continue;
        if (m->profiling_busy)
            return DCGM_ST_IN_USE;
        for (int g = 0; g < m->ngroups && major < 0; g++)
            if (group_holds(&m->groups[g], id))
                major = m->groups[g].major;
        if (major < 0)
            return DCGM_ST_PROFILING_NOT_SUPPORTED;
        for (int g = 0; g < m->ngroups && !together; g++) {
            int all = m->groups[g].major == major;
            for (unsigned short other = 1001; all && other < 1200; other++) {
                int ours = 0;
                for (int k = 0; k < m->ngroups; k++)
                    ours |= m->groups[k].major == major && group_holds(&m->groups[k], other);
                if (wanted[other] && ours)
                    all = group_holds(&m->groups[g], other);
            }
            together = all;
        }
        if (!together)
            return DCGM_ST_PROFILING_MULTI_PASS;
    }
    return DCGM_ST_OK;
}
