/* Field metadata, an H100's plausible defaults, and the evaluation of signals. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "stub.h"

#define I DCGM_FT_INT64
#define D DCGM_FT_DOUBLE
#define S DCGM_FT_STRING
#define GPU DCGM_FE_GPU

/* Sorted by id. Values: an H100 80GB HBM3 under a training load. A counter is a ramp (value, rate per second). */
static const struct field_row rows[] = {
    {1, S, DCGM_FE_NONE, "driver_version", SIG_STRING, 0, 0},
    {4, I, DCGM_FE_NONE, "device_count", SIG_CONST, 0, 0},
    {5, I, DCGM_FE_NONE, "cuda_driver_version", SIG_CONST, 12080, 0},
    {50, S, GPU, "gpu_name", SIG_STRING, 0, 0},
    {53, S, GPU, "serial", SIG_STRING, 0, 0},
    {54, S, GPU, "uuid", SIG_STRING, 0, 0},
    {57, S, GPU, "pci_busid", SIG_STRING, 0, 0},
    {63, I, GPU, "cuda_compute_capability", SIG_CONST, 9 << 16, 0},
    {67, I, GPU, "mig_mode", SIG_CONST, 0, 0},
    {70, I, GPU, "cpu_affinity_0", SIG_CONST, 0, 0},
    {71, I, GPU, "cpu_affinity_1", SIG_CONST, 0, 0},
    {72, I, GPU, "cpu_affinity_2", SIG_CONST, 0, 0},
    {73, I, GPU, "cpu_affinity_3", SIG_CONST, 0, 0},
    {84, I, GPU, "inforom_config_valid", SIG_CONST, 1, 0},
    {94, I, GPU, "gpm_support", SIG_CONST, 1, 0},
    {100, I, GPU, "sm_clock", SIG_NOISE, 1755, 30},
    {101, I, GPU, "memory_clock", SIG_CONST, 2619, 0},
    {112, I, GPU, "clocks_event_reasons", SIG_CONST, 0, 0},
    {113, I, GPU, "max_sm_clock", SIG_CONST, 1980, 0},
    {114, I, GPU, "max_memory_clock", SIG_CONST, 2619, 0},
    {140, I, GPU, "memory_temp", SIG_NOISE, 56, 2},
    {150, I, GPU, "gpu_temp", SIG_NOISE, 48, 2},
    {151, I, GPU, "memory_max_op_temp", SIG_CONST, 95, 0},
    {152, I, GPU, "gpu_max_op_temp", SIG_CONST, 87, 0},
    {153, I, GPU, "gpu_temp_margin", SIG_NOISE, 39, 2},
    {155, D, GPU, "power_usage", SIG_NOISE, 612, 35},
    {156, I, GPU, "total_energy_consumption", SIG_RAMP, 9.1e9, 612000},
    {157, D, GPU, "power_usage_instant", SIG_NOISE, 612, 80},
    {158, I, GPU, "slowdown_temp", SIG_CONST, 87, 0},
    {159, I, GPU, "shutdown_temp", SIG_CONST, 92, 0},
    {160, D, GPU, "power_management_limit", SIG_CONST, 700, 0},
    {164, D, GPU, "enforced_power_limit", SIG_CONST, 700, 0},
    {170, I, GPU, "fabric_manager_status", SIG_CONST, 3, 0},
    {171, I, GPU, "fabric_manager_error", SIG_CONST, 0, 0},
    {174, I, GPU, "fabric_health_mask", SIG_CONST, 0, 0},
    {175, I, GPU, "fabric_health_summary", SIG_CONST, 1, 0},
    {190, I, GPU, "pstate", SIG_CONST, 0, 0},
    {202, I, GPU, "pcie_replay_counter", SIG_CONST, 0, 0},
    {203, I, GPU, "gpu_utilization", SIG_NOISE, 97, 3},
    {204, I, GPU, "mem_copy_utilization", SIG_NOISE, 61, 8},
    {206, I, GPU, "enc_utilization", SIG_CONST, 0, 0},
    {207, I, GPU, "dec_utilization", SIG_CONST, 0, 0},
    {230, I, GPU, "xid_errors", SIG_CONST, 0, 0},
    {235, I, GPU, "pcie_max_link_gen", SIG_CONST, 5, 0},
    {236, I, GPU, "pcie_max_link_width", SIG_CONST, 16, 0},
    {237, I, GPU, "pcie_link_gen", SIG_CONST, 5, 0},
    {238, I, GPU, "pcie_link_width", SIG_CONST, 16, 0},
    {240, I, GPU, "power_violation", SIG_RAMP, 4.2e9, 1.1e6},
    {241, I, GPU, "thermal_violation", SIG_CONST, 0, 0},
    {243, I, GPU, "board_limit_violation", SIG_CONST, 0, 0},
    {245, I, GPU, "reliability_violation", SIG_CONST, 0, 0},
    {247, I, GPU, "total_base_clocks_violation", SIG_CONST, 0, 0},
    {250, I, GPU, "fb_total", SIG_CONST, 81559, 0},
    {251, I, GPU, "fb_free", SIG_CONST, 12743, 0},
    {252, I, GPU, "fb_used", SIG_NOISE, 68214, 120},
    {253, I, GPU, "fb_reserved", SIG_CONST, 602, 0},
    {254, D, GPU, "fb_used_percent", SIG_CONST, 0.84, 0},
    {300, I, GPU, "ecc", SIG_CONST, 1, 0},
    {310, I, GPU, "ecc_sbe_volatile_total", SIG_CONST, 0, 0},
    {311, I, GPU, "ecc_dbe_volatile_total", SIG_CONST, 0, 0},
    {312, I, GPU, "ecc_sbe_aggregate_total", SIG_CONST, 3, 0},
    {313, I, GPU, "ecc_dbe_aggregate_total", SIG_CONST, 0, 0},
    {342, I, GPU, "ecc_sbe_volatile_sram", SIG_CONST, 0, 0},
    {343, I, GPU, "ecc_dbe_volatile_sram", SIG_CONST, 0, 0},
    {346, I, GPU, "sram_threshold_exceeded", SIG_CONST, 0, 0},
    {385, I, GPU, "banks_remap_rows_avail_max", SIG_CONST, 2560, 0},
    {389, I, GPU, "banks_remap_rows_avail_none", SIG_CONST, 0, 0},
    {390, I, GPU, "retired_pages_sbe", SIG_BLANK, 2, 0},
    {391, I, GPU, "retired_pages_dbe", SIG_BLANK, 2, 0},
    {392, I, GPU, "retired_pages_pending", SIG_BLANK, 2, 0},
    {393, I, GPU, "uncorrectable_remapped_rows", SIG_CONST, 0, 0},
    {394, I, GPU, "correctable_remapped_rows", SIG_CONST, 0, 0},
    {395, I, GPU, "row_remap_failure", SIG_CONST, 0, 0},
    {396, I, GPU, "row_remap_pending", SIG_CONST, 0, 0},
    {409, I, GPU, "nvlink_flit_crc_error_total", SIG_CONST, 0, 0},
    {419, I, GPU, "nvlink_data_crc_error_total", SIG_CONST, 0, 0},
    {429, I, GPU, "nvlink_replay_error_total", SIG_CONST, 0, 0},
    {439, I, GPU, "nvlink_recovery_error_total", SIG_CONST, 0, 0},
    {449, I, GPU, "nvlink_bandwidth_total", SIG_NOISE, 182000, 9000},
    {497, I, DCGM_FE_LINK, "nvlink_error_dl_crc", SIG_CONST, 0, 0},
    {498, I, DCGM_FE_LINK, "nvlink_error_dl_recovery", SIG_CONST, 0, 0},
    {499, I, DCGM_FE_LINK, "nvlink_error_dl_replay", SIG_CONST, 0, 0},
    {526, I, GPU, "vgpu_license_status", SIG_CONST, 0, 0},
    {701, I, DCGM_FE_SWITCH, "nvswitch_voltage_mvolt", SIG_CONST, 890, 0},
    {780, I, DCGM_FE_LINK, "nvswitch_link_throughput_tx", SIG_RAMP, 0, 4.1e6},
    {782, I, DCGM_FE_LINK, "nvswitch_link_fatal_errors", SIG_CONST, 0, 0},
    {783, I, DCGM_FE_LINK, "nvswitch_link_non_fatal_errors", SIG_CONST, 0, 0},
    {784, I, DCGM_FE_LINK, "nvswitch_link_replay_errors", SIG_CONST, 0, 0},
    {785, I, DCGM_FE_LINK, "nvswitch_link_recovery_errors", SIG_CONST, 0, 0},
    {787, I, DCGM_FE_LINK, "nvswitch_link_crc_errors", SIG_CONST, 0, 0},
    {788, I, DCGM_FE_LINK, "nvswitch_link_ecc_errors", SIG_CONST, 0, 0},
    {856, I, DCGM_FE_SWITCH, "nvswitch_fatal_error", SIG_CONST, 0, 0},
    {857, I, DCGM_FE_SWITCH, "nvswitch_non_fatal_error", SIG_CONST, 0, 0},
    {858, I, DCGM_FE_SWITCH, "nvswitch_temperature_current", SIG_NOISE, 44, 1},
    {864, I, DCGM_FE_SWITCH, "nvswitch_reset_required", SIG_CONST, 0, 0},
    {866, I, DCGM_FE_SWITCH, "nvswitch_pcie_domain", SIG_CONST, 0, 0},
    {867, I, DCGM_FE_SWITCH, "nvswitch_pcie_bus", SIG_CONST, 0, 0},
    {868, I, DCGM_FE_SWITCH, "nvswitch_pcie_device", SIG_CONST, 0, 0},
    {869, I, DCGM_FE_SWITCH, "nvswitch_pcie_function", SIG_CONST, 0, 0},
    {870, I, DCGM_FE_LINK, "nvswitch_link_status", SIG_CONST, 0, 0},
    {878, S, DCGM_FE_SWITCH, "nvswitch_device_uuid", SIG_STRING, 0, 0},
    {1001, D, GPU, "gr_engine_active", SIG_NOISE, 0.97, 0.02},
    {1002, D, GPU, "sm_active", SIG_NOISE, 0.83, 0.04},
    {1003, D, GPU, "sm_occupancy", SIG_NOISE, 0.31, 0.03},
    {1004, D, GPU, "tensor_active", SIG_NOISE, 0.54, 0.05},
    {1005, D, GPU, "dram_active", SIG_NOISE, 0.47, 0.04},
    {1009, I, GPU, "pcie_tx_bytes", SIG_NOISE, 2.1e9, 2e8},
    {1010, I, GPU, "pcie_rx_bytes", SIG_NOISE, 3.4e9, 2e8},
    {1011, I, GPU, "nvlink_tx_bytes", SIG_NOISE, 9.2e10, 5e9},
    {1012, I, GPU, "nvlink_rx_bytes", SIG_NOISE, 9.2e10, 5e9},
    {1420, I, GPU, "clocks_event_reason_sw_power_cap_ns", SIG_RAMP, 4.2e9, 1.1e6},
    {1422, I, GPU, "clocks_event_reason_sw_therm_slowdown_ns", SIG_CONST, 0, 0},
    {1423, I, GPU, "clocks_event_reason_hw_therm_slowdown_ns", SIG_CONST, 0, 0},
    {1424, I, GPU, "clocks_event_reason_hw_power_brake_ns", SIG_CONST, 0, 0},
    {1501, I, GPU, "pcie_count_correctable_errors", SIG_CONST, 0, 0},
    {1507, I, GPU, "memory_unrepairable_flag", SIG_CONST, 0, 0},
    {1508, I, DCGM_FE_LINK, "nvlink_get_state", SIG_CONST, 0, 0},
    {1523, I, GPU, "gpu_recovery_action", SIG_CONST, 0, 0},
};

