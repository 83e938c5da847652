package anomaly

import (
	"strings"

	"github.com/pitcrew/pitcrew/detector/series"
	"github.com/pitcrew/pitcrew/semconv"
)

// About says what a signal is of.
type About uint8

// What signals are of.
const (
	GPU About = iota
	Rank
	Switch // an NVSwitch
	Port   // of an InfiniBand or RoCE adapter
)

var aboutNames = [...]string{GPU: "GPU", Rank: "rank", Switch: "NVSwitch", Port: "port"}

// Directions of the catalogue's rows. Values on the side that is not bad are learnt and say nothing.
const (
	High = series.High
	Low  = series.Low
	Both = series.Both
)

// Family groups signals that move together for one reason: those of one family are one witness.
type Family string

// Families.
const (
	Pace          Family = "pace"
	Compute       Family = "compute"
	Launch        Family = "launch"
	Input         Family = "input"
	Communication Family = "communication"
	Learning      Family = "learning"
	Storage       Family = "storage"
	Thermal       Family = "thermal"
	Throttle      Family = "throttle"
	Clock         Family = "clock"
	Power         Family = "power"
	Load          Family = "load"
	Memory        Family = "memory"
	Link          Family = "link"
)

// phases of the series engine; series.Warmup is the fifth.
const (
	phaseStep uint8 = iota
	phaseEval
	phaseCheckpoint
	phaseOther
)

var phaseNames = [...]string{"step", "eval", "checkpoint", "other"}

type phaseSet uint8

const (
	inStep    phaseSet = 1 << phaseStep
	whileBusy          = inStep | 1<<phaseEval | 1<<phaseOther // judged apart in each
)

func (s phaseSet) has(phase uint8) bool { return phase < 4 && s&(1<<phase) != 0 }

// gate says when a value is judged at all.
type gate uint8

const (
	always   gate = iota
	stepping      // while the rank of the GPU steps; without a rank, while the GPU is busy
	perStep       // the value is one of a step that ended
	perEvent      // the value stands until the next checkpoint, and counts once
)

// role is what else a metric tells: the state of the training loop, by which others are judged.
type role uint8

const (
	noRole role = iota
	roleStep
	roleStepAge
	roleSection
	roleCheckpoint
	roleBusy
	roleWork
)

// Signal is a row of the catalogue: a metric, or one value of one attribute of it, and how it is judged.
type Signal struct {
	Name        string // with "anomaly/" before it, the signal of its events
	Metric      string
	Attr, Value string // only points with this value of this attribute; empty: all points
	Unit        string
	About       About
	Kind        series.Kind // Ratio is judged by its logarithm, Level as it is, Counter by its rate
	Bad         series.Direction
	Family      Family
	Info        bool    // is said, and never counts as a witness
	Flat        bool    // standing still is a finding too
	Certain     float64 // not 0: no statistics; beyond this value (High: above, Low: below) three times in a row it is so

	gate   gate
	sparse bool    // gaps mean nothing: what is zero, or was not measured, is not said
	twin   string  // another signal of the entity that says the same: while that one's finding stands, this one's is not said
	least  float64 // distance from what was expected, in the signal's unit, below which nobody minds
	phases phaseSet
	role   role // with a role and no name the metric is read for it alone
}

func gpu(name, metric, attr, value, unit string, k series.Kind, bad series.Direction, f Family) Signal {
	return Signal{Name: name, Metric: metric, Attr: attr, Value: value, Unit: unit, About: GPU, Kind: k, Bad: bad, Family: f, gate: stepping, phases: inStep}
}

func rank(name, metric, phase, unit string, bad series.Direction, f Family) Signal {
	s := Signal{Name: name, Metric: metric, Value: phase, Unit: unit, About: Rank, Kind: series.Ratio, Bad: bad, Family: f, gate: perStep, phases: inStep, sparse: true}
	if phase != "" {
		s.Attr = semconv.Phase
	}
	return s
}

// shared is of what no single rank or GPU owns: information about all of them, judged while any steps.
func shared(name string, of About, metric, attr, value, unit string, k series.Kind, f Family) Signal {
	return Signal{
		Name: name, Metric: metric, Attr: attr, Value: value, Unit: unit, About: of, Kind: k, Bad: High, Family: f, gate: stepping, phases: inStep, sparse: true, Info: true,
	}
}

