package incident

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/cluster"
	"github.com/pitcrew/pitcrew/remediator/fleet"
	"github.com/pitcrew/pitcrew/remediator/guard"
	"github.com/pitcrew/pitcrew/remediator/placement"
	"github.com/pitcrew/pitcrew/remediator/policy"
)

func (w *world) GangsAt(_ context.Context, t event.Target) (out []cluster.Gang, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, uid := range slices.Sorted(maps.Keys(w.gangs)) {
		g := w.gangs[uid]
		if g.deleted || t.PodUID == "" && t.Job != nil && t.Job.UID != uid { // the pod goes first, as in the real one
			continue
		}
		w.settle(g)
		if t.PodUID == "" && t.Job != nil || slices.ContainsFunc(g.Members, func(m cluster.Member) bool {
			return t.PodUID != "" && m.PodUID == t.PodUID || t.PodUID == "" && m.Node == t.Node
		}) {
			out = append(out, w.copy(g))
		}
	}
	return out, nil
}

func (w *world) JobsAt(t event.Target) (uids []string) {
	gangs, _ := w.GangsAt(context.Background(), t)
	for _, g := range gangs {
		uids = append(uids, g.Job.UID)
	}
	return uids
}

func (w *world) copy(g *gang) cluster.Gang {
	c := g.Gang
	c.Members = slices.Clone(g.Members)
	return c
}

func (w *world) Gang(_ context.Context, job event.Job) (cluster.Gang, error) {
	time.Sleep(30 * time.Millisecond) // so that every state lasts
	w.mu.Lock()
	defer w.mu.Unlock()
	g := w.gangs[job.UID]
	if g == nil || g.deleted {
		return cluster.Gang{}, fmt.Errorf("job: %w", cluster.ErrNotFound)
	}
	w.settle(g)
	return w.copy(g), nil
}

func (w *world) Node(name string) (*fleet.Node, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.nodes[name]
	if n == nil || n.gone {
		return nil, cluster.ErrNotFound
	}
	return w.view(name, w.taken(nil)), nil
}

func (w *world) FleetWithout(without ...string) (out []*fleet.Node) {
	w.mu.Lock()
	defer w.mu.Unlock()
	taken := w.taken(without)
	for _, name := range w.names() {
		out = append(out, w.view(name, taken))
	}
	return out
}

// taken are the nodes on which a pod runs, other than those left out.
func (w *world) taken(without []string) map[string]bool {
	out := map[string]bool{}
	for _, g := range w.gangs {
		for _, m := range g.Members {
			if !g.deleted && !slices.Contains(without, m.PodUID) {
				out[m.Node] = true
			}
		}
	}
	return out
}

func (w *world) view(name string, taken map[string]bool) *fleet.Node {
	n := w.nodes[name]
	p := &fleet.Node{Name: name, Ready: true, Labels: map[string]string{"nvidia.com/gpu.product": n.product}, Unschedulable: n.quarantined != "", Quarantined: n.quarantined,
		OutOfService: n.off, Pool: n.pool, Held: n.held, Free: map[string]int64{"gpu": 1}}
	if n.rack != "" {
		p.Labels[policy.RackLabels()[0]] = n.rack
	}
	if n.held != "" {
		p.Annotations = map[string]string{guard.HoldAnnotation: n.held}
	}
	for key, node := range w.reserved {
		if node == name {
			p.Reserved = w.reservedBy[key]
		}
	}
	if n.quarantined != "" {
		p.Taints = append(p.Taints, fleet.Taint{Key: placement.QuarantineTaint, Value: n.quarantined, Effect: "NoSchedule"})
	}
	if taken[name] {
		p.Free["gpu"] = 0
	}
	return p
}

func (w *world) Wakes(string, func(*fleet.Node) bool) (<-chan struct{}, func()) {
	return nil, func() {}
}

func (w *world) Cordon(_ context.Context, name, incident string) (cluster.Cordoned, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.nodes[name]
	changed := n.quarantined == ""
	if changed {
		n.quarantined = incident
	}
	w.wrotes("cordon "+name, changed)
	return cluster.Cordoned{Changed: changed, Owner: n.quarantined}, nil
}

func (w *world) Uncordon(_ context.Context, name, incident string) (cluster.Cordoned, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.nodes[name]
	changed := n.quarantined == incident
	if changed {
		n.quarantined = ""
	}
	w.wrotes("uncordon "+name, changed)
	return cluster.Cordoned{Changed: changed, Owner: n.quarantined}, nil
}

func (w *world) Unsuspend(_ context.Context, g cluster.Gang, _ string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	own := w.gangs[g.Job.UID]
	changed := own.Suspended
	own.Suspended = false
	w.wrotes("resume", changed)
	return nil
}

func (w *world) HoldJob(_ context.Context, g cluster.Gang, _, why string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	own := w.gangs[g.Job.UID]
	changed := own.Held == ""
	own.Held = why
	w.wrotes("hold "+g.Job.Name, changed)
	return nil
}

func (w *world) SetCondition(_ context.Context, name string, _ bool, _, _ string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wrotes("condition "+name, true)
	return nil
}

func (w *world) NodeRef(name string) cluster.Ref { return cluster.Ref{Kind: "Node", Name: name} }

func (w *world) Event(_ context.Context, about cluster.Ref, _, reason, _ string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wrotes("event "+reason+" "+about.Name, true)
	return nil
}

func (w *world) Reserve(_ context.Context, r cluster.Reservation) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if r.OwnerUID == "" || r.Index == nil {
		w.t.Errorf("a reservation for nobody: %+v", r)
	}
	key := fmt.Sprintf("%s/%d", r.OwnerUID, *r.Index)
	changed := w.reserved[key] != r.Node
	w.reserved[key], w.reservedBy[key] = r.Node, r.Incident
	w.wrotes("reserve "+r.Node, changed)
	return nil
}

