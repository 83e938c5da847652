/* What the parts of the script parser share. */
#ifndef PITCREW_DCGM_SCRIPT_H
#define PITCREW_DCGM_SCRIPT_H

#include "stub.h"

struct parser {
    struct model *m;
    int line;
    char *err;
    int errlen;
};

/* Each returns 0, or -1 after saying in p->err what is wrong. */
int bad(struct parser *p, const char *fmt, ...);
int number(struct parser *p, const char *w, double *out);
int range(struct parser *p, const char *w, int *lo, int *hi);
void put_signal(struct model *m, int gpu, const struct sig *s);
int parse_signal(struct parser *p, char **w, int n, struct sig *s);
/* What a line is about: GPUs lo to hi, or with eg not DCGM_FE_GPU the one entity id. "0/3" is the instance of GPU 0 whose NVML number
 * is 3, "switch:1" a switch, "switch:1/5" its link. */
struct target {
    dcgm_field_entity_group_t eg;
    int lo, hi;
    dcgm_field_eid_t id;
};
int target(struct parser *p, const char *w, struct target *out);
void put_entity_signal(struct model *m, const struct target *to, const struct sig *s);
int do_mig(struct parser *p, char **w, int n);
int do_switches(struct parser *p, char **w, int n);
int do_switch(struct parser *p, char **w, int n);
int do_switch_link(struct parser *p, const struct target *to, const char *link, int state);
int do_profiling(struct parser *p, char **w, int n);
int do_path(struct parser *p, char **w, int n);
int do_event(struct parser *p, char **w, int n);
int do_health(struct parser *p, char **w, int n);

#endif
