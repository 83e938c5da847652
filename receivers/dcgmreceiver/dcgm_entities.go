//go:build cgo && linux

package dcgmreceiver

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/NVIDIA/go-dcgm/pkg/dcgm"
	"go.uber.org/zap"
)

// migEvery is how old the division of the cards may be: an instance may be made anew under the number of one that is gone.
const migEvery = 10 * time.Second

// migState is how the cards were divided when the engine was last asked.
type migState struct {
	ids       []uint
	instances []Instance
	at        time.Time
}

// instances lists the MIG GPU instances. The engine's whole hierarchy is asked for when an instance came or went, and now and then.
func (e *engine) instances() ([]Instance, error) {
	ids, err := e.entities(dcgm.FE_GPU_I)
	if err != nil || len(ids) == 0 {
		e.mig = migState{}
		return nil, err
	}
	if slices.Equal(ids, e.mig.ids) && time.Since(e.mig.at) < migEvery {
		return e.mig.instances, nil
	}
	h, err := dcgm.GetGPUInstanceHierarchy()
	if err != nil {
		return nil, classify(err)
	}
	var out []Instance
	at := map[uint]int{}          // instance → its place in out
	computes := map[uint][2]int{} // compute instance → its places
	for _, in := range h.EntityList[:min(h.Count, dcgm.MAX_HIERARCHY_INFO)] {
		switch in.Entity.EntityGroupId {
		case dcgm.FE_GPU_I:
			at[in.Entity.EntityId] = len(out)
			out = append(out, Instance{
				ID: in.Entity.EntityId, GPU: in.Parent.EntityId, GI: in.Info.NvmlInstanceId, Profile: fmt.Sprintf("%dg", in.Info.NvmlProfileSlices),
			})
		case dcgm.FE_GPU_CI:
			i, known := at[in.Parent.EntityId]
			if !known {
				continue // the hierarchy tells a parent before its children
			}
			computes[in.Entity.EntityId] = [2]int{i, len(out[i].Compute)}
			out[i].Compute = append(out[i].Compute, Compute{CI: in.Info.NvmlComputeInstanceId})
		}
	}
	if err := e.nameInstances(out, at, computes); err != nil {
		return nil, err
	}
	e.askDriver(out)
	e.mig = migState{ids, out, time.Now()}
	return out, nil
}

// askDriver asks NVML for the UUIDs that DCGM did not tell. Without NVML (it comes with the driver, and has to be mounted where
// nv-hostengine is another container's) pods that are given MIG-<uuid> are not attributed, and all else goes on.
func (e *engine) askDriver(out []Instance) {
	asked := map[uint]map[part]string{}
	for i, in := range out {
		for k, c := range in.Compute {
			if c.UUID != "" {
				continue
			}
			parts, known := asked[in.GPU]
			if !known {
				first := !e.nvml.tried
				if err := e.nvml.open(e.cfg.NVMLLibrary); err != nil {
					if first {
						e.log.Info("dcgm: pods that are given MIG-<uuid> cannot be told apart: DCGM does not say which instance has which UUID, and NVML cannot be asked: mount libnvidia-ml.so.1, or set nvml_library", zap.Error(err))
					}
					return
				}
				parts = e.nvml.parts(e.identities[in.GPU].UUID)
				asked[in.GPU] = parts
			}
			out[i].Compute[k].UUID = parts[part{in.GI, c.CI}]
		}
	}
}

// nameInstances asks for the profiles' names, and for the UUIDs of the compute instances, which an engine may tell or not.
func (e *engine) nameInstances(out []Instance, at map[uint]int, computes map[uint][2]int) error {
	for _, q := range []struct {
		group dcgm.Field_Entity_Group
		field dcgm.Short
		take  func(id uint, name string)
	}{
		{dcgm.FE_GPU_I, fieldModel, func(id uint, name string) {
			if i, known := at[id]; known && !strings.Contains(name, " ") { // else it is the card's name
				out[i].Profile = strings.TrimPrefix(name, "MIG ")
			}
		}},
		{dcgm.FE_GPU_CI, fieldUUID, func(id uint, name string) {
			if c, known := computes[id]; known && strings.HasPrefix(name, "MIG-") {
				out[c[0]].Compute[c[1]].UUID = name
			}
		}},
	} {
		var pairs []dcgm.GroupEntityPair
		if q.group == dcgm.FE_GPU_I {
			for id := range at {
				pairs = append(pairs, dcgm.GroupEntityPair{EntityGroupId: q.group, EntityId: id})
			}
		} else {
			for id := range computes {
				pairs = append(pairs, dcgm.GroupEntityPair{EntityGroupId: q.group, EntityId: id})
			}
		}
		for some := range slices.Chunk(pairs, maxValues) {
			values, err := dcgm.EntitiesGetLatestValues(some, []dcgm.Short{q.field}, dcgm.DCGM_FV_FLAG_LIVE_DATA)
			if err != nil {
				return classify(err)
			}
			for _, v := range values {
				if v.Status == dcgm.DCGM_ST_OK && v.StringValue != nil && !blankString(*v.StringValue) {
					q.take(v.EntityID, *v.StringValue)
				}
			}
		}
	}
	return nil
}

// entities lists the engine's numbers of a kind of entity; none where it does not know the kind.
func (e *engine) entities(group dcgm.Field_Entity_Group) ([]uint, error) {
	ids, err := dcgm.GetEntityGroupEntities(group)
	if err == nil {
		return ids, nil
	}
	if strings.Contains(strings.ToLower(err.Error()), "not supported") {
		return nil, nil
	}
	return nil, classify(err)
}

// Fields that identify a switch.
const (
	fieldSwitchDomain, fieldSwitchBus, fieldSwitchDevice, fieldSwitchFunction, fieldSwitchUUID = 866, 867, 868, 869, 878
)

// nvswitches lists the switches. Who each is, is asked once.
func (e *engine) nvswitches() ([]Switch, error) {
	ids, err := e.entities(dcgm.FE_SWITCH)
	if err != nil || len(ids) == 0 {
		return nil, err
	}
	out := make([]Switch, len(ids))
	for i, id := range ids {
		if _, known := e.switches[id]; !known {
			if e.switches[id], err = e.nvswitch(id); err != nil {
				return nil, err
			}
		}
		out[i] = e.switches[id]
	}
	return out, nil
}

func (e *engine) nvswitch(id uint) (Switch, error) {
	s := Switch{ID: id}
	fields := []dcgm.Short{fieldSwitchUUID, fieldSwitchDomain, fieldSwitchBus, fieldSwitchDevice, fieldSwitchFunction}
	values, err := dcgm.EntitiesGetLatestValues([]dcgm.GroupEntityPair{{EntityGroupId: dcgm.FE_SWITCH, EntityId: id}}, fields, dcgm.DCGM_FV_FLAG_LIVE_DATA)
	if err != nil {
		return s, classify(err)
	}
	address := map[dcgm.Short]int64{}
	for i, v := range values {
		if v.Status != dcgm.DCGM_ST_OK {
			continue
		}
		if v.FieldID == fieldSwitchUUID {
			if v.StringValue != nil && !blankString(*v.StringValue) {
				s.UUID = *v.StringValue
			}
		} else if n := values[i].Int64(); n < blankInt64 {
			address[v.FieldID] = n
		}
	}
	if len(address) == 4 {
		s.PCI = fmt.Sprintf("%04x:%02x:%02x.%x", address[fieldSwitchDomain], address[fieldSwitchBus], address[fieldSwitchDevice], address[fieldSwitchFunction])
	}
	return s, nil
}
