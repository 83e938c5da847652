/* The stub of libdcgm.so.4: shared declarations.
 *
 * One process-wide engine behind one mutex. A script file (env PITCREW_DCGM_SCRIPT) says what the simulated node looks like; it is
 * read again whenever its inode, size or mtime changes. See README.md for the format.
 */
#ifndef PITCREW_DCGM_STUB_H
#define PITCREW_DCGM_STUB_H

#include <stdbool.h>
#include <stdint.h>

#include "dcgm_agent.h"
#include "dcgm_errors.h"
#include "dcgm_fields.h"
#include "dcgm_structs.h"
#include "dcgm_test_apis.h"

#define STUB_MAX_GPUS DCGM_MAX_NUM_DEVICES
#define STUB_MAX_FIELD 2048
#define STUB_MAX_LINKS DCGM_NVLINK_MAX_LINKS_PER_GPU
#define STUB_STR 96
#define STUB_MAX_RULES 64
#define STUB_MAX_INCIDENTS 128
#define STUB_MAX_EVENTS 4096
#define STUB_MAX_SWITCHES DCGM_MAX_NUM_SWITCHES
#define STUB_SWITCH_LINKS 64 /* an NVSwitch of an HGX H100 board; the struct has room for more */
#define STUB_MAX_GROUPS DCGM_PROF_MAX_NUM_GROUPS_V2 /* of profiling metrics */

#define API __attribute__((visibility("default")))

/* Signals: what a field's value is as a function of time. */
enum sig_kind { SIG_CONST, SIG_RAMP, SIG_NOISE, SIG_BLANK, SIG_STRING };

struct sig {
    unsigned short field;
    enum sig_kind kind;
    double a, b, max; /* value, rate or amplitude, ceiling of a ramp */
    int64_t since_us; /* a ramp's start */
    int blank;        /* 0 blank, 1 not found, 2 not supported, 3 no permission */
    char str[STUB_STR];
};

/* Static knowledge of a field, and the default signal of an H100-like GPU. */
struct field_row {
    unsigned short id;
    char type;
    dcgm_field_entity_group_t level;
    const char *tag;
    enum sig_kind kind;
    double a, b;
};

struct gpu {
    int present; /* counted by the engine at all */
    int status;  /* DcgmEntityStatus_t */
    char uuid[STUB_STR], pci[STUB_STR], name[STUB_STR], serial[STUB_STR];
    int nvlink[STUB_MAX_LINKS]; /* dcgmNvLinkLinkState_t */
    short index[STUB_MAX_FIELD]; /* 1 + position in model.sigs, 0 none */
};

/* A MIG GPU instance with its compute instances. Entity ids are as DCGM gives them: 8 for each GPU, in order of creation. */
struct compute {
    int ci;
    int told; /* by the engine; the driver tells it in any case */
    char uuid[STUB_STR]; /* MIG-... */
};

struct instance {
    dcgm_field_eid_t id;
    int gpu, gi, slices, ncompute;
    char profile[STUB_STR];
    struct compute compute[DCGM_MAX_COMPUTE_INSTANCES_PER_GPU];
};

struct nvswitch {
    int present;
    char uuid[STUB_STR], pci[STUB_STR];
    int link[STUB_SWITCH_LINKS]; /* dcgmNvLinkLinkState_t */
};

/* A signal of an entity that is no GPU: an instance, a switch, or a link of either. */
struct entity_sig {
    dcgm_field_entity_group_t eg;
    dcgm_field_eid_t id;
    struct sig sig;
};

/* Profiling metrics that can be watched together; two groups of one major cannot. */
struct metric_group {
    int major, minor, n;
    unsigned short ids[DCGM_PROF_MAX_FIELD_IDS_PER_GROUP_V2];
};

struct event {
    uint64_t key; /* identity: delivered once per process */
    int gpu;
    unsigned condition; /* DCGM_POLICY_COND_* */
    unsigned a, b;
};

struct rule {
    char call[64]; /* function name, or * */
    double seconds; /* > 0: a hang */
    int code;       /* else: the return code */
};

struct incident {
    dcgm_field_entity_group_t eg;
    int id;
    unsigned system, result, code;
    char msg[STUB_STR * 2];
};

