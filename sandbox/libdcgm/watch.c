/* Watches, their samples, and the calls that read them.
 *
 * Sampling is lazy: what fell due since the last look is sampled, at its due time, when somebody looks or the script changes. A
 * reader cannot tell that from a background thread, except that nothing is sampled while nobody cares. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "stub.h"

#define MAX_WATCHES 256
#define MAX_KEPT 128

struct sample {
    int64_t ts, i64;
    double dbl;
    int status;
};

struct cell { /* one field of one GPU */
    int64_t freq, due;
    int keep, n, head; /* ring of the newest n */
    double age;
    struct sample *ring;
};

struct watch {
    int used;
    dcgmGpuGrp_t g;
    dcgmFieldGrp_t f;
    int64_t freq;
    double age;
    int keep;
};

static struct watch watches[MAX_WATCHES];
static struct cell *cells[STUB_MAX_GPUS][STUB_MAX_FIELD];

static void drop(struct cell **c)
{
    if (*c)
        free((*c)->ring);
    free(*c);
    *c = NULL;
}

void watches_reset(void)
{
    memset(watches, 0, sizeof watches);
    for (int g = 0; g < STUB_MAX_GPUS; g++)
        for (int f = 0; f < STUB_MAX_FIELD; f++)
            drop(&cells[g][f]);
}

/* Makes the cells what the watches ask for: the fastest rate, the longest memory. Samples of cells that stay are kept. */
static void rebuild(int64_t now)
{
    static char wanted[STUB_MAX_GPUS][STUB_MAX_FIELD];
    memset(wanted, 0, sizeof wanted);
    for (int i = 0; i < MAX_WATCHES; i++) {
        const unsigned short *ids = NULL;
        dcgmReturn_t r;
        unsigned mask;
        int n;
        if (!watches[i].used)
            continue;
        mask = group_gpu_mask(watches[i].g, &r);
        n = field_group(watches[i].f, &ids);
        for (int g = 0; g < STUB_MAX_GPUS; g++)
            for (int k = 0; (mask >> g & 1) && k < n; k++) {
                struct cell **c = &cells[g][ids[k]];
                int keep = watches[i].keep > 0 && watches[i].keep < MAX_KEPT ? watches[i].keep : MAX_KEPT;
                if (!*c) {
                    *c = calloc(1, sizeof **c);
                    if (!*c)
                        abort();
                }
                if (!wanted[g][ids[k]] || watches[i].freq < (*c)->freq)
                    (*c)->freq = watches[i].freq;
                if (!(*c)->due || (*c)->due > now + (*c)->freq)
                    (*c)->due = now + (*c)->freq;
                if (watches[i].age > (*c)->age)
                    (*c)->age = watches[i].age;
                if (keep > (*c)->keep) {
                    (*c)->ring = realloc((*c)->ring, (size_t)keep * sizeof *(*c)->ring);
                    if (!(*c)->ring)
                        abort();
                    (*c)->keep = keep;
                    (*c)->n = (*c)->head = 0;
                }
                wanted[g][ids[k]] = 1;
            }
    }
    for (int g = 0; g < STUB_MAX_GPUS; g++)
        for (int f = 0; f < STUB_MAX_FIELD; f++)
            if (!wanted[g][f])
                drop(&cells[g][f]);
}

void watches_forget_group(dcgmGpuGrp_t g, dcgmFieldGrp_t f)
{
    for (int i = 0; i < MAX_WATCHES; i++)
        if (watches[i].used && ((g && watches[i].g == g) || (f && watches[i].f == f)))
            watches[i].used = 0;
    rebuild(now_us());
}

static void take(struct cell *c, int gpu, unsigned short field, int64_t t)
{
    struct reading r = read_driver(M, gpu, field, t);
    struct sample s = {.ts = t, .i64 = r.i64, .dbl = r.dbl, .status = r.status};
    c->head = (c->head + 1) % c->keep;
    c->ring[c->head] = s;
    if (c->n < c->keep)
        c->n++;
}

void watches_advance(int64_t now)
{
    for (int g = 0; g < M->ngpus; g++)
        for (int f = 0; f < STUB_MAX_FIELD; f++) {
            struct cell *c = cells[g][f];
            if (!c || c->due > now)
                continue;
            if (c->freq < 1000)
                c->freq = 1000;
            if ((now - c->due) / c->freq > c->keep) /* only what would be kept */
                c->due = now - c->freq * c->keep;
            for (; c->due <= now; c->due += c->freq)
                take(c, g, (unsigned short)f, c->due);
        }
}

/* What the profiling module says to these fields beside those that are watched already. */
static dcgmReturn_t profiling_answer(const unsigned short *ids, int n)
{
    static char wanted[STUB_MAX_FIELD]; /* under the lock */
    int asked = 0;
    memset(wanted, 0, sizeof wanted);
    for (int k = 0; k < n; k++) {
        wanted[ids[k]] = 1;
        asked |= ids[k] > 1000 && ids[k] < 1200;
    }
    for (int i = 0; asked && i < MAX_WATCHES; i++) {
        const unsigned short *others = NULL;
        int k = watches[i].used ? field_group(watches[i].f, &others) : 0;
        while (k-- > 0)
            wanted[others[k]] = 1;
    }
    return asked ? profiling_watch(M, wanted) : DCGM_ST_OK;
}