func (s Signal) info() Signal              { s.Info = true; return s }
func (s Signal) flat() Signal              { s.Flat = true; return s }
func (s Signal) in(p phaseSet) Signal      { s.phases = p; return s }
func (s Signal) as(r role) Signal          { s.role = r; return s }
func (s Signal) when(g gate) Signal        { s.gate = g; return s }
func (s Signal) from(least float64) Signal { s.least = least; return s }
func (s Signal) of(k series.Kind) Signal   { s.Kind = k; return s }
func (s Signal) echo(of string) Signal     { s.twin = of; return s }
func (s Signal) everyStep() Signal         { s.sparse = false; return s }
func (s Signal) beyond(v float64) Signal   { s.Certain = v; return s }
func tells(metric string, r role) Signal   { return Signal{Metric: metric, About: Rank, role: r} }
func throttle(reason, name string) Signal {
	return gpu(name, semconv.GPUThrottle, semconv.ThrottleReason, reason, "1", series.Level, High, Throttle).beyond(0.5)
}

// Catalogue is every signal that is judged. Rows without a name are read for what they tell of the loop.
var Catalogue = []Signal{
	tells(semconv.TrainStep, roleStep),
	tells(semconv.TrainStepAge, roleStepAge),
	tells(semconv.TrainSection, roleSection),
	tells(semconv.TrainCheckpointStep, roleCheckpoint),

	rank("step-time", semconv.TrainStepDuration, "", "s", High, Pace).everyStep(),
	rank("throughput", semconv.TrainThroughput, "", "1/s", Low, Pace).info().echo("step-time").as(roleWork),
	rank("mfu", semconv.TrainMFU, "", "1", Low, Pace).info().echo("step-time"),
	rank("compute", semconv.TrainComputeDuration, "", "s", High, Compute),
	// Where gradients or weights are exchanged within a phase, the wait for a slow rank is in it: only compute is the rank's own.
	rank("forward", semconv.TrainPhaseDuration, "forward", "s", High, Compute).info(),
	rank("backward", semconv.TrainPhaseDuration, "backward", "s", High, Compute).info(),
	rank("optimizer", semconv.TrainPhaseDuration, "optimizer", "s", High, Compute).info(),
	rank("launch", semconv.TrainLaunchLatency, "", "s", High, Launch).from(100e-6),
	rank("data-wait", semconv.TrainPhaseDuration, "data_wait", "s", High, Input).from(1e-3),
	rank("communication", semconv.TrainCommunicationWait, "", "s", Both, Communication).info(), // who waits is not who is slow
	rank("loss", semconv.TrainLoss, "", "1", High, Learning).info(),
	rank("grad-norm", semconv.TrainGradNorm, "", "1", High, Learning).info(),
	rank("nonfinite", semconv.TrainNonfinite, "", "{value}", High, Learning).of(series.Counter).info().when(stepping),
	rank("memory-allocated", semconv.TrainMemoryAllocated, "", "By", High, Memory).info().when(stepping),
	rank("memory-reserved", semconv.TrainMemoryReserved, "", "By", High, Memory).info().when(stepping),
	rank("memory-retries", semconv.TrainMemoryRetries, "", "{retry}", High, Memory).of(series.Counter).info().when(stepping),
	rank("checkpoint-time", semconv.TrainCheckpointDuration, "", "s", High, Storage).info().when(perEvent),

	gpu("temperature", semconv.HWTemperature, semconv.HWSensorLocation, "gpu", "Cel", series.Level, High, Thermal).in(whileBusy),
	gpu("memory-temperature", semconv.HWTemperature, semconv.HWSensorLocation, "memory", "Cel", series.Level, High, Thermal).in(whileBusy),
	gpu("temperature-limit", semconv.GPUTemperatureMargin, "", "", "Cel", series.Level, Low, Thermal).in(whileBusy).beyond(3),
	gpu("sm-clock", semconv.GPUClock, semconv.GPUClockDomain, "sm", "Hz", series.Ratio, Low, Clock).in(whileBusy),
	gpu("memory-clock", semconv.GPUClock, semconv.GPUClockDomain, "memory", "Hz", series.Ratio, Low, Clock).in(whileBusy),
	throttle("hw_thermal", "throttle-hw-thermal").in(whileBusy),
	throttle("sw_thermal", "throttle-sw-thermal").in(whileBusy),
	throttle("hw_slowdown", "throttle-hw-slowdown").in(whileBusy),
	throttle("hw_power_brake", "throttle-power-brake").in(whileBusy),
	gpu("power", semconv.HWPower, "", "", "W", series.Ratio, Both, Power).info().flat(),
	gpu("power-limit", semconv.GPUPowerLimit, "", "", "W", series.Ratio, Low, Power).in(whileBusy),
	gpu("utilization", semconv.HWGPUUtilization, semconv.HWGPUTask, "general", "1", series.Level, Low, Load).as(roleBusy),
	gpu("sm-activity", semconv.GPUActivity, semconv.GPUPipe, "sm", "1", series.Level, Low, Load),
	gpu("tensor-activity", semconv.GPUActivity, semconv.GPUPipe, "tensor", "1", series.Level, Low, Load),
	gpu("memory-used", semconv.HWGPUMemoryUsage, "", "", "By", series.Ratio, High, Memory).info(),
	gpu("ecc-corrected", semconv.HWErrors, semconv.ErrorType, "corrected", "{error}", series.Counter, High, Memory).when(always),
	gpu("nvlink-crc", semconv.GPUNVLinkErrors, semconv.NVLinkError, "crc_flit", "{error}", series.Counter, High, Link).when(always),
	gpu("nvlink-crc-data", semconv.GPUNVLinkErrors, semconv.NVLinkError, "crc_data", "{error}", series.Counter, High, Link).when(always),
	gpu("nvlink-replay", semconv.GPUNVLinkErrors, semconv.NVLinkError, "replay", "{error}", series.Counter, High, Link).when(always),
	gpu("nvlink-recovery", semconv.GPUNVLinkErrors, semconv.NVLinkError, "recovery", "{error}", series.Counter, High, Link).when(always),
	gpu("pcie-replay", semconv.GPUPCIeReplay, "", "", "{replay}", series.Counter, High, Link).when(always),
	gpu("pcie-correctable", semconv.GPUPCIeCorrectable, "", "", "{error}", series.Counter, High, Link).when(always),
	gpu("pcie-width", semconv.GPUPCIeLinkWidth, "", "", "{lane}", series.Ratio, Low, Link),
	gpu("pcie-generation", semconv.GPUPCIeLinkGeneration, "", "", "1", series.Ratio, Low, Link),

	shared("switch-temperature", Switch, semconv.NVSwitchTemperature, "", "", "Cel", series.Level, Thermal),
	shared("port-wait", Port, semconv.FabricCongestion, semconv.FabricSignal, "transmit_wait", "{signal}", series.Counter, Link),
	shared("port-cnp", Port, semconv.FabricCongestion, semconv.FabricSignal, "cnp_handled", "{signal}", series.Counter, Link),
	shared("port-out-of-sequence", Port, semconv.FabricErrors, semconv.ErrorType, "out_of_sequence", "{error}", series.Counter, Link),
	shared("port-ack-timeout", Port, semconv.FabricErrors, semconv.ErrorType, "local_ack_timeout", "{error}", series.Counter, Link),
	shared("port-rnr", Port, semconv.FabricErrors, semconv.ErrorType, "rnr_nak_retry", "{error}", series.Counter, Link),
}

