package accelerators

import (
	"strconv"
	"strings"

	"go.opentelemetry.io/collector/pdata/pcommon"

	"github.com/pitcrew/pitcrew/semconv"
)

// row says what a metric of an exporter is here: value × scale, and 2 − 2·value where it is upside down (1 healthy, 0 not).
type row struct {
	name       string
	unit       string
	key, value string // an attribute that tells the series of one metric apart
	scale      float64
	upside     bool // the exporter's 1 is well, ours is 0
	counter    bool
	where      [2]string // a label that the point must have; empty: any
	nodeWide   bool
	status     bool // that the accelerator answers, and which one it is, is said along with this one
}

const (
	mega = 1e6
	mebi = 1 << 20

	vendorKey             = "hw.vendor"
	taskKey, task         = semconv.HWGPUTask, "general"
	errorKey              = semconv.ErrorType
	sensorKey             = semconv.HWSensorLocation
	clockKey              = semconv.GPUClockDomain
	healthKey, healthKind = semconv.GPUHealthSystem, "device"
)

// ascend are the metrics of npu-exporter (MindCluster 6 and 7; names and units by its documentation). Its memory is in units of 2^20.
var ascend = map[string]row{
	"npu_chip_info_utilization":                        {name: semconv.HWGPUUtilization, unit: "1", key: taskKey, value: task, scale: 1e-2},
	"npu_chip_info_hbm_used_memory":                    {name: semconv.HWGPUMemoryUsage, unit: "By", scale: mebi},
	"npu_chip_info_hbm_total_memory":                   {name: semconv.HWGPUMemoryLimit, unit: "By", scale: mebi},
	"npu_chip_info_temperature":                        {name: semconv.HWTemperature, unit: "Cel", key: sensorKey, value: "gpu", scale: 1},
	"npu_chip_info_hbm_temperature":                    {name: semconv.HWTemperature, unit: "Cel", key: sensorKey, value: "memory", scale: 1},
	"npu_chip_info_power":                              {name: semconv.HWPower, unit: "W", scale: 1},
	"npu_chip_info_aicore_current_freq":                {name: semconv.GPUClock, unit: "Hz", key: clockKey, value: "sm", scale: mega},
	"npu_chip_info_health_status":                      {name: semconv.GPUHealth, unit: "1", key: healthKey, value: healthKind, scale: 1, upside: true, status: true},
	"npu_chip_info_hbm_ecc_total_single_bit_error_cnt": {name: semconv.HWErrors, unit: "{error}", key: errorKey, value: "corrected", scale: 1, counter: true},
	"npu_chip_info_hbm_ecc_total_double_bit_error_cnt": {name: semconv.HWErrors, unit: "{error}", key: errorKey, value: "uncorrected", scale: 1, counter: true},
	"machine_npu_nums":                                 {name: semconv.GPUCount, unit: "{gpu}", scale: 1, nodeWide: true},
}

// amd are the metrics of device-metrics-exporter (1.2 to 1.5; names and units by its documentation), with or without the prefix amd_ that it
// may be configured to put. Its memory is in units of 2^20, its energy in microjoules.
var amd = map[string]row{
	"gpu_gfx_activity":         {name: semconv.HWGPUUtilization, unit: "1", key: taskKey, value: task, scale: 1e-2},
	"gpu_umc_activity":         {name: semconv.GPUMemoryCopyUtilization, unit: "1", scale: 1e-2},
	"gpu_used_vram":            {name: semconv.HWGPUMemoryUsage, unit: "By", scale: mebi},
	"gpu_total_vram":           {name: semconv.HWGPUMemoryLimit, unit: "By", scale: mebi},
	"gpu_junction_temperature": {name: semconv.HWTemperature, unit: "Cel", key: sensorKey, value: "gpu", scale: 1},
	"gpu_edge_temperature":     {name: semconv.HWTemperature, unit: "Cel", key: sensorKey, value: "edge", scale: 1},
	"gpu_memory_temperature":   {name: semconv.HWTemperature, unit: "Cel", key: sensorKey, value: "memory", scale: 1},
	"gpu_power_usage":          {name: semconv.HWPower, unit: "W", scale: 1},
	"gpu_energy_consumed":      {name: semconv.HWEnergy, unit: "J", scale: 1e-6, counter: true},
	"gpu_clock":                {name: semconv.GPUClock, unit: "Hz", key: clockKey, value: "sm", scale: mega, where: [2]string{"clock_type", "GPU_CLOCK_TYPE_SYSTEM"}},
	"gpu_health":               {name: semconv.GPUHealth, unit: "1", key: healthKey, value: healthKind, scale: 1, upside: true, status: true},
	"gpu_ecc_correct_total":    {name: semconv.HWErrors, unit: "{error}", key: errorKey, value: "corrected", scale: 1, counter: true},
	"gpu_ecc_uncorrect_total":  {name: semconv.HWErrors, unit: "{error}", key: errorKey, value: "uncorrected", scale: 1, counter: true},
	"gpu_nodes_total":          {name: semconv.GPUCount, unit: "{gpu}", scale: 1, nodeWide: true},
}