API dcgmReturn_t dcgmWatchFields(dcgmHandle_t h, dcgmGpuGrp_t g, dcgmFieldGrp_t f, long long freq, double age, int keep)
{
    const unsigned short *ids;
    dcgmReturn_t r;
    int n;
    ENTER(h);
    group_gpu_mask(g, &r);
    n = field_group(f, &ids);
    if (r != DCGM_ST_OK || n < 0 || freq <= 0 || age < 0 || keep < 0)
        return leave(DCGM_ST_BADPARAM);
    r = profiling_answer(ids, n);
    if (r != DCGM_ST_OK)
        return leave(r);
    for (int pass = 0; pass < 2; pass++) /* the same pair again replaces its watch */
        for (int i = 0; i < MAX_WATCHES; i++)
            if (pass ? !watches[i].used : (watches[i].used && watches[i].g == g && watches[i].f == f)) {
                watches[i] = (struct watch){.used = 1, .g = g, .f = f, .freq = freq, .age = age, .keep = keep};
                rebuild(now_us());
                return leave(DCGM_ST_OK);
            }
    return leave(DCGM_ST_MAX_LIMIT);
}

API dcgmReturn_t dcgmUnwatchFields(dcgmHandle_t h, dcgmGpuGrp_t g, dcgmFieldGrp_t f)
{
    int n = 0;
    ENTER(h);
    for (int i = 0; i < MAX_WATCHES; i++)
        if (watches[i].used && watches[i].g == g && watches[i].f == f) {
            watches[i].used = 0;
            n++;
        }
    rebuild(now_us());
    return leave(n ? DCGM_ST_OK : DCGM_ST_NOT_WATCHED);
}

API dcgmReturn_t dcgmUpdateAllFields(dcgmHandle_t h, int wait)
{
    int64_t now;
    ENTER(h);
    if (wait != 0 && wait != 1)
        return leave(DCGM_ST_BADPARAM);
    now = now_us();
    for (int g = 0; g < M->ngpus; g++)
        for (int f = 0; f < STUB_MAX_FIELD; f++)
            if (cells[g][f]) {
                take(cells[g][f], g, (unsigned short)f, now);
                cells[g][f]->due = now + cells[g][f]->freq;
            }
    return leave(DCGM_ST_OK);
}

static struct reading of_sample(int gpu, unsigned short field, const struct sample *s)
{
    struct reading r = {.type = field_type(M, gpu, field), .status = s->status, .ts = s->ts, .i64 = s->i64, .dbl = s->dbl};
    if (r.type == DCGM_FT_STRING) {
        struct reading live = read_driver(M, gpu, field, s->ts);
        r.str = live.str;
    }
    return r;
}

static int entity_watched(dcgm_field_entity_group_t eg, dcgm_field_eid_t e, unsigned short field)
{
    static dcgmGroupEntityPair_t members[DCGM_GROUP_MAX_ENTITIES_V2];
    for (int i = 0; i < MAX_WATCHES; i++) {
        const unsigned short *ids = NULL;
        unsigned n;
        int hit = 0, k = watches[i].used ? field_group(watches[i].f, &ids) : 0;
        while (k-- > 0)
            hit |= ids[k] == field;
        if (!hit || group_members(watches[i].g, members, &n) != DCGM_ST_OK)
            continue;
        while (n-- > 0)
            if (members[n].entityGroupId == eg && members[n].entityId == e)
                return 1;
    }
    return 0;
}

static struct reading latest(dcgm_field_entity_group_t eg, dcgm_field_eid_t e, unsigned short field, int live, int64_t now)
{
    struct cell *c;
    if (eg != DCGM_FE_GPU && eg != DCGM_FE_NONE) { /* not sampled in between: what is watched is read when it is asked for */
        if (!live && !entity_watched(eg, e, field))
            return blank_reading(field_type(M, -1, field), DCGM_ST_NOT_WATCHED, 1, 0);
        return eg == DCGM_FE_LINK ? read_link(M, e, field, now) : read_entity(M, eg, e, field, now);
    }
    if ((int)e >= M->ngpus || field >= STUB_MAX_FIELD)
        return blank_reading(DCGM_FT_INT64, DCGM_ST_BADPARAM, 1, 0);
    if (live)
        return read_driver(M, (int)e, field, now);
    c = cells[e][field];
    if (!c)
        return blank_reading(field_type(M, (int)e, field), DCGM_ST_NOT_WATCHED, 1, 0);
    if (!c->n)
        return blank_reading(field_type(M, (int)e, field), DCGM_ST_NO_DATA, 1, 0);
    return of_sample((int)e, field, &c->ring[c->head]);
}

