//go:build cgo && linux

package dcgmreceiver

import (
	"context"
	"fmt"
	"time"

	"github.com/NVIDIA/go-dcgm/pkg/dcgm"
	"go.uber.org/zap"
)

// watches is what one connection watches.
type watches struct {
	group  dcgm.GroupHandle
	health bool
	links  map[uint][]uint // GPU → its NVLink ports
	undo   []func() error  // in the order to be undone
}

// policyOf maps the configuration's names to go-dcgm's conditions.
var policyOf = map[string]dcgm.PolicyCondition{
	"xid": dcgm.XidPolicy, "dbe": dcgm.DbePolicy, "pcie": dcgm.PCIePolicy, "pages": dcgm.MaxRtPgPolicy,
	"thermal": dcgm.ThermalPolicy, "power": dcgm.PowerPolicy, "nvlink": dcgm.NvlinkPolicy,
}

// Watch implements Source.
func (e *engine) Watch(devices []Device, plan []Watch) ([]uint16, error) {
	e.endPolicies()
	for _, undo := range e.watches.undo {
		if err := undo(); err != nil {
			e.log.Debug("dcgm: undo a watch", zap.Error(err))
		}
	}
	e.watches = watches{links: map[uint][]uint{}}
	var gpus []uint
	for _, d := range devices {
		if d.Answer {
			gpus = append(gpus, d.ID)
		}
	}
	if len(gpus) == 0 {
		return nil, nil
	}
	group, err := e.group("gpus", func(g dcgm.GroupHandle) error {
		for _, id := range gpus {
			if err := dcgm.AddEntityToGroup(g, dcgm.FE_GPU, id); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	e.watches.group = group
	linkGroup, err := e.linkGroup(gpus)
	if err != nil {
		return nil, err
	}
	var unknown []uint16
	for _, w := range plan {
		var gpuFields, linkFields []dcgm.Short
		for _, id := range w.Fields {
			if _, err := dcgm.FieldGetByID(dcgm.Short(id)); err != nil {
				unknown = append(unknown, id)
				continue
			}
			if f, _ := FieldByID(id); f.Level == LinkLevel {
				linkFields = append(linkFields, dcgm.Short(id))
			} else {
				gpuFields = append(gpuFields, dcgm.Short(id))
			}
		}
		if err := e.watch(group, gpuFields, w.Every); err != nil {
			return nil, err
		}
		if len(e.watches.links) > 0 {
			if err := e.watch(linkGroup, linkFields, w.Every); err != nil {
				return nil, err
			}
		}
	}
	if err := dcgm.HealthSet(group, dcgm.DCGM_HEALTH_WATCH_ALL); err != nil {
		e.log.Warn("dcgm: health watches are not available", zap.Error(err))
	} else {
		e.watches.health = true
	}
	e.listen(group)
	return unknown, nil
}

func (e *engine) group(what string, fill func(dcgm.GroupHandle) error) (dcgm.GroupHandle, error) {
	g, err := dcgm.CreateGroup(groupName(what))
	if err != nil {
		return g, classify(err)
	}
	e.watches.undo = append(e.watches.undo, func() error { return dcgm.DestroyGroup(g) })
	if err := fill(g); err != nil {
		return g, classify(err)
	}
	return g, nil
}

// linkGroup makes a group of the NVLinks that the cards have. A node without any has none.
func (e *engine) linkGroup(gpus []uint) (dcgm.GroupHandle, error) {
	here := map[uint]bool{}
	for _, id := range gpus {
		here[id] = true
	}
	all, err := dcgm.GetNvLinkLinkStatus()
	if err != nil {
		return dcgm.GroupHandle{}, classify(err)
	}
	for _, l := range all {
		if l.ParentType == dcgm.FE_GPU && here[l.ParentId] && l.State != dcgm.LS_NOT_SUPPORTED {
			e.watches.links[l.ParentId] = append(e.watches.links[l.ParentId], l.Index)
		}
	}
	if len(e.watches.links) == 0 {
		return dcgm.GroupHandle{}, nil
	}
	return e.group("links", func(g dcgm.GroupHandle) error {
		for gpu, ports := range e.watches.links {
			for _, p := range ports {
				if err := dcgm.AddEntityToGroup(g, dcgm.FE_LINK, linkEntity(gpu, p)); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

func (e *engine) watch(g dcgm.GroupHandle, fields []dcgm.Short, every time.Duration) error {
	if len(fields) == 0 {
		return nil
	}
	fg, err := dcgm.FieldGroupCreate(groupName(fmt.Sprintf("every-%v", every)), fields)
	if err != nil {
		return classify(err)
	}
	e.watches.undo = append([]func() error{
		func() error { return dcgm.UnwatchFields(fg, g) },
		func() error { return dcgm.FieldGroupDestroy(fg) },
	}, e.watches.undo...)
	// The engine keeps the newest sample alone; an age is needed beside it, long enough for the slowest reader.
	if err := dcgm.WatchFieldsWithGroupEx(fg, g, every.Microseconds(), (2*e.cfg.MaxInterval + every).Seconds(), 1); err != nil {
		return classify(err)
	}
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