struct model {
    int ngpus;
    struct gpu gpus[STUB_MAX_GPUS];
    struct sig *sigs;
    int nsigs, capsigs;
    struct event events[STUB_MAX_EVENTS];
    int nevents;
    struct rule rules[STUB_MAX_RULES];
    int nrules;
    struct incident incidents[STUB_MAX_INCIDENTS];
    int nincidents;
    struct instance instances[DCGM_MAX_INSTANCES];
    int ninstances;
    struct nvswitch switches[STUB_MAX_SWITCHES];
    int nswitches;
    struct entity_sig *esigs;
    int nesigs, capesigs;
    struct metric_group groups[STUB_MAX_GROUPS];
    int ngroups, groups_given, profiling_busy;
    uint64_t path[STUB_MAX_GPUS][STUB_MAX_GPUS]; /* dcgmGpuTopologyLevel_t; 0 the default */
    char driver[STUB_STR], version[STUB_STR];
    int down;       /* the host engine does not answer */
    long restart;   /* changes when it was restarted */
    uint64_t seed;
    int64_t origin_us;
};

/* script.c */
struct model *model_load(const char *path, int64_t origin_us, char *err, int errlen); /* NULL with err set when malformed */
void model_free(struct model *m);

/* fields.c */
const struct field_row *field_row(unsigned short id);
const struct field_row *field_rows(int *n);
int64_t now_us(void);
/* What the driver would answer for this field of this GPU at time t: a value or a blank, and a status. */
struct reading {
    char type;
    int status;
    int64_t ts;
    int64_t i64;
    double dbl;
    const char *str;
};
struct reading read_driver(const struct model *m, int gpu, unsigned short field, int64_t t);
struct reading read_link(const struct model *m, dcgm_field_eid_t raw, unsigned short field, int64_t t);
struct reading read_signal(const struct model *m, const struct sig *s, char type, int salt, int64_t t);
struct reading blank_reading(char type, int status, int which, int64_t t);
char field_type(const struct model *m, int gpu, unsigned short field);

/* entities.c: MIG instances, NVSwitches and the links of a switch. */
const struct instance *instance_of(const struct model *m, dcgm_field_eid_t id);
struct reading read_entity(const struct model *m, dcgm_field_entity_group_t eg, dcgm_field_eid_t id, unsigned short field, int64_t t);
int entity_exists(const struct model *m, dcgm_field_entity_group_t eg, dcgm_field_eid_t id);
/* What the profiling module answers to a watch of these fields: OK where none of them is one of its metrics. */
dcgmReturn_t profiling_watch(const struct model *m, const char wanted[STUB_MAX_FIELD]);

/* engine.c: every API call starts with enter(), which returns with the lock held when it answers DCGM_ST_OK. */
extern struct model *M;
dcgmReturn_t enter(const char *call, dcgmHandle_t handle, int needs_handle);
dcgmReturn_t leave(dcgmReturn_t r);
void engine_lock(void);
void engine_unlock(void);
void engine_reload(void); /* lock held */
dcgmReturn_t engine_connect(dcgmHandle_t *out);
void engine_disconnect(void);
const char *script_path(void);

#define ENTER(h)                                    \
    do {                                            \
        dcgmReturn_t r_ = enter(__func__, (h), 1);  \
        if (r_ != DCGM_ST_OK)                       \
            return r_;                              \
    } while (0)
#define ENTER_ANY()                                 \
    do {                                            \
        dcgmReturn_t r_ = enter(__func__, 0, 0);    \
        if (r_ != DCGM_ST_OK)                       \
            return r_;                              \
    } while (0)

/* groups.c */
struct group {
    int used;
    char name[DCGM_MAX_STR_LENGTH];
    unsigned n;
    dcgmGroupEntityPair_t e[DCGM_GROUP_MAX_ENTITIES_V2];
};
/* Fills out with the group's entities; BADPARAM for an unknown group. out must hold DCGM_GROUP_MAX_ENTITIES_V2. */
dcgmReturn_t group_members(dcgmGpuGrp_t id, dcgmGroupEntityPair_t *out, unsigned *n);
int group_has(dcgmGpuGrp_t id, dcgm_field_entity_group_t eg);
unsigned group_gpu_mask(dcgmGpuGrp_t id, dcgmReturn_t *r);
int field_group(dcgmFieldGrp_t id, const unsigned short **ids); /* number of fields, -1 unknown */
void groups_reset(void);

/* watch.c */
void watches_reset(void);
void watches_forget_group(dcgmGpuGrp_t g, dcgmFieldGrp_t f);
void watches_advance(int64_t now);

/* policy.c */
void policy_reset(void);
void policy_stop_thread(void);

#endif
