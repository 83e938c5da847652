//go:build cgo && linux

package dcgmreceiver

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/NVIDIA/go-dcgm/pkg/dcgm"
	"go.uber.org/zap"
)

// watches is what one connection watches.
type watches struct {
	group    dcgm.GroupHandle
	health   bool
	healthOf dcgm.GroupHandle
	links    []dcgm.GroupEntityPair           // the NVLinks of GPUs and switches
	of       map[Level][]dcgm.GroupEntityPair // what is read
	groups   map[Level]dcgm.GroupHandle
	undo     []func() error // in the order to be undone

	profiling []Watch         // what is asked for and could be had
	withheld  map[uint16]bool // of that, what the engine refuses for now
	retryAt   time.Time
}

// policyOf maps the configuration's names to go-dcgm's conditions.
var policyOf = map[string]dcgm.PolicyCondition{
	"xid": dcgm.XidPolicy, "dbe": dcgm.DbePolicy, "pcie": dcgm.PCIePolicy, "pages": dcgm.MaxRtPgPolicy,
	"thermal": dcgm.ThermalPolicy, "power": dcgm.PowerPolicy, "nvlink": dcgm.NvlinkPolicy,
}

// Watch implements Source.
func (e *engine) Watch(inv Inventory, plan []Watch) ([]Omission, error) {
	e.endPolicies()
	for _, undo := range e.watches.undo {
		if err := undo(); err != nil {
			e.log.Debug("dcgm: undo a watch", zap.Error(err))
		}
	}
	e.watches = watches{groups: map[Level]dcgm.GroupHandle{}, withheld: map[uint16]bool{}}
	inv = inv.answering()
	if len(inv.Devices) == 0 {
		return nil, nil
	}
	if err := e.groups(inv); err != nil {
		return nil, err
	}
	omitted, allowed := e.profilable(inv.Devices, plan)
	for _, w := range plan {
		by, profiling := map[Level][]dcgm.Short{}, Watch{Every: w.Every}
		for _, id := range w.Fields {
			f, _ := FieldByID(id)
			if _, err := dcgm.FieldGetByID(dcgm.Short(id)); err != nil {
				if f.Level != SwitchLevel || len(inv.Switches) > 0 {
					omitted = append(omitted, Omission{Field: id})
				}
				continue
			}
			if f.Cost == Profiling {
				if allowed[id] {
					profiling.Fields = append(profiling.Fields, id)
				}
				continue
			}
			by[f.Level] = append(by[f.Level], dcgm.Short(id))
			if f.perInstance() {
				by[InstanceLevel] = append(by[InstanceLevel], dcgm.Short(id))
			}
		}
		by[GPULevel] = append(by[GPULevel], by[NodeLevel]...)
		for _, level := range []Level{GPULevel, LinkLevel, InstanceLevel, SwitchLevel, SwitchLinkLevel} {
			group, there := e.watches.groups[level]
			if !there {
				continue
			}
			if err := e.watch(group, by[level], w.Every); err != nil {
				return nil, err
			}
		}
		if len(profiling.Fields) > 0 {
			e.watches.profiling = append(e.watches.profiling, profiling)
		}
	}
	e.watchProfiling()
	e.watches.healthOf = e.watches.group
	if len(inv.Switches) > 0 {
		if g, err := e.group("health", slices.Concat(e.watches.of[GPULevel], e.watches.of[SwitchLevel])); err == nil {
			e.watches.healthOf = g
		}
	}
	if err := dcgm.HealthSet(e.watches.healthOf, dcgm.DCGM_HEALTH_WATCH_ALL); err != nil {
		e.log.Warn("dcgm: health watches are not available", zap.Error(err))
	} else {
		e.watches.health = true
	}
	e.listen(e.watches.group)
	return omitted, nil
}

