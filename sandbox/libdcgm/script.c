/* The script: parsing. A malformed script is refused as a whole, with its line named, and the last good one stays in force. */
#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "script.h"

#define MAX_WORDS 24

int bad(struct parser *p, const char *fmt, ...)
{
    va_list ap;
    int n = snprintf(p->err, (size_t)p->errlen, "line %d: ", p->line);
    va_start(ap, fmt);
    vsnprintf(p->err + n, (size_t)(p->errlen - n), fmt, ap);
    va_end(ap);
    return -1;
}

/* Splits in place; double quotes hold a word with blanks together. */
static int split(char *s, char **w)
{
    int n = 0;
    while (*s && n < MAX_WORDS) {
        while (isspace((unsigned char)*s))
            s++;
        if (!*s || *s == '#')
            break;
        if (*s == '"') {
            w[n++] = ++s;
            while (*s && *s != '"')
                s++;
        } else {
            w[n++] = s;
            while (*s && !isspace((unsigned char)*s))
                s++;
        }
        if (*s)
            *s++ = 0;
    }
    return n;
}

int number(struct parser *p, const char *w, double *out)
{
    char *end;
    *out = strtod(w, &end);
    return end == w || *end ? bad(p, "\"%s\" is not a number", w) : 0;
}

/* "*" or the index of a GPU: [*lo, *hi). */
int range(struct parser *p, const char *w, int *lo, int *hi)
{
    double d;
    if (!strcmp(w, "*")) {
        *lo = 0;
        *hi = p->m->ngpus;
        return 0;
    }
    if (number(p, w, &d))
        return -1;
    if (d < 0 || (int)d >= p->m->ngpus)
        return bad(p, "no GPU %s among %d", w, p->m->ngpus);
    *lo = (int)d;
    *hi = *lo + 1;
    return 0;
}

static void copy(char *dst, const char *src)
{
    snprintf(dst, STUB_STR, "%s", src);
}

void put_signal(struct model *m, int gpu, const struct sig *s)
{
    short *at = &m->gpus[gpu].index[s->field];
    if (*at) {
        m->sigs[*at - 1] = *s;
        return;
    }
    if (m->nsigs == m->capsigs) {
        m->capsigs = m->capsigs ? 2 * m->capsigs : 1024;
        m->sigs = realloc(m->sigs, (size_t)m->capsigs * sizeof *m->sigs);
        if (!m->sigs)
            abort();
    }
    m->sigs[m->nsigs++] = *s;
    *at = (short)m->nsigs;
}

static void gpu_defaults(struct model *m, int i)
{
    static const int bus[8] = {0x1a, 0x40, 0x53, 0x66, 0x9c, 0xc0, 0xd2, 0xe4};
    struct gpu *g = &m->gpus[i];
    int n;
    const struct field_row *rows = field_rows(&n);
    g->present = 1;
    g->status = DcgmEntityStatusOk;
    snprintf(g->uuid, STUB_STR, "GPU-5117c0de-0000-4000-8000-%012d", i);
    snprintf(g->pci, STUB_STR, "0000%04X:%02X:00.0", i / 8, bus[i % 8]);
    snprintf(g->serial, STUB_STR, "165012300%04d", i);
    copy(g->name, "NVIDIA H100 80GB HBM3");
    for (int l = 0; l < STUB_MAX_LINKS; l++)
        g->nvlink[l] = l < 18 ? DcgmNvLinkLinkStateUp : DcgmNvLinkLinkStateNotSupported;
    for (int k = 0; k < n; k++) {
        struct sig s = {.field = rows[k].id, .kind = rows[k].kind, .a = rows[k].a, .b = rows[k].b, .max = 1e300};
        if (rows[k].type == DCGM_FT_STRING || rows[k].level == DCGM_FE_LINK || rows[k].level == DCGM_FE_SWITCH)
            continue;
        if (s.kind == SIG_BLANK)
            s.blank = (int)s.a;
        s.since_us = m->origin_us;
        put_signal(m, i, &s);
    }
}

static int do_gpus(struct parser *p, char **w, int n)
{
    double d;
    (void)n;
    if (number(p, w[1], &d))
        return -1;
    if (d < 0 || d > STUB_MAX_GPUS)
        return bad(p, "gpus must be 0..%d", STUB_MAX_GPUS);
    if (p->m->ngpus)
        return bad(p, "gpus given twice");
    p->m->ngpus = (int)d;
    for (int i = 0; i < p->m->ngpus; i++)
        gpu_defaults(p->m, i);
    return 0;
}