// rows of the catalogue.
const rowsMost = 64

// Metric is what the catalogue says of one metric: who turns points into values asks it once for each metric of a batch.
type Metric struct {
	About About
	Attr  string // the attribute whose value tells the metric's signals apart; empty: none does
	rows  []row
}

type row = uint8

var metrics = func() map[string]*Metric {
	m := map[string]*Metric{}
	for i, s := range Catalogue {
		x := m[s.Metric]
		if x == nil {
			x = &Metric{About: s.About, Attr: s.Attr}
			m[s.Metric] = x
		}
		x.rows = append(x.rows, row(i))
	}
	return m
}()

// Lookup gives what the catalogue says of a metric; nil: it is not judged.
func Lookup(metric string) *Metric { return metrics[metric] }

// promName is the metric as the agent's Prometheus endpoint spells it.
func (s *Signal) promName() string {
	name := strings.ReplaceAll(s.Metric, ".", "_")
	if u := promUnits[s.Unit]; u != "" && !strings.HasSuffix(name, "_"+u) {
		name += "_" + u
	}
	if s.Kind == series.Counter {
		name += "_total"
	}
	return name
}

// promUnits are the exporter's words for units; those in braces have none.
var promUnits = map[string]string{"s": "seconds", "By": "bytes", "Cel": "celsius", "W": "watts", "Hz": "hertz", "1": "ratio", "1/s": "per_second"}

func promLabel(attr string) string { return strings.ReplaceAll(attr, ".", "_") }
