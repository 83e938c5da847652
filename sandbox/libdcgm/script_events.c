/* The script's events: XIDs, policy violations and health incidents. */
#include <stdio.h>
#include <string.h>

#include "script.h"

/* FNV-1a over the line's words: an event without id= is told apart by its text and its ordinal among equal texts. */
static uint64_t fnv(uint64_t h, const char *s)
{
    for (; *s; s++)
        h = (h ^ (unsigned char)*s) * 0x100000001b3ull;
    return (h ^ ' ') * 0x100000001b3ull;
}

int do_event(struct parser *p, char **w, int n)
{
    static const struct { const char *name; unsigned cond; } names[] = {
        {"dbe", DCGM_POLICY_COND_DBE},         {"pci", DCGM_POLICY_COND_PCI},     {"pages", DCGM_POLICY_COND_MAX_PAGES_RETIRED},
        {"thermal", DCGM_POLICY_COND_THERMAL}, {"power", DCGM_POLICY_COND_POWER}, {"nvlink", DCGM_POLICY_COND_NVLINK},
        {"xid", DCGM_POLICY_COND_XID},
    };
    struct model *m = p->m;
    int lo, hi, isxid = !strcmp(w[0], "xid"), args = isxid ? 2 : 3;
    const char *what = isxid ? "xid" : n > 2 ? w[2] : "";
    double a = 0, b = 0;
    uint64_t key = 0xcbf29ce484222325ull;
    struct event e = {0};
    if (range(p, w[1], &lo, &hi))
        return -1;
    for (size_t k = 0; k < sizeof names / sizeof names[0]; k++)
        if (!strcmp(names[k].name, what))
            e.condition = names[k].cond;
    if (!e.condition)
        return bad(p, "unknown violation \"%s\" (dbe, pci, pages, thermal, power, nvlink, xid)", what);
    for (int k = 0; k < n; k++) {
        if (!strncmp(w[k], "id=", 3)) {
            key = fnv(0xcbf29ce484222325ull, w[k]);
            n = k;
            break;
        }
        key = fnv(key, w[k]);
    }
    if (n <= args)
        return bad(p, "%s needs a value", what);
    if (number(p, w[args], &a) || (n > args + 1 && number(p, w[args + 1], &b)))
        return -1;
    for (int i = lo; i < hi; i++) {
        if (m->nevents == STUB_MAX_EVENTS)
            return bad(p, "more than %d events", STUB_MAX_EVENTS);
        e.gpu = i;
        e.a = (unsigned)a;
        e.b = (unsigned)b;
        e.key = key + (uint64_t)i * 0x9e3779b97f4a7c15ull;
        for (int k = 0; k < m->nevents; k++)
            if (m->events[k].key == e.key) { /* the same text again is another event */
                e.key++;
                k = -1;
            }
        m->events[m->nevents++] = e;
        if (isxid) { /* the gauge keeps the last code */
            struct sig s = {.field = 230, .kind = SIG_CONST, .a = a, .max = 1e300};
            put_signal(m, i, &s);
        }
    }
    return 0;
}

int do_health(struct parser *p, char **w, int n)
{
    static const char *systems[] = {"pcie",    "nvlink", "pmu",    "mcu",              "mem",           "sm",
                                    "inforom", "thermal", "power", "driver", "nvswitch_nonfatal", "nvswitch_fatal"};
    struct target to;
    double code = 0;
    struct incident in = {0};
    if (target(p, w[1], &to))
        return -1;
    if (to.eg != DCGM_FE_GPU && to.eg != DCGM_FE_SWITCH)
        return bad(p, "health is of a GPU or a switch, not \"%s\"", w[1]);
    for (unsigned k = 0; k < sizeof systems / sizeof systems[0]; k++)
        if (!strcmp(systems[k], w[2]))
            in.system = 1u << k;
    if (!in.system)
        return bad(p, "unknown health system \"%s\"", w[2]);
    if (strcmp(w[3], "warn") && strcmp(w[3], "fail"))
        return bad(p, "health is warn or fail, not \"%s\"", w[3]);
    in.result = !strcmp(w[3], "warn") ? DCGM_HEALTH_RESULT_WARN : DCGM_HEALTH_RESULT_FAIL;
    if (n > 4 && number(p, w[4], &code))
        return -1;
    in.code = (unsigned)code;
    if (n > 5)
        snprintf(in.msg, sizeof in.msg, "%s", w[5]);
    in.eg = to.eg;
    if (to.eg == DCGM_FE_SWITCH)
        to.lo = (int)to.id, to.hi = to.lo + 1;
    for (int i = to.lo; i < to.hi && p->m->nincidents < STUB_MAX_INCIDENTS; i++) {
        in.id = i;
        p->m->incidents[p->m->nincidents++] = in;
    }
    return 0;
}