// entities lists what is read, by level.
func (w *watches) entities(inv Inventory) map[Level][]dcgm.GroupEntityPair {
	of := map[Level][]dcgm.GroupEntityPair{}
	here := map[uint]bool{}
	for _, d := range inv.Devices {
		here[d.ID] = true
		of[GPULevel] = append(of[GPULevel], dcgm.GroupEntityPair{EntityGroupId: dcgm.FE_GPU, EntityId: d.ID})
	}
	for _, in := range inv.Instances {
		of[InstanceLevel] = append(of[InstanceLevel], dcgm.GroupEntityPair{EntityGroupId: dcgm.FE_GPU_I, EntityId: in.ID})
	}
	for _, s := range inv.Switches {
		of[SwitchLevel] = append(of[SwitchLevel], dcgm.GroupEntityPair{EntityGroupId: dcgm.FE_SWITCH, EntityId: s.ID})
	}
	for _, l := range w.links {
		if dcgm.Field_Entity_Group(l.EntityId&0xff) == dcgm.FE_SWITCH {
			of[SwitchLinkLevel] = append(of[SwitchLinkLevel], l)
		} else if here[l.EntityId>>24&0xff] {
			of[LinkLevel] = append(of[LinkLevel], l)
		}
	}
	return of
}

// groups makes a group of each kind of entity that there is.
func (e *engine) groups(inv Inventory) error {
	links, err := e.Links()
	if err != nil {
		return err
	}
	for _, l := range links {
		of := dcgm.FE_GPU
		if l.Switch {
			of = dcgm.FE_SWITCH
		}
		e.watches.links = append(e.watches.links, dcgm.GroupEntityPair{EntityGroupId: dcgm.FE_LINK, EntityId: linkEntity(of, l.ID, uint(l.Link))})
	}
	e.watches.of = e.watches.entities(inv)
	for level, entities := range e.watches.of {
		g, err := e.group(levelNames[level], entities)
		if err != nil {
			return err
		}
		e.watches.groups[level] = g
	}
	e.watches.group = e.watches.groups[GPULevel]
	e.watches.of[NodeLevel] = e.watches.of[GPULevel][:1]
	return nil
}

var levelNames = map[Level]string{
	GPULevel: "gpus", LinkLevel: "links", InstanceLevel: "instances", SwitchLevel: "switches", SwitchLinkLevel: "switch-links",
}

func (e *engine) group(what string, entities []dcgm.GroupEntityPair) (dcgm.GroupHandle, error) {
	g, err := dcgm.CreateGroup(groupName(what))
	if err != nil {
		return g, classify(err)
	}
	e.watches.undo = append(e.watches.undo, func() error { return dcgm.DestroyGroup(g) })
	for _, p := range entities {
		if err := dcgm.AddEntityToGroup(g, p.EntityGroupId, p.EntityId); err != nil {
			return g, classify(err)
		}
	}
	return g, nil
}

// Links implements Source.
func (e *engine) Links() ([]LinkState, error) {
	all, err := dcgm.GetNvLinkLinkStatus()
	if err != nil {
		return nil, classify(err)
	}
	var out []LinkState
	for _, l := range all {
		state, there := linkState[l.State]
		if there && (l.ParentType == dcgm.FE_GPU || l.ParentType == dcgm.FE_SWITCH) {
			out = append(out, LinkState{Switch: l.ParentType == dcgm.FE_SWITCH, ID: l.ParentId, Link: int(l.Index), State: state})
		}
	}
	return out, nil
}

var linkState = map[dcgm.Link_State]string{dcgm.LS_UP: "up", dcgm.LS_DOWN: "down", dcgm.LS_DISABLED: "disabled"}

// Topology implements Source.
func (e *engine) Topology(devices []Device) (paths []Path, _ error) {
	for _, d := range devices {
		peers, err := dcgm.GetDeviceTopology(d.ID)
		if err != nil {
			return paths, classify(err)
		}
		for _, p := range peers {
			if p.GPU > d.ID {
				paths = append(paths, Path{A: d.ID, B: p.GPU, Kind: p.Link.PCIPaths()})
			}
		}
	}
	return paths, nil
}