const struct field_row *field_rows(int *n)
{
    *n = (int)(sizeof rows / sizeof rows[0]);
    return rows;
}

const struct field_row *field_row(unsigned short id)
{
    int lo = 0, hi = (int)(sizeof rows / sizeof rows[0]) - 1;
    while (lo <= hi) {
        int mid = (lo + hi) / 2;
        if (rows[mid].id == id)
            return &rows[mid];
        if (rows[mid].id < id)
            lo = mid + 1;
        else
            hi = mid - 1;
    }
    return NULL;
}

int64_t now_us(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    return (int64_t)ts.tv_sec * 1000000 + ts.tv_nsec / 1000;
}

/* splitmix64: one well-mixed word per (seed, gpu, field, second), so that noise is the same in every process and every run. */
static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

struct reading blank_reading(char type, int status, int which, int64_t t)
{
    static const char *strs[] = {DCGM_STR_BLANK, DCGM_STR_NOT_FOUND, DCGM_STR_NOT_SUPPORTED, DCGM_STR_NOT_PERMISSIONED};
    struct reading r = {.type = type, .status = status, .ts = t};
    r.i64 = DCGM_INT64_BLANK + which;
    r.dbl = DCGM_FP64_BLANK + which;
    r.str = strs[which & 3];
    return r;
}