func (w *world) WaitReservationSeen(_ context.Context, _ cluster.Reservation) error {
	if w.steered {
		return nil
	}
	return cluster.ErrNoPolicy
}

func (w *world) Release(_ context.Context, incident string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	changed := false
	for key, by := range w.reservedBy {
		if by == incident {
			delete(w.reserved, key)
			delete(w.reservedBy, key)
			changed = true
		}
	}
	w.wrotes("release", changed)
	return nil
}

func (w *world) MayReplace(_ context.Context, pods []cluster.Member, o cluster.RecreateOptions) error {
	pods = slices.DeleteFunc(slices.Clone(pods), o.Force)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.asked++; w.budget == nil || len(pods) == 0 {
		return nil
	}
	return w.budget()
}

func (w *world) MayRecreate(ctx context.Context, g cluster.Gang, o cluster.RecreateOptions) error {
	return w.MayReplace(ctx, g.Members, o)
}

func (w *world) ReplacePod(_ context.Context, m cluster.Member, o cluster.ReplaceOptions) (cluster.Outcome, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.budget != nil && !o.Force {
		if err := w.budget(); err != nil {
			return "", err
		}
	}
	verb := "evict "
	if o.Force {
		verb = "force "
	}
	for _, g := range w.gangs {
		for k, have := range g.Members {
			if have.PodUID != m.PodUID {
				continue
			}
			if w.kubelets[have.Node] != nil && !o.Force { // nobody there ends it
				changed := !have.Deleting
				g.Members[k].Deleting = true
				w.wrotes(verb+m.PodUID, changed)
				return cluster.Evicted, nil
			}
			w.remake(g, k)
			w.wrotes(verb+m.PodUID, true)
			return cluster.Evicted, nil
		}
	}
	w.wrotes(verb+m.PodUID, false)
	return "", cluster.ErrStale
}

// remake lets the Job controller make a new pod for an index.
func (w *world) remake(g *gang, k int) {
	m := w.pod(g, g.Members[k].Index, "")
	m.Phase, m.PodIP = "Pending", ""
	switch to := w.reserved[fmt.Sprintf("%s/%d", g.Job.UID, m.Index)]; {
	case (to != "" || !w.steered) && w.slips > 0:
		w.slips--
		g.slipped[m.PodUID] = w.slipsTo
	case w.steered: // stamped when it is made
		m.SentTo = to
	}
	g.Members[k], g.bound[m.PodUID] = m, time.Now().Add(w.bindsIn)
}

func (w *world) RecreateGang(ctx context.Context, meant cluster.Gang, o cluster.RecreateOptions) (cluster.Recreation, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.recreateErr != nil {
		return cluster.Recreation{}, w.recreateErr
	}
	g, way := w.gangs[meant.Job.UID], cluster.BySuspend
	if o.FastReplace && !g.Suspended {
		way = cluster.ByFastReplace
	}
	var err error
	if w.apart(func() { err = o.Intent(ctx, way) }); err != nil {
		return cluster.Recreation{}, err
	}
	if way == cluster.BySuspend && !g.Suspended {
		g.Suspended = true
		w.wrotes("suspend", true)
	}
	if w.resumeErr != nil && g.Suspended {
		return cluster.Recreation{}, w.resumeErr()
	}
	delete(w.holding, g.Job.UID)
	if way == cluster.ByFastReplace && w.lets > 0 { // one after the other, as its budget allows
		for _, m := range meant.Members[:min(len(meant.Members), w.lets)] {
			w.remake(g, m.Index)
			w.wrotes("recreate "+m.PodUID, true)
		}
		if len(meant.Members) > w.lets {
			return cluster.Recreation{}, errBudget
		}
		return cluster.Recreation{}, nil
	}
	g.began, g.dead = time.Now().Add(w.bindsIn), map[int]bool{}
	for _, m := range meant.Members {
		for k, have := range g.Members {
			if have.PodUID == m.PodUID {
				w.remake(g, k)
				w.wrotes("recreate "+m.PodUID, true)
			}
		}
	}
	if way == cluster.BySuspend {
		g.Suspended = false
		w.wrotes("resume", true)
	}
	return cluster.Recreation{}, nil
}

func (w *world) ReadBack(ctx context.Context, m cluster.Member, reserved string, equivalent func(string) bool, o cluster.ReplaceOptions) (cluster.Landing, error) {
	w.mu.Lock()
	var now *cluster.Member
	for _, g := range w.gangs {
		for _, have := range g.Members {
			if have.PodUID == m.PodUID {
				now = &have
			}
		}
	}
	w.mu.Unlock()
	switch {
	case now == nil:
		return cluster.Landing{}, cluster.ErrNotFound
	case now.Node == reserved, now.Node == "" && now.SentTo == reserved, now.Node != "" && equivalent(now.Node):
		return cluster.Landing{Node: now.Node}, nil
	}
	if err := o.Intent(ctx); err != nil {
		return cluster.Landing{}, err
	}
	_, err := w.ReplacePod(ctx, m, o)
	return cluster.Landing{Node: now.Node, Sent: err == nil}, err
}

func (w *world) ProbeKubelet(_ context.Context, name string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.kubelets[name]
}

func (w *world) Unfit(node string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ill[node]
}

// Standing says that everything holds that a test does not say something else of.
func (w *world) Standing(e event.Event) (Standing, string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s, said := w.stands[e.Data.Cause.Signal()+" "+e.Data.Target.Node]; said {
		return s, "ended by itself"
	}
	return Holds, ""
}
