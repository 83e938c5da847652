package dcgmreceiver

import "github.com/pitcrew/pitcrew/semconv"

// switchFields are read of each NVSwitch that the engine lists; a node without one pays nothing for them. Those of a switch's links are
// among extraFields: an HGX board has 256 of them.
var switchFields = []Field{
	{856, semconv.NVSwitchSXID, Attr{semconv.SXIDClass, "fatal"}, "DCGM_FI_DEV_SXID_FATAL_ERROR", "DCGM_FI_DEV_NVSWITCH_FATAL_ERRORS", "1", Gauge, 1, Fast, Event, SwitchLevel, false, "Code of the last SXid of the switch; never clears"},
	{857, semconv.NVSwitchSXID, Attr{semconv.SXIDClass, "non_fatal"}, "DCGM_FI_DEV_SXID_NON_FATAL_ERROR", "DCGM_FI_DEV_NVSWITCH_NON_FATAL_ERRORS", "1", Gauge, 1, Fast, Event, SwitchLevel, false, "Code of the last SXid of the switch; never clears"},
	{858, semconv.NVSwitchTemperature, Attr{}, "DCGM_FI_DEV_NVSWITCH_TEMP_CELSIUS", "DCGM_FI_DEV_NVSWITCH_TEMPERATURE_CURRENT", "Cel", Gauge, 1, 30 * sec, Cheap, SwitchLevel, false, "Temperature of the switch"},
	{864, semconv.NVSwitchResetRequired, Attr{}, "DCGM_FI_DEV_NVSWITCH_RESET_REQUIRED", "", "1", Gauge, 1, 30 * sec, Cheap, SwitchLevel, false, "1 when the switch wants a reset"},
}