static double eval(const struct model *m, const struct sig *s, int gpu, int64_t t)
{
    switch (s->kind) {
    case SIG_RAMP: {
        double dt = (double)(t - s->since_us) / 1e6;
        double v = s->a + (dt > 0 ? dt : 0) * s->b;
        return v > s->max ? s->max : v;
    }
    case SIG_NOISE: {
        uint64_t h = mix(m->seed ^ mix(((uint64_t)gpu << 32) | s->field) ^ mix((uint64_t)(t / 1000000)));
        return s->a + s->b * ((double)(h >> 11) / 4503599627370496.0 - 1.0);
    }
    default:
        return s->a;
    }
}

static const struct sig *sig_of(const struct model *m, int gpu, unsigned short field)
{
    int i;
    if (field >= STUB_MAX_FIELD || gpu < 0 || gpu >= m->ngpus)
        return NULL;
    i = m->gpus[gpu].index[field];
    return i ? &m->sigs[i - 1] : NULL;
}

char field_type(const struct model *m, int gpu, unsigned short field)
{
    const struct field_row *row = field_row(field);
    const struct sig *s = sig_of(m, gpu, field);
    if (row)
        return row->type;
    if (s && s->kind == SIG_STRING)
        return DCGM_FT_STRING;
    return DCGM_FT_INT64;
}

