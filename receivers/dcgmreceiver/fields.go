package dcgmreceiver

import (
	"slices"
	"time"

	"github.com/pitcrew/pitcrew/semconv"
)

const (
	mebi = 1 << 20 // DCGM's framebuffer values are MiB
	mega = 1e6
	sec  = time.Second
)

// Fields is the table: the 55 core fields, those of NVSwitches, then those that extra_fields may add.
var Fields = slices.Concat(coreFields, switchFields, extraFields)

var coreFields = []Field{
	{4, semconv.GPUDriverCount, Attr{}, "DCGM_FI_SYSTEM_GPU_QUANTITY", "DCGM_FI_DEV_COUNT", "{gpu}", Gauge, 1, 60 * sec, Cheap, NodeLevel, false, "GPUs the driver sees"},
	{67, semconv.GPUMIGMode, Attr{}, "DCGM_FI_DEV_MIG_MODE", "", "1", Gauge, 1, 60 * sec, Cheap, GPULevel, false, "1 when MIG is on"},
	{100, semconv.GPUClock, Attr{semconv.GPUClockDomain, "sm"}, "DCGM_FI_DEV_SM_CLOCK", "", "Hz", Gauge, mega, 10 * sec, Cheap, GPULevel, false, "Clock of the domain"},
	{101, semconv.GPUClock, Attr{semconv.GPUClockDomain, "memory"}, "DCGM_FI_DEV_MEM_CLOCK", "", "Hz", Gauge, mega, 30 * sec, Cheap, GPULevel, false, "Clock of the domain"},
	{112, semconv.GPUThrottle, Attr{semconv.ThrottleReason, ""}, "DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "1", Flags, 1, 5 * sec, Cheap, GPULevel, false, "1 while the reason holds the clocks down"},
	{140, semconv.HWTemperature, Attr{semconv.HWSensorLocation, "memory"}, "DCGM_FI_DEV_MEMORY_TEMP_CELSIUS", "DCGM_FI_DEV_MEMORY_TEMP", "Cel", Gauge, 1, 10 * sec, Cheap, GPULevel, false, "Temperature"},
	{150, semconv.HWTemperature, Attr{semconv.HWSensorLocation, "gpu"}, "DCGM_FI_DEV_GPU_TEMP_CELSIUS", "DCGM_FI_DEV_GPU_TEMP", "Cel", Gauge, 1, 10 * sec, Cheap, GPULevel, false, "Temperature"},
	{153, semconv.GPUTemperatureMargin, Attr{}, "DCGM_FI_DEV_GPU_TEMP_MARGIN_CELSIUS", "DCGM_FI_DEV_GPU_TEMP_LIMIT", "Cel", Gauge, 1, 10 * sec, Cheap, GPULevel, false, "Distance to the slowdown temperature"},
	{155, semconv.HWPower, Attr{}, "DCGM_FI_DEV_BOARD_POWER_WATTS", "DCGM_FI_DEV_POWER_USAGE", "W", Gauge, 1, 10 * sec, Cheap, GPULevel, false, "Board power"},
	{156, semconv.HWEnergy, Attr{}, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "", "J", Counter, 1e-3, 30 * sec, Cheap, GPULevel, false, "Energy since the driver was loaded"},
	{164, semconv.GPUPowerLimit, Attr{}, "DCGM_FI_DEV_BOARD_POWER_LIMIT_ENFORCED_WATTS", "DCGM_FI_DEV_ENFORCED_POWER_LIMIT", "W", Gauge, 1, 60 * sec, Cheap, GPULevel, false, "Power cap in force"},
	{170, semconv.GPUFabricStatus, Attr{}, "DCGM_FI_DEV_FABRIC_MANAGER_STATUS", "", "1", Gauge, 1, 60 * sec, Cheap, GPULevel, false, "Fabric registration state (dcgmFabricManagerStatus_t)"},
	{171, semconv.GPUFabricError, Attr{}, "DCGM_FI_DEV_FABRIC_MANAGER_ERROR", "DCGM_FI_DEV_FABRIC_MANAGER_ERROR_CODE", "1", Gauge, 1, 60 * sec, Cheap, GPULevel, false, "Error of the fabric registration"},
	{174, semconv.GPUFabricHealthMask, Attr{}, "DCGM_FI_DEV_FABRIC_HEALTH_MASK", "", "1", Gauge, 1, 60 * sec, Cheap, GPULevel, false, "Fabric health detail, a bit mask"},
	{175, semconv.GPUFabricHealth, Attr{}, "DCGM_FI_DEV_FABRIC_HEALTH_SUMMARY", "", "1", Gauge, 1, 60 * sec, Cheap, GPULevel, false, "Fabric health: 1 healthy, 2 unhealthy, 3 limited capacity"},
	{190, semconv.GPUPstate, Attr{}, "DCGM_FI_DEV_GPU_PSTATE", "DCGM_FI_DEV_PSTATE", "1", Gauge, 1, 10 * sec, Cheap, GPULevel, false, "Performance state, 0 the highest"},
	{202, semconv.GPUPCIeReplay, Attr{}, "DCGM_FI_DEV_PCIE_REPLAY_TOTAL", "DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "{replay}", Counter, 1, 30 * sec, Cheap, GPULevel, false, "PCIe replays"},
	{203, semconv.HWGPUUtilization, Attr{semconv.HWGPUTask, "general"}, "DCGM_FI_DEV_GPU_UTIL_RATIO", "DCGM_FI_DEV_GPU_UTIL", "1", Gauge, 1e-2, 10 * sec, Cheap, GPULevel, false, "Share of time in which the part worked"},
	{230, semconv.GPUXID, Attr{}, "DCGM_FI_DEV_XID_ERROR", "DCGM_FI_DEV_XID_ERRORS", "1", Gauge, 1, Fast, Event, GPULevel, false, "Code of the last XID; never clears"},
	{237, semconv.GPUPCIeLinkGeneration, Attr{}, "DCGM_FI_DEV_PCIE_LINK_GEN", "", "1", Gauge, 1, 60 * sec, Cheap, GPULevel, false, "PCIe generation now; lower when idle"},
	{238, semconv.GPUPCIeLinkWidth, Attr{}, "DCGM_FI_DEV_PCIE_LINK_WIDTH", "", "{lane}", Gauge, 1, 60 * sec, Cheap, GPULevel, false, "PCIe lanes now"},
	{240, semconv.GPUViolationTime, Attr{semconv.Violation, "power"}, "DCGM_FI_DEV_POWER_VIOLATION", "", "s", Counter, 1e-9, 10 * sec, Cheap, GPULevel, false, "Time slowed down by the limit"},
	{241, semconv.GPUViolationTime, Attr{semconv.Violation, "thermal"}, "DCGM_FI_DEV_THERMAL_VIOLATION", "", "s", Counter, 1e-9, 10 * sec, Cheap, GPULevel, false, "Time slowed down by the limit"},
	{243, semconv.GPUViolationTime, Attr{semconv.Violation, "board_limit"}, "DCGM_FI_DEV_BOARD_LIMIT_VIOLATION", "", "s", Counter, 1e-9, 30 * sec, Cheap, GPULevel, false, "Time slowed down by the limit"},
	{245, semconv.GPUViolationTime, Attr{semconv.Violation, "reliability"}, "DCGM_FI_DEV_RELIABILITY_VIOLATION", "", "s", Counter, 1e-9, 30 * sec, Cheap, GPULevel, false, "Time slowed down by the limit"},
	{247, semconv.GPUViolationTime, Attr{semconv.Violation, "base_clocks"}, "DCGM_FI_DEV_TOTAL_BASE_CLOCKS_VIOLATION", "", "s", Counter, 1e-9, 30 * sec, Cheap, GPULevel, false, "Time slowed down by the limit"},
	{250, semconv.HWGPUMemoryLimit, Attr{}, "DCGM_FI_DEV_FB_TOTAL", "", "By", UpDown, mebi, 300 * sec, Cheap, GPULevel, false, "Memory size"},
	{252, semconv.HWGPUMemoryUsage, Attr{}, "DCGM_FI_DEV_FB_USED", "", "By", UpDown, mebi, 10 * sec, Cheap, GPULevel, false, "Memory in use"},
	{300, semconv.GPUECCMode, Attr{}, "DCGM_FI_DEV_ECC_MODE", "DCGM_FI_DEV_ECC_CURRENT", "1", Gauge, 1, 300 * sec, Cheap, GPULevel, false, "1 when ECC is on"},
	{310, semconv.HWErrors, Attr{semconv.ErrorType, "corrected"}, "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "", "{error}", Counter, 1, Fast, Cheap, GPULevel, false, "ECC errors since the driver was loaded"},
	{311, semconv.HWErrors, Attr{semconv.ErrorType, "uncorrected"}, "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "", "{error}", Counter, 1, Fast, Cheap, GPULevel, false, "ECC errors since the driver was loaded"},
	{312, semconv.GPUECCLifetime, Attr{semconv.ErrorType, "corrected"}, "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL", "", "{error}", Counter, 1, Fast, Cheap, GPULevel, false, "ECC errors in the card's life"},
	{313, semconv.GPUECCLifetime, Attr{semconv.ErrorType, "uncorrected"}, "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", "", "{error}", Counter, 1, Fast, Cheap, GPULevel, false, "ECC errors in the card's life"},
	{342, semconv.GPUECCSRAM, Attr{semconv.ErrorType, "corrected"}, "DCGM_FI_DEV_ECC_SBE_VOL_SRM", "", "{error}", Counter, 1, 60 * sec, Cheap, GPULevel, false, "SRAM errors since the driver was loaded"},
	{343, semconv.GPUECCSRAM, Attr{semconv.ErrorType, "uncorrected"}, "DCGM_FI_DEV_ECC_DBE_VOL_SRM", "", "{error}", Counter, 1, 30 * sec, Cheap, GPULevel, false, "SRAM errors since the driver was loaded"},
	{346, semconv.GPUECCSRAMExceeded, Attr{}, "DCGM_FI_DEV_SRAM_EXCEEDED", "DCGM_FI_DEV_THRESHOLD_SRM", "1", Gauge, 1, 300 * sec, Cheap, GPULevel, false, "1 when the limit of uncorrectable SRAM errors is passed"},
	{385, semconv.GPURowRemapBanksSpare, Attr{}, "DCGM_FI_DEV_BANK_REMAP_AVAIL_MAX", "DCGM_FI_DEV_BANKS_REMAP_ROWS_AVAIL_MAX", "{bank}", Gauge, 1, 3600 * sec, Cheap, GPULevel, false, "Banks with all spare rows left"},
	{389, semconv.GPURowRemapBanksExhausted, Attr{}, "DCGM_FI_DEV_BANK_REMAP_AVAIL_NONE", "DCGM_FI_DEV_BANKS_REMAP_ROWS_AVAIL_NONE", "{bank}", Gauge, 1, 300 * sec, Cheap, GPULevel, false, "Banks with no spare row left"},
	{393, semconv.GPURowRemapUncorrectable, Attr{}, "DCGM_FI_DEV_ROW_REMAP_UNCORRECTABLE_TOTAL", "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "{row}", Counter, 1, 60 * sec, Cheap, GPULevel, false, "Rows remapped for uncorrectable errors"},
	{394, semconv.GPURowRemapCorrectable, Attr{}, "DCGM_FI_DEV_ROW_REMAP_CORRECTABLE_TOTAL", "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "{row}", Counter, 1, 60 * sec, Cheap, GPULevel, false, "Rows remapped for correctable errors"},
	{395, semconv.GPURowRemapFailed, Attr{}, "DCGM_FI_DEV_ROW_REMAP_FAILED", "DCGM_FI_DEV_ROW_REMAP_FAILURE", "1", Gauge, 1, Fast, Cheap, GPULevel, false, "1 when a remap failed"},
	{396, semconv.GPURowRemapPending, Attr{}, "DCGM_FI_DEV_ROW_REMAP_PENDING", "", "1", Gauge, 1, Fast, Cheap, GPULevel, false, "1 when a remap waits for a reset"},
	{409, semconv.GPUNVLinkErrors, Attr{semconv.NVLinkError, "crc_flit"}, "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_TOTAL", "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", "{error}", Counter, 1, 30 * sec, Cheap, GPULevel, false, "Errors on all NVLinks (NVLink 4 and before)"},
	{419, semconv.GPUNVLinkErrors, Attr{semconv.NVLinkError, "crc_data"}, "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_TOTAL", "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", "{error}", Counter, 1, 30 * sec, Cheap, GPULevel, false, "Errors on all NVLinks (NVLink 4 and before)"},
	{429, semconv.GPUNVLinkErrors, Attr{semconv.NVLinkError, "replay"}, "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_TOTAL", "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", "{error}", Counter, 1, 30 * sec, Cheap, GPULevel, false, "Errors on all NVLinks (NVLink 4 and before)"},
	{439, semconv.GPUNVLinkErrors, Attr{semconv.NVLinkError, "recovery"}, "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_TOTAL", "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", "{error}", Counter, 1, 30 * sec, Cheap, GPULevel, false, "Errors on all NVLinks (NVLink 4 and before)"},
	{449, semconv.GPUNVLinkThroughput, Attr{}, "DCGM_FI_DEV_NVLINK_THROUGHPUT_TOTAL", "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "MBy/s", Gauge, 1, 10 * sec, Cheap, GPULevel, false, "Traffic on all NVLinks, as DCGM gives it"},
	{1420, semconv.GPUThrottleTime, Attr{semconv.ThrottleReason, "sw_power_cap"}, "DCGM_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP_NS", "", "s", Counter, 1e-9, 30 * sec, Cheap, GPULevel, false, "Time the reason held the clocks down"},
	{1422, semconv.GPUThrottleTime, Attr{semconv.ThrottleReason, "sw_thermal"}, "DCGM_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN_NS", "", "s", Counter, 1e-9, 30 * sec, Cheap, GPULevel, false, "Time the reason held the clocks down"},
	{1423, semconv.GPUThrottleTime, Attr{semconv.ThrottleReason, "hw_thermal"}, "DCGM_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN_NS", "", "s", Counter, 1e-9, 10 * sec, Cheap, GPULevel, false, "Time the reason held the clocks down"},
	{1424, semconv.GPUThrottleTime, Attr{semconv.ThrottleReason, "hw_power_brake"}, "DCGM_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN_NS", "", "s", Counter, 1e-9, 10 * sec, Cheap, GPULevel, false, "Time the reason held the clocks down"},
	{1501, semconv.GPUPCIeCorrectable, Attr{}, "DCGM_FI_DEV_PCIE_CORRECTABLE_ERROR_TOTAL", "DCGM_FI_DEV_PCIE_COUNT_CORRECTABLE_ERRORS", "{error}", Counter, 1, 30 * sec, Cheap, GPULevel, false, "Correctable PCIe errors"},
	{1507, semconv.GPUMemoryUnrepairable, Attr{}, "DCGM_FI_DEV_MEMORY_UNREPAIRABLE", "DCGM_FI_DEV_MEMORY_UNREPAIRABLE_FLAG", "1", Gauge, 1, 300 * sec, Cheap, GPULevel, false, "1 when the memory cannot be repaired"},
	{1508, semconv.GPUNVLinkLinkState, Attr{}, "DCGM_FI_DEV_NVLINK_LINK_STATUS", "DCGM_FI_DEV_NVLINK_GET_STATE", "1", Gauge, 1, 60 * sec, Link, LinkLevel, false, "1 when the link is active, 0 inactive, 2 asleep"},
	{1523, semconv.GPURecoveryAction, Attr{}, "DCGM_FI_DEV_GPU_RECOVERY_ACTION", "DCGM_FI_DEV_GET_GPU_RECOVERY_ACTION", "1", Gauge, 1, Fast, Cheap, GPULevel, false, "What the driver asks for: 0 nothing, 1 reset, 2 reboot, 3 drain P2P, 4 drain and reset, 5 recover the IMEX domain"},
}

// instanceFields are read of each MIG instance as well: what of a GPU is divided among them.
var instanceFields = []uint16{250, 251, 252, 253, 1001, 1002, 1003, 1004, 1005}
