/* Policies: set, get, and violations called back from a thread of their own, woken by inotify when the script changes. */
#include <libgen.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <unistd.h>

#include "stub.h"

#define MAX_REGS 32
#define MAX_SEEN (4 * STUB_MAX_EVENTS)

struct reg {
    int used;
    dcgmGpuGrp_t group;
    unsigned condition;
    fpRecvUpdates cb;
    uint64_t user;
};

static dcgmPolicy_t policies[STUB_MAX_GPUS];
static struct reg regs[MAX_REGS];
static uint64_t seen[MAX_SEEN];
static int nseen;
static pthread_t thread;
static int running, stopfd = -1;

void policy_reset(void)
{
    memset(policies, 0, sizeof policies);
    memset(regs, 0, sizeof regs);
}

static int is_seen(uint64_t key)
{
    for (int i = 0; i < nseen; i++)
        if (seen[i] == key)
            return 1;
    if (nseen == MAX_SEEN) { /* forget the older half */
        memmove(seen, seen + MAX_SEEN / 2, sizeof seen / 2);
        nseen = MAX_SEEN / 2;
    }
    seen[nseen++] = key;
    return 0;
}

static void fill(dcgmPolicyCallbackResponse_t *r, const struct event *e)
{
    int64_t t = now_us();
    memset(r, 0, sizeof *r);
    r->version = dcgmPolicyCallbackResponse_version2;
    r->condition = (dcgmPolicyCondition_t)e->condition;
    r->gpuId = (unsigned)e->gpu;
    switch (e->condition) {
    case DCGM_POLICY_COND_DBE:
        r->val.dbe.timestamp = t;
        r->val.dbe.location = DEVICE;
        r->val.dbe.numerrors = e->a;
        break;
    case DCGM_POLICY_COND_PCI:
        r->val.pci.timestamp = t;
        r->val.pci.counter = e->a;
        break;
    case DCGM_POLICY_COND_MAX_PAGES_RETIRED:
        r->val.mpr.timestamp = t;
        r->val.mpr.sbepages = e->a;
        r->val.mpr.dbepages = e->b;
        break;
    case DCGM_POLICY_COND_THERMAL:
        r->val.thermal.timestamp = t;
        r->val.thermal.thermalViolation = e->a;
        break;
    case DCGM_POLICY_COND_POWER:
        r->val.power.timestamp = t;
        r->val.power.powerViolation = e->a;
        break;
    case DCGM_POLICY_COND_NVLINK:
        r->val.nvlink.timestamp = t;
        r->val.nvlink.fieldId = (unsigned short)e->a;
        r->val.nvlink.counter = e->b;
        break;
    default:
        r->val.xid.timestamp = t;
        r->val.xid.errnum = e->a;
    }
}

/* Calls back for each new event, outside the lock, since a callback may call the library. */
static void deliver(void)
{
    for (;;) {
        struct reg due[MAX_REGS];
        dcgmPolicyCallbackResponse_t resp;
        int n = 0, found = 0;
        engine_lock();
        engine_reload();
        for (int i = 0; i < M->nevents && !found; i++) {
            const struct event *e = &M->events[i];
            if (is_seen(e->key))
                continue;
            found = 1;
            fill(&resp, e);
            for (int k = 0; k < MAX_REGS; k++) {
                dcgmReturn_t r;
                if (regs[k].used && (regs[k].condition & e->condition) && (policies[e->gpu].condition & e->condition) &&
                    (group_gpu_mask(regs[k].group, &r) >> e->gpu & 1))
                    due[n++] = regs[k];
            }
        }
        engine_unlock();
        if (!found)
            return;
        for (int k = 0; k < n; k++)
            due[k].cb(&resp, due[k].user);
    }
}

static void *listen_loop(void *arg)
{
    char buf[4096], dir[1024] = ".";
    const char *path = script_path();
    int fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK), stop = *(int *)arg;
    free(arg);
    if (path && strlen(path) < sizeof dir) {
        char copy[1024];
        strcpy(copy, path);
        strcpy(dir, dirname(copy));
    }
    if (fd >= 0 && inotify_add_watch(fd, dir, IN_MOVED_TO | IN_CLOSE_WRITE | IN_CREATE) < 0) {
        close(fd);
        fd = -1;
    }
    for (;;) {
        struct pollfd p[2] = {{.fd = stop, .events = POLLIN}, {.fd = fd, .events = POLLIN}};
        deliver();
        poll(p, 2, fd < 0 ? 50 : 1000); /* without inotify the script is looked at 20 times a second */
        if (p[0].revents)
            break;
        if (fd >= 0)
            while (read(fd, buf, sizeof buf) > 0)
                ;
    }
    if (fd >= 0)
        close(fd);
    return NULL;
}