static int do_gpu(struct parser *p, char **w, int n)
{
    int lo, hi;
    if (range(p, w[1], &lo, &hi))
        return -1;
    for (int k = 2; k + 1 < n; k += 2)
        for (int i = lo; i < hi; i++) {
            struct gpu *g = &p->m->gpus[i];
            char *dst = !strcmp(w[k], "uuid")     ? g->uuid
                        : !strcmp(w[k], "pci")    ? g->pci
                        : !strcmp(w[k], "name")   ? g->name
                        : !strcmp(w[k], "serial") ? g->serial
                                                  : NULL;
            if (!dst)
                return bad(p, "unknown GPU attribute \"%s\" (uuid, pci, name, serial)", w[k]);
            copy(dst, w[k + 1]);
        }
    return 0;
}

/* The signal after "field TARGET": an id, a kind, its numbers and options. */
int parse_signal(struct parser *p, char **w, int n, struct sig *s)
{
    int k = 4;
    double id;
    *s = (struct sig){.max = 1e300, .since_us = p->m->origin_us};
    if (number(p, w[2], &id))
        return -1;
    if (id < 1 || id >= STUB_MAX_FIELD)
        return bad(p, "field %s is out of range", w[2]);
    s->field = (unsigned short)id;
    if (!strcmp(w[3], "blank")) {
        static const char *names[] = {"blank", "notfound", "notsupported", "noperm"};
        s->kind = SIG_BLANK;
        for (int i = 0; n > 4 && i < 4; i++)
            if (!strcmp(w[4], names[i]))
                s->blank = i;
        k = n;
    } else if (!strcmp(w[3], "string")) {
        if (n < 5)
            return bad(p, "string needs a text");
        s->kind = SIG_STRING;
        copy(s->str, w[4]);
        k = n;
    } else {
        int two = 1;
        if (!strcmp(w[3], "const"))
            s->kind = SIG_CONST, two = 0;
        else if (!strcmp(w[3], "ramp") || !strcmp(w[3], "counter"))
            s->kind = SIG_RAMP;
        else if (!strcmp(w[3], "noise"))
            s->kind = SIG_NOISE;
        else
            return bad(p, "unknown signal \"%s\" (const, ramp, counter, noise, blank, string)", w[3]);
        if (n < 5 + two)
            return bad(p, "%s needs %d numbers", w[3], 1 + two);
        if (number(p, w[4], &s->a) || (two && number(p, w[5], &s->b)))
            return -1;
        k = 5 + two;
    }
    for (; k < n; k++) {
        double d;
        if (!strncmp(w[k], "max=", 4) && !number(p, w[k] + 4, &d))
            s->max = d;
        else if (!strncmp(w[k], "since=", 6) && !number(p, w[k] + 6, &d))
            s->since_us = (int64_t)(d * 1e6);
        else
            return bad(p, "unknown option \"%s\" (max=, since=)", w[k]);
    }
    return 0;
}

static int do_field(struct parser *p, char **w, int n)
{
    struct sig s;
    struct target to;
    if (target(p, w[1], &to) || parse_signal(p, w, n, &s))
        return -1;
    if (to.eg != DCGM_FE_GPU) {
        put_entity_signal(p->m, &to, &s);
        return 0;
    }
    for (int i = to.lo; i < to.hi; i++)
        put_signal(p->m, i, &s);
    return 0;
}

static int do_status(struct parser *p, char **w, int n)
{
    static const struct { const char *name; int status; } names[] = {
        {"ok", DcgmEntityStatusOk},           {"unsupported", DcgmEntityStatusUnsupported}, {"inaccessible", DcgmEntityStatusInaccessible},
        {"lost", DcgmEntityStatusLost},       {"disabled", DcgmEntityStatusDisabled},       {"detached", DcgmEntityStatusDetached},
    };
    int lo, hi;
    const char *what = n > 2 ? w[2] : w[0]; /* "lost 3", "gone 3", "status 3 detached" */
    if (range(p, w[1], &lo, &hi))
        return -1;
    for (int i = lo; i < hi; i++) {
        if (!strcmp(what, "gone")) {
            p->m->gpus[i].present = 0;
            continue;
        }
        size_t k = 0, m = sizeof names / sizeof names[0];
        while (k < m && strcmp(names[k].name, what))
            k++;
        if (k == m)
            return bad(p, "unknown status \"%s\"", what);
        p->m->gpus[i].status = names[k].status;
    }
    return 0;
}

static int do_nvlink(struct parser *p, char **w, int n)
{
    static const char *states[] = {"notsupported", "disabled", "down", "up"};
    int from = 0, to = STUB_MAX_LINKS, st = -1;
    struct target at;
    double d;
    (void)n;
    if (target(p, w[1], &at))
        return -1;
    for (int k = 0; k < 4; k++)
        if (!strcmp(states[k], w[3]))
            st = k;
    if (st < 0)
        return bad(p, "unknown link state \"%s\" (up, down, disabled, notsupported)", w[3]);
    if (at.eg != DCGM_FE_GPU)
        return do_switch_link(p, &at, w[2], st);
    if (strcmp(w[2], "*")) {
        if (number(p, w[2], &d))
            return -1;
        if (d < 0 || d >= STUB_MAX_LINKS)
            return bad(p, "link %s is out of range", w[2]);
        from = (int)d;
        to = from + 1;
    }
    for (int i = at.lo; i < at.hi; i++)
        for (int l = from; l < to; l++)
            p->m->gpus[i].nvlink[l] = st;
    return 0;
}