func (e *engine) watch(g dcgm.GroupHandle, fields []dcgm.Short, every time.Duration) error {
	if len(fields) == 0 {
		return nil
	}
	fg, err := dcgm.FieldGroupCreate(groupName(fmt.Sprintf("every-%v", every)), fields)
	if err != nil {
		return classify(err)
	}
	// The engine keeps the newest sample alone; an age is needed beside it, long enough for the slowest reader.
	if err := dcgm.WatchFieldsWithGroupEx(fg, g, every.Microseconds(), (2*e.cfg.MaxInterval + every).Seconds(), 1); err != nil {
		if err := dcgm.FieldGroupDestroy(fg); err != nil {
			e.log.Debug("dcgm: destroy the group of a watch that failed", zap.Error(err))
		}
		return classify(err)
	}
	e.watches.undo = append([]func() error{
		func() error { return dcgm.UnwatchFields(fg, g) },
		func() error { return dcgm.FieldGroupDestroy(fg) },
	}, e.watches.undo...)
	return nil
}

// listen registers for policy violations. Where the engine refuses, the metrics go on without them.
func (e *engine) listen(g dcgm.GroupHandle) {
	if len(e.cfg.Policies) == 0 {
		return
	}
	var conditions []dcgm.PolicyCondition
	for _, p := range e.cfg.Policies {
		conditions = append(conditions, policyOf[p])
	}
	ctx, cancel := context.WithCancel(context.Background())
	ch, err := dcgm.ListenForPolicyViolationsForGroup(ctx, g, conditions...)
	if err != nil {
		cancel()
		e.log.Warn("dcgm: policy violations are not available; faults are seen at the next reading", zap.Error(err))
		return
	}
	e.endPolicy, e.policy, e.forwarded = cancel, ch, make(chan struct{})
	done := e.forwarded
	go func() {
		defer close(done)
		for v := range ch {
			select {
			case e.out <- fromDCGM(v):
			default: // nobody listens: the next reading will tell
				e.dropped.Add(1)
			}
		}
	}()
}

func fromDCGM(v dcgm.PolicyViolation) Violation {
	out := Violation{GPU: v.GPU, Time: v.Timestamp}
	if now := time.Now(); now.Sub(v.Timestamp) < 2*time.Second { // go-dcgm cuts the time to whole seconds
		out.Time = now
	}
	for name, c := range policyOf {
		if c == v.Condition {
			out.Policy = name
		}
	}
	switch d := v.Data.(type) {
	case dcgm.XidPolicyCondition:
		out.Code = int64(d.ErrNum)
	case dcgm.DbePolicyCondition:
		out.Code = int64(d.NumErrors)
	case dcgm.PciPolicyCondition:
		out.Code = int64(d.ReplayCounter)
	case dcgm.RetiredPagesPolicyCondition:
		out.Code = int64(d.SbePages + d.DbePages)
	case dcgm.ThermalPolicyCondition:
		out.Code = int64(d.ThermalViolation)
	case dcgm.PowerPolicyCondition:
		out.Code = int64(d.PowerViolation)
	case dcgm.NvlinkPolicyCondition:
		out.Code = int64(d.Counter)
	}
	return out
}

// endPolicies ends the listening and waits until go-dcgm has undone its registration. It closes the channel first and unregisters
// after that, under a lock that every registration takes: one that must fail behind that lock tells that it is done. Without this
// a later connection could find its conditions "registered already" and never be called back.
func (e *engine) endPolicies() {
	if e.endPolicy == nil {
		return
	}
	e.endPolicy()
	<-e.forwarded
	e.endPolicy, e.policy = nil, nil
	var nowhere dcgm.GroupHandle
	nowhere.SetHandle(1 << 30)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if _, err := dcgm.ListenForPolicyViolationsForGroup(ctx, nowhere, dcgm.XidPolicy); err == nil {
		e.log.Debug("dcgm: a group that does not exist was accepted")
	}
}
