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
int do_event(struct parser *p, char **w, int n);
int do_health(struct parser *p, char **w, int n);

#endif