#define FILL(v, id, r)                                                                 \
    do {                                                                               \
        (v)->fieldId = (id);                                                           \
        (v)->fieldType = (unsigned short)(r).type;                                     \
        (v)->status = (r).status;                                                      \
        (v)->ts = (r).ts;                                                              \
        if ((r).type == DCGM_FT_DOUBLE)                                                \
            (v)->value.dbl = (r).dbl;                                                  \
        else if ((r).type == DCGM_FT_STRING)                                           \
            snprintf((v)->value.str, sizeof (v)->value.str, "%s", (r).str ? (r).str : ""); \
        else                                                                           \
            (v)->value.i64 = (r).i64;                                                  \
    } while (0)

static dcgmReturn_t entity_values(dcgm_field_entity_group_t eg, int e, const unsigned short *f, unsigned n, dcgmFieldValue_v1 *v)
{
    int64_t now = now_us();
    if (!f || !v || !n || e < 0)
        return DCGM_ST_BADPARAM;
    if (eg == DCGM_FE_GPU && (e >= M->ngpus || !M->gpus[e].present))
        return DCGM_ST_BADPARAM;
    watches_advance(now);
    for (unsigned k = 0; k < n; k++) {
        struct reading r = latest(eg, (dcgm_field_eid_t)e, f[k], 0, now);
        v[k].version = dcgmFieldValue_version1;
        FILL(&v[k], f[k], r);
    }
    return DCGM_ST_OK;
}

API dcgmReturn_t dcgmGetLatestValuesForFields(dcgmHandle_t h, int gpu, unsigned short f[], unsigned int n, dcgmFieldValue_v1 v[])
{
    ENTER(h);
    return leave(entity_values(DCGM_FE_GPU, gpu, f, n, v));
}

API dcgmReturn_t dcgmEntityGetLatestValues(dcgmHandle_t h, dcgm_field_entity_group_t eg, int e, unsigned short f[], unsigned int n,
                                           dcgmFieldValue_v1 v[])
{
    ENTER(h);
    return leave(entity_values(eg, e, f, n, v));
}

API dcgmReturn_t dcgmEntitiesGetLatestValues(dcgmHandle_t h, dcgmGroupEntityPair_t e[], unsigned int ne, unsigned short f[],
                                             unsigned int nf, unsigned int flags, dcgmFieldValue_v2 v[])
{
    int64_t now;
    ENTER(h);
    if (!e || !f || !v || !ne || !nf)
        return leave(DCGM_ST_BADPARAM);
    now = now_us();
    watches_advance(now);
    for (unsigned i = 0; i < ne; i++)
        for (unsigned k = 0; k < nf; k++) {
            dcgmFieldValue_v2 *to = &v[i * nf + k];
            struct reading r = latest(e[i].entityGroupId, e[i].entityId, f[k], (flags & DCGM_FV_FLAG_LIVE_DATA) != 0, now);
            to->version = dcgmFieldValue_version2;
            to->entityGroupId = e[i].entityGroupId;
            to->entityId = e[i].entityId;
            FILL(to, f[k], r);
        }
    return leave(DCGM_ST_OK);
}

/* The samples of all watched fields newer than since, oldest first, one callback per entity, outside the lock. */
API dcgmReturn_t dcgmGetValuesSince_v2(dcgmHandle_t h, dcgmGpuGrp_t g, dcgmFieldGrp_t f, long long since, long long *next,
                                       dcgmFieldValueEntityEnumeration_f cb, void *user)
{
    const unsigned short *ids;
    dcgmFieldValue_v1 *out[STUB_MAX_GPUS] = {0};
    int count[STUB_MAX_GPUS] = {0}, n;
    dcgmReturn_t r;
    unsigned mask;
    int64_t newest = since;
    ENTER(h);
    mask = group_gpu_mask(g, &r);
    n = field_group(f, &ids);
    if (r != DCGM_ST_OK || n < 0 || !next || !cb)
        return leave(DCGM_ST_BADPARAM);
    watches_advance(now_us());
    for (int gpu = 0; gpu < STUB_MAX_GPUS; gpu++)
        for (int pass = 0; (mask >> gpu & 1) && pass < 2; pass++) {
            int at = 0;
            for (int k = 0; k < n; k++) {
                struct cell *c = cells[gpu][ids[k]];
                for (int i = c ? c->n - 1 : -1; i >= 0; i--) {
                    struct sample *s = &c->ring[(c->head - i + c->keep) % c->keep];
                    if (s->ts < since || (c->age > 0 && (double)(now_us() - s->ts) > c->age * 1e6))
                        continue;
                    if (pass && at < count[gpu]) {
                        struct reading rd = of_sample(gpu, ids[k], s);
                        out[gpu][at].version = dcgmFieldValue_version1;
                        FILL(&out[gpu][at], ids[k], rd);
                        if (s->ts >= newest)
                            newest = s->ts + 1;
                    }
                    at++;
                }
            }
            if (!pass && (count[gpu] = at) > 0 && !(out[gpu] = calloc((size_t)at, sizeof **out)))
                abort();
        }
    *next = newest;
    leave(DCGM_ST_OK);
    for (int gpu = 0; gpu < STUB_MAX_GPUS; gpu++) {
        if (count[gpu])
            cb(DCGM_FE_GPU, (dcgm_field_eid_t)gpu, out[gpu], count[gpu], user);
        free(out[gpu]);
    }
    return DCGM_ST_OK;
}