static int answering(const struct model *m)
{
    int n = 0;
    for (int i = 0; i < m->ngpus; i++)
        n += m->gpus[i].present && m->gpus[i].status == DcgmEntityStatusOk;
    return n;
}

struct reading read_signal(const struct model *m, const struct sig *s, char type, int salt, int64_t t)
{
    static const int status[] = {DCGM_ST_NO_DATA, DCGM_ST_NO_DATA, DCGM_ST_NOT_SUPPORTED, DCGM_ST_NO_PERMISSION};
    struct reading r = {.type = type, .status = DCGM_ST_OK, .ts = t};
    if (s->kind == SIG_BLANK)
        return blank_reading(type, status[s->blank & 3], s->blank, t);
    if (s->kind == SIG_STRING)
        r.str = s->str;
    r.dbl = eval(m, s, salt, t);
    r.i64 = (int64_t)floor(r.dbl);
    return r;
}

struct reading read_driver(const struct model *m, int gpu, unsigned short field, int64_t t)
{
    char type = field_type(m, gpu, field);
    const struct sig *s;
    struct reading r = {.type = type, .status = DCGM_ST_OK, .ts = t};
    const struct gpu *g;

    if (field == 4) {
        r.i64 = answering(m);
        return r;
    }
    if (field == 1) {
        r.str = m->driver;
        return r;
    }
    if (gpu < 0 || gpu >= m->ngpus || !m->gpus[gpu].present)
        return blank_reading(type, DCGM_ST_BADPARAM, 1, t);
    g = &m->gpus[gpu];
    switch (field) { /* identity outlives the card: the engine keeps it */
    case 50: r.str = g->name; return r;
    case 53: r.str = g->serial; return r;
    case 54: r.str = g->uuid; return r;
    case 57: r.str = g->pci; return r;
    }
    if (g->status == DcgmEntityStatusLost)
        return blank_reading(type, DCGM_ST_GPU_IS_LOST, 0, t);
    s = sig_of(m, gpu, field);
    if (!s)
        return blank_reading(type, field_row(field) ? DCGM_ST_NOT_SUPPORTED : DCGM_ST_UNKNOWN_FIELD, 2, t);
    return read_signal(m, s, type, gpu, t);
}

/* One link of a GPU; those of a switch are entities.c's. */
struct reading read_link(const struct model *m, dcgm_field_eid_t raw, unsigned short field, int64_t t)
{
    dcgm_link_t link;
    struct reading r = {.type = DCGM_FT_INT64, .status = DCGM_ST_OK, .ts = t};
    link.raw = raw;
    if (link.parsed.type == DCGM_FE_SWITCH)
        return read_entity(m, DCGM_FE_LINK, raw, field, t);
    if (link.parsed.type != DCGM_FE_GPU || (int)link.parsed.gpuId >= m->ngpus || link.parsed.index >= STUB_MAX_LINKS ||
        !m->gpus[link.parsed.gpuId].present)
        return blank_reading(DCGM_FT_INT64, DCGM_ST_BADPARAM, 1, t);
    if (m->gpus[link.parsed.gpuId].status == DcgmEntityStatusLost)
        return blank_reading(DCGM_FT_INT64, DCGM_ST_GPU_IS_LOST, 0, t);
    if (m->gpus[link.parsed.gpuId].nvlink[link.parsed.index] == DcgmNvLinkLinkStateNotSupported)
        return blank_reading(DCGM_FT_INT64, DCGM_ST_NOT_SUPPORTED, 2, t);
    switch (field) {
    case 1508: r.i64 = m->gpus[link.parsed.gpuId].nvlink[link.parsed.index] == DcgmNvLinkLinkStateUp; return r;
    case 497: case 498: case 499: return r; /* errors of a healthy link */
    default: return blank_reading(DCGM_FT_INT64, DCGM_ST_NOT_SUPPORTED, 2, t);
    }
}
