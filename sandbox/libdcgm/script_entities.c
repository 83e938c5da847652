/* The script's MIG instances, NVSwitches, profiling groups and topology. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "script.h"

int target(struct parser *p, const char *w, struct target *out)
{
    const char *slash = strchr(w, '/');
    char head[32];
    double a, b = -1;
    int sw = !strncmp(w, "switch:", 7);
    *out = (struct target){.eg = DCGM_FE_GPU};
    if (!sw && !slash)
        return range(p, w, &out->lo, &out->hi);
    if (sw)
        w += 7;
    snprintf(head, sizeof head, "%.*s", (int)(slash ? slash - w : (long)strlen(w)), w);
    if (number(p, head, &a) || (slash && number(p, slash + 1, &b)))
        return -1;
    if (!sw) {
        for (int i = 0; i < p->m->ninstances; i++)
            if (p->m->instances[i].gpu == (int)a && p->m->instances[i].gi == (int)b) {
                out->eg = DCGM_FE_GPU_I;
                out->id = p->m->instances[i].id;
                return 0;
            }
        return bad(p, "no MIG instance %s", w);
    }
    if (a < 0 || (int)a >= p->m->nswitches || (slash && (b < 0 || b >= STUB_SWITCH_LINKS)))
        return bad(p, "no switch or link %s among %d switches", w, p->m->nswitches);
    out->eg = DCGM_FE_SWITCH;
    out->id = (dcgm_field_eid_t)a;
    if (slash) {
        dcgm_link_t link = {.raw = 0};
        link.parsed.type = DCGM_FE_SWITCH;
        link.parsed.index = (uint32_t)b;
        link.parsed.switchId = (dcgm_field_eid_t)a;
        out->eg = DCGM_FE_LINK;
        out->id = link.raw;
    }
    return 0;
}

void put_entity_signal(struct model *m, const struct target *to, const struct sig *s)
{
    if (m->nesigs == m->capesigs) {
        m->capesigs = m->capesigs ? 2 * m->capesigs : 64;
        m->esigs = realloc(m->esigs, (size_t)m->capesigs * sizeof *m->esigs);
        if (!m->esigs)
            abort();
    }
    m->esigs[m->nesigs++] = (struct entity_sig){.eg = to->eg, .id = to->id, .sig = *s};
}

/* mig GPU GI PROFILE SLICES [CI[:UUID]|CI[=UUID]]... */
int do_mig(struct parser *p, char **w, int n)
{
    struct model *m = p->m;
    struct instance in = {0};
    struct sig on = {.field = 67, .kind = SIG_CONST, .a = 1, .max = 1e300};
    int lo, hi, before = 0, computes = 0;
    double gi, slices, ci;
    if (range(p, w[1], &lo, &hi) || number(p, w[2], &gi) || number(p, w[4], &slices))
        return -1;
    if (hi != lo + 1)
        return bad(p, "mig needs one GPU");
    for (int i = 0; i < m->ninstances; i++)
        if (m->instances[i].gpu == lo) {
            before++;
            computes += m->instances[i].ncompute;
            if (m->instances[i].gi == (int)gi)
                return bad(p, "GPU %d has instance %d already", lo, (int)gi);
        }
    if (before == DCGM_MAX_INSTANCES_PER_GPU || computes + (n > 5 ? n - 5 : 1) > DCGM_MAX_COMPUTE_INSTANCES_PER_GPU)
        return bad(p, "more than %d instances of GPU %d", DCGM_MAX_INSTANCES_PER_GPU, lo);
    in.gpu = lo;
    in.gi = (int)gi;
    in.slices = (int)slices;
    in.id = (dcgm_field_eid_t)(lo * DCGM_MAX_INSTANCES_PER_GPU + before);
    snprintf(in.profile, sizeof in.profile, "%s", w[3]);
    in.ncompute = n > 5 ? 0 : 1;
    for (int k = 5; k < n; k++) {
        char *uuid = strpbrk(w[k], ":=");
        if (uuid) {
            in.compute[in.ncompute].told = *uuid == ':';
            *uuid++ = 0;
        }
        if (number(p, w[k], &ci))
            return -1;
        in.compute[in.ncompute].ci = (int)ci;
        snprintf(in.compute[in.ncompute++].uuid, STUB_STR, "%s", uuid ? uuid : "");
    }
    m->instances[m->ninstances++] = in;
    put_signal(m, lo, &on);
    return 0;
}

