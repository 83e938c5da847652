//go:build cgo && linux

package dcgmreceiver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/NVIDIA/go-dcgm/pkg/dcgm"
	"go.uber.org/zap"
)

// Fields that identify a card, and return codes that say more than "failed" (dcgmReturn_t).
const (
	fieldDriver, fieldModel, fieldSerial, fieldUUID, fieldPCI = 1, 50, 53, 54, 57

	codeUninitialized = -10
	codeDisconnected  = -21
)

// owned is set while some source of this process holds go-dcgm's one connection.
var owned atomic.Bool

// engine is the Source that is DCGM, through unmodified go-dcgm.
type engine struct {
	cfg *Config
	log *zap.Logger
	out chan Violation

	open       bool
	owner      bool
	identities map[uint]Device
	switches   map[uint]Switch
	mig        migState
	nvml       nvml
	watches    watches
	samples    samples
	endPolicy  context.CancelFunc
	policy     <-chan dcgm.PolicyViolation
	forwarded  chan struct{} // closed when the last violation of this connection was passed on
	dropped    atomic.Uint64

	profilingRetry time.Duration
}

func newDCGM(cfg *Config, log *zap.Logger) Source {
	return &engine{cfg: cfg, log: log, out: make(chan Violation, 256), profilingRetry: profilingRetry}
}

// Violations implements Source.
func (e *engine) Violations() <-chan Violation { return e.out }

// Connect implements Source.
func (e *engine) Connect() error {
	if e.open {
		if err := e.Close(); err != nil {
			e.log.Debug("dcgm: giving up the old connection", zap.Error(err))
		}
	}
	if err := openLibrary(e.cfg.Library); err != nil {
		return err
	}
	if !e.owner && !owned.CompareAndSwap(false, true) {
		return errors.New("another dcgm receiver of this process holds the connection, and go-dcgm knows one: keep one dcgm receiver")
	}
	e.owner = true
	if err := e.init(); err != nil {
		return err
	}
	e.open, e.identities, e.switches, e.mig = true, map[uint]Device{}, map[uint]Switch{}, migState{}
	if v, err := dcgm.GetHostengineVersionInfo(); err == nil {
		if n := versionOf(v.RawBuildInfoString); n != "" && !strings.HasPrefix(n, "4.") {
			return fmt.Errorf("the host engine is DCGM %s, this receiver speaks to DCGM 4: upgrade nv-hostengine", n)
		}
	}
	return nil
}

func (e *engine) init() error {
	var err error
	if e.cfg.Mode == ModeEmbedded {
		if _, err = dcgm.Init(dcgm.Embedded); err != nil {
			return fmt.Errorf("the embedded host engine does not start (%w): is the NVIDIA driver loaded?", err)
		}
		return nil
	}
	socket := "0"
	if strings.HasPrefix(e.cfg.Address, "/") {
		socket = "1"
	}
	if _, err = dcgm.Init(dcgm.Standalone, e.cfg.Address, socket); err != nil {
		return fmt.Errorf("no host engine at %s (%w): start nv-hostengine, set address, or set mode: embedded", e.cfg.Address, err)
	}
	return nil
}

// versionOf finds the version among "key:value;key:value".
func versionOf(info string) string {
	for kv := range strings.SplitSeq(info, ";") {
		if v, ok := strings.CutPrefix(kv, "version:"); ok {
			return v
		}
	}
	return ""
}

// Close implements Source.
func (e *engine) Close() error {
	var err error
	if e.open {
		e.endPolicies()
		err = dcgm.Shutdown() // not the cleanup function: that one writes its error to stderr
		e.open = false
	}
	if e.owner {
		e.owner = false
		owned.Store(false)
	}
	return err
}

// Inventory implements Source.
func (e *engine) Inventory() (inv Inventory, err error) {
	if inv.Devices, err = e.devices(); err != nil {
		return inv, err
	}
	if inv.Instances, err = e.instances(); err != nil {
		return inv, err
	}
	inv.Switches, err = e.nvswitches()
	return inv, err
}

func (e *engine) devices() ([]Device, error) {
	all, err := dcgm.GetEntityGroupEntities(dcgm.FE_GPU)
	if err != nil {
		return nil, classify(err)
	}
	supported, err := dcgm.GetSupportedDevices()
	if err != nil {
		return nil, classify(err)
	}
	if err := e.identify(all); err != nil {
		return nil, err
	}
	devices := make([]Device, 0, len(all))
	for _, id := range all {
		d := e.identities[id]
		d.ID = id
		status := dcgm.GetGPUStatus(id)
		d.Answer = slices.Contains(supported, id) &&
			(status == dcgm.EntityStatusOk || status == dcgm.EntityStatusFake || status == dcgm.EntityStatusUnknown)
		devices = append(devices, d)
	}
	return devices, nil
}

