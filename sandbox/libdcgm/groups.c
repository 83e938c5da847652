/* Entity groups and field groups. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "stub.h"

#define MAX_FIELD_GROUPS 64

struct fgroup {
    int used;
    char name[DCGM_MAX_STR_LENGTH];
    int n;
    unsigned short ids[DCGM_MAX_FIELD_IDS_PER_FIELD_GROUP];
};

static struct group groups[DCGM_MAX_NUM_GROUPS];
static struct fgroup fgroups[MAX_FIELD_GROUPS];

void groups_reset(void)
{
    memset(groups, 0, sizeof groups);
    memset(fgroups, 0, sizeof fgroups);
}

static struct group *find(dcgmGpuGrp_t id)
{
    uintptr_t i = (uintptr_t)id;
    return i >= 1 && i <= DCGM_MAX_NUM_GROUPS && groups[i - 1].used ? &groups[i - 1] : NULL;
}

dcgmReturn_t group_members(dcgmGpuGrp_t id, dcgmGroupEntityPair_t *out, unsigned *n)
{
    struct group *g;
    *n = 0;
    if ((uintptr_t)id == DCGM_GROUP_ALL_GPUS) {
        for (int i = 0; i < M->ngpus; i++)
            if (M->gpus[i].present) {
                out[*n].entityGroupId = DCGM_FE_GPU;
                out[(*n)++].entityId = (dcgm_field_eid_t)i;
            }
        return DCGM_ST_OK;
    }
    g = find(id);
    if (!g)
        return DCGM_ST_BADPARAM;
    memcpy(out, g->e, g->n * sizeof *out);
    *n = g->n;
    return DCGM_ST_OK;
}

unsigned group_gpu_mask(dcgmGpuGrp_t id, dcgmReturn_t *r)
{
    static dcgmGroupEntityPair_t e[DCGM_GROUP_MAX_ENTITIES_V2]; /* under the lock */
    unsigned n, mask = 0;
    *r = group_members(id, e, &n);
    for (unsigned i = 0; i < n; i++)
        if (e[i].entityGroupId == DCGM_FE_GPU && e[i].entityId < STUB_MAX_GPUS)
            mask |= 1u << e[i].entityId;
    return mask;
}

int group_has(dcgmGpuGrp_t id, dcgm_field_entity_group_t eg)
{
    static dcgmGroupEntityPair_t e[DCGM_GROUP_MAX_ENTITIES_V2]; /* under the lock */
    unsigned n;
    int has = 0;
    group_members(id, e, &n);
    for (unsigned i = 0; i < n; i++)
        has |= e[i].entityGroupId == eg;
    return has;
}

API dcgmReturn_t dcgmGroupCreate(dcgmHandle_t h, dcgmGroupType_t type, const char *name, dcgmGpuGrp_t *out)
{
    ENTER(h);
    if (!name || !out || (type != DCGM_GROUP_DEFAULT && type != DCGM_GROUP_EMPTY))
        return leave(DCGM_ST_BADPARAM);
    for (uintptr_t i = 0; i < DCGM_MAX_NUM_GROUPS; i++) {
        if (groups[i].used)
            continue;
        memset(&groups[i], 0, sizeof groups[i]);
        groups[i].used = 1;
        snprintf(groups[i].name, sizeof groups[i].name, "%s", name);
        if (type == DCGM_GROUP_DEFAULT)
            group_members((dcgmGpuGrp_t)DCGM_GROUP_ALL_GPUS, groups[i].e, &groups[i].n);
        *out = (dcgmGpuGrp_t)(i + 1);
        return leave(DCGM_ST_OK);
    }
    return leave(DCGM_ST_MAX_LIMIT);
}

API dcgmReturn_t dcgmGroupDestroy(dcgmHandle_t h, dcgmGpuGrp_t id)
{
    struct group *g;
    ENTER(h);
    g = find(id);
    if (!g)
        return leave(DCGM_ST_NOT_CONFIGURED);
    watches_forget_group(id, 0);
    g->used = 0;
    return leave(DCGM_ST_OK);
}