static int do_rule(struct parser *p, char **w, int n)
{
    struct rule r = {0};
    double d;
    (void)n;
    if (p->m->nrules == STUB_MAX_RULES)
        return bad(p, "more than %d hang and fail lines", STUB_MAX_RULES);
    snprintf(r.call, sizeof r.call, "%s", w[1]);
    if (number(p, w[2], &d))
        return -1;
    if (!strcmp(w[0], "hang"))
        r.seconds = d;
    else
        r.code = (int)d;
    p->m->rules[p->m->nrules++] = r;
    return 0;
}

static int do_setting(struct parser *p, char **w, int n)
{
    double d = 0;
    (void)n;
    if (!strcmp(w[0], "driver")) {
        copy(p->m->driver, w[1]);
        return 0;
    }
    if (!strcmp(w[0], "version")) {
        copy(p->m->version, w[1]);
        return 0;
    }
    if (!strcmp(w[0], "engine")) {
        if (!strcmp(w[1], "down"))
            p->m->down = 1;
        else if (strcmp(w[1], "up"))
            return bad(p, "engine is up or down, not \"%s\"", w[1]);
        return 0;
    }
    if (number(p, w[1], &d))
        return -1;
    if (!strcmp(w[0], "seed"))
        p->m->seed = (uint64_t)d;
    else if (!strcmp(w[0], "restart"))
        p->m->restart = (long)d;
    else if (p->m->ngpus)
        return bad(p, "origin must come before gpus");
    else
        p->m->origin_us = (int64_t)(d * 1e6);
    return 0;
}

static const struct word {
    const char *name;
    int min; /* words needed, the name included */
    int (*run)(struct parser *, char **, int);
} words[] = {
    {"gpus", 2, do_gpus},     {"gpu", 4, do_gpu},         {"field", 4, do_field},  {"lost", 2, do_status},   {"gone", 2, do_status},
    {"status", 3, do_status}, {"xid", 3, do_event},       {"violation", 4, do_event}, {"health", 4, do_health}, {"nvlink", 4, do_nvlink},
    {"hang", 3, do_rule},     {"fail", 3, do_rule},       {"driver", 2, do_setting}, {"version", 2, do_setting}, {"engine", 2, do_setting},
    {"seed", 2, do_setting},  {"restart", 2, do_setting}, {"origin", 2, do_setting}, {"mig", 5, do_mig},      {"switches", 2, do_switches},
    {"switch", 3, do_switch}, {"profiling", 2, do_profiling}, {"path", 4, do_path},
};

static int parse_line(struct parser *p, char *text)
{
    char *w[MAX_WORDS] = {0};
    int n = split(text, w);
    if (n == 0)
        return 0;
    for (size_t k = 0; k < sizeof words / sizeof words[0]; k++)
        if (!strcmp(words[k].name, w[0])) {
            if (n < words[k].min)
                return bad(p, "%s needs %d words, has %d", w[0], words[k].min, n);
            return words[k].run(p, w, n);
        }
    return bad(p, "unknown word \"%s\"", w[0]);
}

void model_free(struct model *m)
{
    if (m) {
        free(m->sigs);
        free(m->esigs);
    }
    free(m);
}

struct model *model_load(const char *path, int64_t origin_us, char *err, int errlen)
{
    char buf[1024];
    FILE *f = NULL;
    struct parser p = {.err = err, .errlen = errlen};
    struct model *m = calloc(1, sizeof *m);
    if (!m)
        abort();
    p.m = m;
    m->origin_us = origin_us;
    m->seed = 1;
    m->groups[0] = (struct metric_group){.n = 9, .ids = {1001, 1002, 1003, 1004, 1005, 1009, 1010, 1011, 1012}};
    m->ngroups = 1;
    copy(m->driver, "570.124.06");
    copy(m->version, "4.6.1");
    if (!path) { /* no script: a healthy node */
        m->ngpus = 8;
        for (int i = 0; i < 8; i++)
            gpu_defaults(m, i);
        return m;
    }
    f = fopen(path, "re");
    if (!f) {
        snprintf(err, (size_t)errlen, "%s", strerror(errno));
        model_free(m);
        return NULL;
    }
    while (fgets(buf, sizeof buf, f)) {
        p.line++;
        if (parse_line(&p, buf)) {
            fclose(f);
            model_free(m);
            return NULL;
        }
    }
    fclose(f);
    return m;
}