// identify asks who the cards are that it does not know yet. DCGM's numbers keep their cards for the life of a connection.
func (e *engine) identify(ids []uint) error {
	var pairs []dcgm.GroupEntityPair
	for _, id := range ids {
		if _, known := e.identities[id]; !known {
			pairs = append(pairs, dcgm.GroupEntityPair{EntityGroupId: dcgm.FE_GPU, EntityId: id})
		}
	}
	if len(pairs) == 0 {
		return nil
	}
	fields := []dcgm.Short{fieldUUID, fieldPCI, fieldModel, fieldSerial, fieldDriver}
	values, err := dcgm.EntitiesGetLatestValues(pairs, fields, dcgm.DCGM_FV_FLAG_LIVE_DATA)
	if err != nil {
		return classify(err)
	}
	found := map[uint]Device{}
	for _, v := range values {
		if v.StringValue == nil || v.Status != dcgm.DCGM_ST_OK || blankString(*v.StringValue) {
			continue
		}
		d := found[v.EntityID]
		switch v.FieldID {
		case fieldUUID:
			d.UUID = *v.StringValue
		case fieldPCI:
			d.PCI = *v.StringValue
		case fieldModel:
			d.Model = *v.StringValue
		case fieldSerial:
			d.Serial = *v.StringValue
		case fieldDriver:
			d.Driver = *v.StringValue
		}
		found[v.EntityID] = d
	}
	for id, d := range found {
		if d.UUID != "" { // else it is asked again next time
			e.identities[id] = d
		}
	}
	return nil
}

// blankString is DCGM_STR_IS_BLANK.
func blankString(s string) bool {
	return s == "" || strings.HasPrefix(s, "<<<") && strings.Contains(s, ">>>")
}

// Blanks of numbers (dcgm_structs.h): each blank and the reasons after it are at or above these.
const (
	blankInt64 = 0x7ffffffffffffff0
	blankFP64  = 140737488355328.0
)

// maxValues is how many values one call asks for: the library's form of a value has 4 KiB.
const maxValues = 64

// Read implements Source. What is there is what was watched: the session watches anew when it changes.
func (e *engine) Read(_ Inventory, fields []uint16, live bool) ([]Value, error) {
	e.retryProfiling()
	by := map[Level][]dcgm.Short{}
	for _, id := range fields {
		f, _ := FieldByID(id)
		if f.Cost == Profiling && e.watches.withheld[id] {
			continue
		}
		by[f.Level] = append(by[f.Level], dcgm.Short(id))
		if f.perInstance() {
			by[InstanceLevel] = append(by[InstanceLevel], dcgm.Short(id))
		}
	}
	of := e.watches.of
	n := 0
	for level, fields := range by {
		n += len(fields) * len(of[level])
	}
	out := make([]Value, 0, n)
	var flags uint
	if live {
		flags = dcgm.DCGM_FV_FLAG_LIVE_DATA
	}
	for level := GPULevel; level <= SwitchLinkLevel; level++ {
		if len(of[level]) == 0 || len(by[level]) == 0 {
			continue
		}
		for some := range slices.Chunk(of[level], max(1, maxValues/len(by[level]))) {
			var err error
			if out, err = e.samples.latest(out, some, by[level], flags); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

// linkEntity packs a dcgm_link_t: entity group, port, number of the GPU or switch.
func linkEntity(of dcgm.Field_Entity_Group, number, port uint) uint {
	return uint(of) | port<<8 | number<<24
}

// Health implements Source.
func (e *engine) Health() ([]Incident, error) {
	if !e.watches.health {
		return nil, nil
	}
	r, err := dcgm.HealthCheck(e.watches.healthOf)
	if err != nil {
		return nil, classify(err)
	}
	var out []Incident
	for _, in := range r.Incidents {
		of := GPULevel
		switch in.EntityInfo.EntityGroupId {
		case dcgm.FE_GPU:
		case dcgm.FE_SWITCH:
			of = SwitchLevel
		default:
			continue
		}
		out = append(out, Incident{
			Of: of, ID: in.EntityInfo.EntityId, System: healthSystem(in.System), Fail: in.Health == dcgm.DCGM_HEALTH_RESULT_FAIL,
			Code: uint(in.Error.Code), Text: in.Error.Message,
		})
	}
	return out, nil
}

func healthSystem(s dcgm.HealthSystem) string {
	names := []string{"pcie", "nvlink", "pmu", "mcu", "mem", "sm", "inforom", "thermal", "power", "driver", "nvswitch_nonfatal", "nvswitch_fatal", "connectx", "imex"}
	for i, n := range names {
		if s == 1<<i {
			return n
		}
	}
	return fmt.Sprintf("%#x", uint(s))
}

// classify marks the errors after which only a new connection helps.
func classify(err error) error {
	var e *dcgm.Error
	gone := errors.As(err, &e) && (int(e.Code) == codeDisconnected || int(e.Code) == codeUninitialized)
	if gone || strings.Contains(err.Error(), "connection invalid") || strings.Contains(err.Error(), "onnection not valid") {
		return fmt.Errorf("%w (%v): is nv-hostengine running?", ErrDisconnected, err)
	}
	return err
}

// groupName is unique on a host engine that others use as well.
func groupName(what string) string {
	return fmt.Sprintf("pitcrew-%s-%d-%d", what, os.Getpid(), time.Now().UnixNano())
}
