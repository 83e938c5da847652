/* The engine: its lock, its script, connections, and the gate every call passes (hangs, errors, a dead host engine). */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "stub.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct stat seen;
static int loaded, had_error;
static int64_t first_us; /* the ramps' origin when the script names none */
static uintptr_t generation = 0x1000; /* a handle of an older generation is a connection that was lost */
static int connected;

struct model *M;

void engine_lock(void)
{
    pthread_mutex_lock(&lock);
}

void engine_unlock(void)
{
    pthread_mutex_unlock(&lock);
}

const char *script_path(void)
{
    const char *p = getenv("PITCREW_DCGM_SCRIPT");
    return p && *p ? p : NULL;
}

static void forget_state(void)
{
    generation++;
    connected = 0;
    groups_reset();
    watches_reset();
    policy_reset();
}

void engine_reload(void)
{
    struct stat st;
    char err[256] = "";
    const char *path = script_path();
    struct model *m, *old = M;

    if (!first_us)
        first_us = now_us();
    if (!path) {
        if (!M)
            M = model_load(NULL, first_us, err, sizeof err);
        return;
    }
    memset(&st, 0, sizeof st);
    if (stat(path, &st) != 0 && M) /* being replaced, or gone: the last good one stays in force */
        return;
    if (loaded && st.st_ino == seen.st_ino && st.st_size == seen.st_size && st.st_mtim.tv_sec == seen.st_mtim.tv_sec &&
        st.st_mtim.tv_nsec == seen.st_mtim.tv_nsec)
        return;
    seen = st;
    loaded = 1;
    m = model_load(path, first_us, err, sizeof err);
    if (!m) {
        if (!had_error || M)
            fprintf(stderr, "libdcgm stub: %s: %s; the last good script stays in force\n", path, err);
        had_error = 1;
        if (!M) {
            M = calloc(1, sizeof *M); /* no GPUs until the script can be read */
            if (!M)
                abort();
            M->down = 1;
            loaded = 0;
        }
        return;
    }
    if (old)
        watches_advance(now_us()); /* what was due under the old script is sampled from it */
    M = m;
    if (old && ((m->down && !old->down) || m->restart != old->restart))
        forget_state();
    model_free(old);
}

static double hang_of(const char *call)
{
    for (int i = 0; i < M->nrules; i++)
        if (M->rules[i].seconds > 0 && (!strcmp(M->rules[i].call, call) || !strcmp(M->rules[i].call, "*")))
            return M->rules[i].seconds;
    return 0;
}

dcgmReturn_t enter(const char *call, dcgmHandle_t handle, int needs_handle)
{
    struct timespec slice = {.tv_nsec = 10 * 1000 * 1000};
    int64_t start = now_us();
    double s;

    engine_lock();
    engine_reload();
    /* A hang ends when its time is over, or when the script no longer asks for it. Others are not held up: the lock is free. */
    while ((s = hang_of(call)) > 0 && (double)(now_us() - start) < s * 1e6) {
        engine_unlock();
        nanosleep(&slice, NULL);
        engine_lock();
        engine_reload();
    }
    for (int i = 0; i < M->nrules; i++)
        if (M->rules[i].code && (!strcmp(M->rules[i].call, call) || !strcmp(M->rules[i].call, "*")))
            return leave((dcgmReturn_t)M->rules[i].code);
    if (needs_handle && (!connected || handle != (dcgmHandle_t)generation))
        return leave(DCGM_ST_CONNECTION_NOT_VALID);
    return DCGM_ST_OK;
}

dcgmReturn_t leave(dcgmReturn_t r)
{
    engine_unlock();
    return r;
}

dcgmReturn_t engine_connect(dcgmHandle_t *out)
{
    if (!out)
        return DCGM_ST_BADPARAM;
    if (M->down)
        return DCGM_ST_CONNECTION_NOT_VALID;
    connected = 1;
    *out = (dcgmHandle_t)generation;
    return DCGM_ST_OK;
}

void engine_disconnect(void)
{
    forget_state();
}