static dcgmReturn_t start_thread(void)
{
    int *arg;
    if (running)
        return DCGM_ST_OK;
    stopfd = eventfd(0, EFD_CLOEXEC);
    arg = malloc(sizeof *arg);
    if (stopfd < 0 || !arg)
        return DCGM_ST_INSUFFICIENT_RESOURCES;
    *arg = stopfd;
    for (int i = 0; i < M->nevents; i++) /* what had happened before is history */
        is_seen(M->events[i].key);
    if (pthread_create(&thread, NULL, listen_loop, arg) != 0)
        return DCGM_ST_INSUFFICIENT_RESOURCES;
    running = 1;
    return DCGM_ST_OK;
}

/* Called without the lock: the thread may want it. */
void policy_stop_thread(void)
{
    uint64_t one = 1;
    int was;
    engine_lock();
    was = running;
    running = 0;
    engine_unlock();
    if (!was)
        return;
    if (write(stopfd, &one, sizeof one) < 0)
        abort();
    pthread_join(thread, NULL);
    close(stopfd);
}

API dcgmReturn_t dcgmPolicySet(dcgmHandle_t h, dcgmGpuGrp_t g, dcgmPolicy_t *p, dcgmStatus_t s)
{
    dcgmReturn_t r;
    unsigned mask;
    (void)s;
    ENTER(h);
    mask = group_gpu_mask(g, &r);
    if (r != DCGM_ST_OK || !p)
        return leave(DCGM_ST_BADPARAM);
    if (p->version != dcgmPolicy_version1)
        return leave(DCGM_ST_VER_MISMATCH);
    for (int i = 0; i < STUB_MAX_GPUS; i++)
        if (mask >> i & 1)
            policies[i] = *p;
    return leave(DCGM_ST_OK);
}

API dcgmReturn_t dcgmPolicyGet(dcgmHandle_t h, dcgmGpuGrp_t g, int count, dcgmPolicy_t *p, dcgmStatus_t s)
{
    dcgmReturn_t r;
    unsigned mask;
    int n = 0;
    (void)s;
    ENTER(h);
    mask = group_gpu_mask(g, &r);
    if (r != DCGM_ST_OK || !p || count < 1)
        return leave(DCGM_ST_BADPARAM);
    if (p->version != dcgmPolicy_version1)
        return leave(DCGM_ST_VER_MISMATCH);
    for (int i = 0; i < STUB_MAX_GPUS; i++)
        if (mask >> i & 1) {
            if (n == count)
                return leave(DCGM_ST_INSUFFICIENT_SIZE);
            p[n] = policies[i];
            p[n++].version = dcgmPolicy_version1;
        }
    return leave(DCGM_ST_OK);
}

API dcgmReturn_t dcgmPolicyRegister_v2(dcgmHandle_t h, dcgmGpuGrp_t g, dcgmPolicyCondition_t condition, fpRecvUpdates cb, uint64_t user)
{
    dcgmReturn_t r;
    ENTER(h);
    group_gpu_mask(g, &r);
    if (r != DCGM_ST_OK || !condition || !cb)
        return leave(DCGM_ST_BADPARAM);
    for (int k = 0; k < MAX_REGS; k++)
        if (!regs[k].used) {
            regs[k] = (struct reg){.used = 1, .group = g, .condition = (unsigned)condition, .cb = cb, .user = user};
            return leave(start_thread());
        }
    return leave(DCGM_ST_MAX_LIMIT);
}

API dcgmReturn_t dcgmPolicyUnregister(dcgmHandle_t h, dcgmGpuGrp_t g, dcgmPolicyCondition_t condition)
{
    ENTER(h);
    if (!condition)
        return leave(DCGM_ST_BADPARAM);
    for (int k = 0; k < MAX_REGS; k++)
        if (regs[k].used && regs[k].group == g) {
            regs[k].condition &= ~(unsigned)condition;
            regs[k].used = regs[k].condition != 0;
        }
    return leave(DCGM_ST_OK);
}