int do_switches(struct parser *p, char **w, int n)
{
    double d;
    (void)n;
    if (number(p, w[1], &d))
        return -1;
    if (d < 0 || d > STUB_MAX_SWITCHES)
        return bad(p, "switches must be 0..%d", STUB_MAX_SWITCHES);
    p->m->nswitches = (int)d;
    for (int i = 0; i < p->m->nswitches; i++) {
        struct nvswitch *sw = &p->m->switches[i];
        sw->present = 1;
        snprintf(sw->uuid, STUB_STR, "SWX-5117c0de-0000-4000-8000-%012d", i);
        snprintf(sw->pci, STUB_STR, "0000:%02x:00.0", 5 + i);
        for (int l = 0; l < STUB_SWITCH_LINKS; l++)
            sw->link[l] = DcgmNvLinkLinkStateUp;
    }
    return 0;
}

/* switch N gone | switch N uuid U | switch N pci P */
int do_switch(struct parser *p, char **w, int n)
{
    double d;
    struct nvswitch *sw;
    if (number(p, w[1], &d))
        return -1;
    if (d < 0 || (int)d >= p->m->nswitches)
        return bad(p, "no switch %s among %d", w[1], p->m->nswitches);
    sw = &p->m->switches[(int)d];
    if (!strcmp(w[2], "gone"))
        sw->present = 0;
    else if (n > 3 && !strcmp(w[2], "uuid"))
        snprintf(sw->uuid, STUB_STR, "%s", w[3]);
    else if (n > 3 && !strcmp(w[2], "pci"))
        snprintf(sw->pci, STUB_STR, "%s", w[3]);
    else
        return bad(p, "a switch is gone, or has a uuid or a pci address, not \"%s\"", w[2]);
    return 0;
}

int do_switch_link(struct parser *p, const struct target *to, const char *link, int state)
{
    double d = 0;
    if (to->eg != DCGM_FE_SWITCH)
        return bad(p, "links are a GPU's or a switch's");
    if (strcmp(link, "*") && number(p, link, &d))
        return -1;
    if (d < 0 || d >= STUB_SWITCH_LINKS)
        return bad(p, "link %s is out of range", link);
    for (int l = 0; l < STUB_SWITCH_LINKS; l++)
        if (!strcmp(link, "*") || l == (int)d)
            p->m->switches[to->id].link[l] = state;
    return 0;
}

/* profiling none | profiling busy | profiling group MAJOR MINOR ID... */
int do_profiling(struct parser *p, char **w, int n)
{
    struct model *m = p->m;
    struct metric_group *g;
    double d;
    if (!strcmp(w[1], "busy")) {
        m->profiling_busy = 1;
        return 0;
    }
    if (!m->groups_given)
        m->ngroups = 0; /* the first line of the script replaces what an H100 has */
    m->groups_given = 1;
    if (!strcmp(w[1], "none"))
        return 0;
    if (strcmp(w[1], "group") || n < 5)
        return bad(p, "profiling is none, busy, or group MAJOR MINOR ID...");
    if (m->ngroups == DCGM_PROF_MAX_NUM_GROUPS_V2)
        return bad(p, "more than %d groups", DCGM_PROF_MAX_NUM_GROUPS_V2);
    g = &m->groups[m->ngroups++];
    *g = (struct metric_group){.n = 0};
    for (int k = 2; k < n; k++) {
        if (number(p, w[k], &d))
            return -1;
        if (k == 2)
            g->major = (int)d;
        else if (k == 3)
            g->minor = (int)d;
        else
            g->ids[g->n++] = (unsigned short)d;
    }
    return 0;
}

/* path A B sys|node|phb|pxb|pix|psb|nv<links>, both ways */
int do_path(struct parser *p, char **w, int n)
{
    static const struct { const char *name; uint64_t path; } names[] = {
        {"sys", DCGM_TOPOLOGY_SYSTEM}, {"node", DCGM_TOPOLOGY_CPU},   {"phb", DCGM_TOPOLOGY_HOSTBRIDGE},
        {"pxb", DCGM_TOPOLOGY_MULTIPLE}, {"pix", DCGM_TOPOLOGY_SINGLE}, {"psb", DCGM_TOPOLOGY_BOARD},
    };
    int a, b, end;
    uint64_t path = 0;
    double links;
    (void)n;
    if (range(p, w[1], &a, &end) || range(p, w[2], &b, &end))
        return -1;
    for (size_t k = 0; k < sizeof names / sizeof names[0]; k++)
        if (!strcmp(names[k].name, w[3]))
            path = names[k].path;
    if (!path && !strncmp(w[3], "nv", 2)) {
        if (number(p, w[3] + 2, &links))
            return -1;
        if (links >= 1 && links <= 36)
            path = DCGM_TOPOLOGY_SYSTEM | 1ull << (7 + (int)links);
    }
    if (!path)
        return bad(p, "unknown path \"%s\" (sys, node, phb, pxb, pix, psb, nv1 to nv36)", w[3]);
    p->m->path[a][b] = p->m->path[b][a] = path;
    return 0;
}