static dcgmReturn_t add(dcgmGpuGrp_t id, dcgm_field_entity_group_t eg, dcgm_field_eid_t e)
{
    struct group *g = find(id);
    if (!g)
        return DCGM_ST_NOT_CONFIGURED;
    if (eg == DCGM_FE_GPU && ((int)e >= M->ngpus || !M->gpus[e].present))
        return DCGM_ST_BADPARAM;
    if (eg != DCGM_FE_GPU && eg != DCGM_FE_LINK && !entity_exists(M, eg, e))
        return DCGM_ST_BADPARAM;
    for (unsigned i = 0; i < g->n; i++)
        if (g->e[i].entityGroupId == eg && g->e[i].entityId == e)
            return DCGM_ST_BADPARAM;
    if (g->n == DCGM_GROUP_MAX_ENTITIES_V2)
        return DCGM_ST_MAX_LIMIT;
    g->e[g->n].entityGroupId = eg;
    g->e[g->n++].entityId = e;
    return DCGM_ST_OK;
}

API dcgmReturn_t dcgmGroupAddDevice(dcgmHandle_t h, dcgmGpuGrp_t id, unsigned int gpu)
{
    ENTER(h);
    return leave(add(id, DCGM_FE_GPU, gpu));
}

API dcgmReturn_t dcgmGroupAddEntity(dcgmHandle_t h, dcgmGpuGrp_t id, dcgm_field_entity_group_t eg, dcgm_field_eid_t e)
{
    ENTER(h);
    return leave(add(id, eg, e));
}

API dcgmReturn_t dcgmGroupGetInfo(dcgmHandle_t h, dcgmGpuGrp_t id, dcgmGroupInfo_t *out)
{
    struct group *g;
    dcgmReturn_t r;
    ENTER(h);
    if (!out)
        return leave(DCGM_ST_BADPARAM);
    if (out->version != dcgmGroupInfo_version3)
        return leave(DCGM_ST_VER_MISMATCH);
    r = group_members(id, out->entityList, &out->count);
    g = find(id);
    snprintf(out->groupName, sizeof out->groupName, "%s", g ? g->name : "DCGM_ALL_SUPPORTED_GPUS");
    return leave(r);
}

static struct fgroup *ffind(dcgmFieldGrp_t id)
{
    uintptr_t i = (uintptr_t)id;
    return i >= 1 && i <= MAX_FIELD_GROUPS && fgroups[i - 1].used ? &fgroups[i - 1] : NULL;
}

int field_group(dcgmFieldGrp_t id, const unsigned short **ids)
{
    struct fgroup *f = ffind(id);
    if (!f)
        return -1;
    *ids = f->ids;
    return f->n;
}

/* A field that neither the table nor the script knows is none. */
static int known(unsigned short id)
{
    if (field_row(id))
        return 1;
    for (int i = 0; id < STUB_MAX_FIELD && i < M->ngpus; i++)
        if (M->gpus[i].index[id])
            return 1;
    return 0;
}

API dcgmReturn_t dcgmFieldGroupCreate(dcgmHandle_t h, int n, const unsigned short *ids, const char *name, dcgmFieldGrp_t *out)
{
    ENTER(h);
    if (n < 1 || !ids || !name || !out)
        return leave(DCGM_ST_BADPARAM);
    if (n > DCGM_MAX_FIELD_IDS_PER_FIELD_GROUP)
        return leave(DCGM_ST_MAX_LIMIT);
    for (int k = 0; k < n; k++)
        if (!known(ids[k]))
            return leave(DCGM_ST_UNKNOWN_FIELD);
    for (int i = 0; i < MAX_FIELD_GROUPS; i++)
        if (fgroups[i].used && !strcmp(fgroups[i].name, name))
            return leave(DCGM_ST_DUPLICATE_KEY);
    for (uintptr_t i = 0; i < MAX_FIELD_GROUPS; i++) {
        if (fgroups[i].used)
            continue;
        fgroups[i].used = 1;
        fgroups[i].n = n;
        memcpy(fgroups[i].ids, ids, (size_t)n * sizeof *ids);
        snprintf(fgroups[i].name, sizeof fgroups[i].name, "%s", name);
        *out = (dcgmFieldGrp_t)(i + 1);
        return leave(DCGM_ST_OK);
    }
    return leave(DCGM_ST_MAX_LIMIT);
}

API dcgmReturn_t dcgmFieldGroupDestroy(dcgmHandle_t h, dcgmFieldGrp_t id)
{
    struct fgroup *f;
    ENTER(h);
    f = ffind(id);
    if (!f)
        return leave(DCGM_ST_NO_DATA);
    watches_forget_group(0, id);
    f->used = 0;
    return leave(DCGM_ST_OK);
}