// maker is an exporter: its metrics, and which of its labels is what.
type maker struct {
	vendor                    string
	rows                      map[string]row
	ids                       []string // the first label that is there and not empty tells the accelerator, with the prefix
	prefix                    string
	index, pci, model, serial string
	namespace, pod, container string
}

var makers = []maker{
	{"Huawei", ascend, []string{"vdie_id", "id"}, "NPU-", "id", "pcie_bus_info", "model_name", "", "namespace", "pod_name", "container_name"},
	{"AMD", amd, []string{"gpu_uuid", "serial_number", "gpu_id"}, "AMD-", "gpu_id", "pci_bdf", "card_model", "serial_number", "namespace", "pod", "container"},
}

// lookup finds the maker and row of a metric; nil for what is none of theirs.
func lookup(name string) (*maker, row) {
	name = strings.TrimPrefix(name, "amd_")
	for i := range makers {
		if r, ok := makers[i].rows[name]; ok {
			return &makers[i], r
		}
	}
	return nil, row{}
}

func label(a pcommon.Map, name string) string {
	if name == "" {
		return ""
	}
	v, ok := a.Get(name)
	if !ok {
		return ""
	}
	return v.AsString()
}

// id is the accelerator's hw.id; empty where no label tells one from another.
func (m *maker) id(a pcommon.Map) string {
	for _, name := range m.ids {
		if v := label(a, name); v != "" {
			return m.prefix + v
		}
	}
	return ""
}

// given is an accelerator and the pod that has it; one that is shared is told once for each.
func (m *maker) given(a pcommon.Map, id string) [3]string {
	return [3]string{id, label(a, m.namespace), label(a, m.pod)}
}

// identify puts on a point which accelerator it is of, and whose.
func (m *maker) identify(from, to pcommon.Map, id, metric string) {
	to.PutStr(semconv.HWID, id)
	if strings.HasPrefix(metric, "hw.") {
		to.PutStr(semconv.HWType, "gpu")
	}
	for _, kv := range [][2]string{
		{semconv.HWPCI, strings.TrimSuffix(strings.ToLower(label(from, m.pci)), ".0")}, {semconv.K8sNamespaceName, label(from, m.namespace)},
		{semconv.K8sPodName, label(from, m.pod)}, {semconv.K8sContainerName, label(from, m.container)},
	} {
		if kv[1] != "" {
			to.PutStr(kv[0], kv[1])
		}
	}
}

// describe puts on the point of pitcrew.gpu.info what the accelerator is.
func (m *maker) describe(from, to pcommon.Map) {
	to.PutStr(vendorKey, m.vendor)
	if n, err := strconv.ParseInt(label(from, m.index), 10, 32); err == nil {
		to.PutInt(semconv.GPUIndex, n)
	}
	for _, kv := range [][2]string{{semconv.HWModel, label(from, m.model)}, {semconv.HWSerialNumber, label(from, m.serial)}} {
		if kv[1] != "" {
			to.PutStr(kv[0], kv[1])
		}
	}
}
