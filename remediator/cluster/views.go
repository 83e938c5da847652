package cluster

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pitcrew/pitcrew/remediator/fleet"
	"github.com/pitcrew/pitcrew/remediator/placement"
)

// views are the nodes as everyone but this package sees them. The watch handlers keep them: a change of a node, of a pod on it or of a
// reservation of it concerns that one node. What a node says is read at once; what its pods leave free is summed as they come and go and
// put into a view when someone reads it, so that the first list of 100,000 pods builds 5,000 views and not 100,000.
//
// Lock order: views.mu, then the caches' own and signals.mu.
type views struct {
	mu     sync.Mutex
	at     map[string]*spot
	names  []string // of the nodes there are, sorted
	list   []*fleet.Node
	stale  map[string]*spot // whose view is out of date
	counts map[types.UID]claim
	pledge map[string]string // reservation to node
	vector vectors
	tally  *fleet.Tally

	waiting map[int]func(*fleet.Node)
	last    int // key in waiting

	held func(node string, without map[types.UID]bool) map[string]int64 // by reservations whose pod is not there yet
}

// spot is one node, or the name of one that pods are bound to before it is seen.
type spot struct {
	base      *fleet.Node // without Free; nil while the node is not there
	alloc     map[string]int64
	used      map[string]int64
	promised  int // reservations of it
	view      *fleet.Node
	condition string
	lastFault time.Time
}

// claim is what a pod takes on a node.
type claim struct {
	node  string
	asked map[string]int64 // shared with every pod that asks for the same
}

func newViews(held func(string, map[types.UID]bool) map[string]int64) *views {
	return &views{at: map[string]*spot{}, stale: map[string]*spot{}, counts: map[types.UID]claim{}, pledge: map[string]string{}, vector: vectors{}, held: held,
		tally: fleet.NewTally(placement.Tiers()...), waiting: map[int]func(*fleet.Node){}}
}

func (v *views) spot(name string) *spot {
	s := v.at[name]
	if s == nil {
		s = &spot{used: map[string]int64{}}
		v.at[name] = s
	}
	return s
}

// touch puts a node's view out of date. The caller holds mu. While someone waits for a usable node the view is built at once, to see whether it
// became one.
func (v *views) touch(name string, s *spot) {
	if s.base == nil {
		return
	}
	v.stale[name], v.list = s, nil
	if len(v.waiting) == 0 {
		return
	}
	was := s.view
	v.refresh(name, s)
	if !moreUsable(was, s.view) {
		return
	}
	for _, tell := range v.waiting {
		tell(s.view)
	}
}

// onUsable calls tell with each node that became more usable, until the function it returns is called, which calls stop as well.
func (v *views) onUsable(tell func(*fleet.Node), stop func()) (cancel func()) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for name, s := range v.stale { // what changed before is not told
		v.refresh(name, s)
	}
	v.last++
	key := v.last
	v.waiting[key] = tell
	return func() {
		v.mu.Lock()
		delete(v.waiting, key)
		v.mu.Unlock()
		stop()
	}
}

// moreUsable reports that a pod may find a place on a node that it would not have found before.
func moreUsable(was, is *fleet.Node) bool {
	if was == nil {
		return true
	}
	if is.Ready && !was.Ready || !is.Unschedulable && was.Unschedulable || is.Reserved != was.Reserved || is.Quarantined != was.Quarantined ||
		is.Held == "" && was.Held != "" || is.Condition == "" && was.Condition != "" || !maps.Equal(is.Labels, was.Labels) {
		return true
	}
	for _, t := range was.Taints {
		if !slices.Contains(is.Taints, t) {
			return true
		}
	}
	for r, free := range is.Free {
		if free > was.Free[r] {
			return true
		}
	}
	return false
}

// node takes in a node as it is now.
func (v *views) node(n *corev1.Node) {
	base := baseView(n)
	alloc := whole(n.Status.Allocatable)
	v.mu.Lock()
	defer v.mu.Unlock()
	s := v.spot(n.Name)
	if s.base == nil {
		at, _ := slices.BinarySearch(v.names, n.Name)
		v.names = slices.Insert(v.names, at, n.Name)
	}
	base.Condition, base.LastFault = s.condition, s.lastFault
	base.GPUs = gpusOf(alloc)
	v.tally.Replace(s.base, base)
	s.base, s.alloc = base, alloc
	v.touch(n.Name, s)
}

// nodeGone forgets a node. Its pods are counted on until they are gone as well.
func (v *views) nodeGone(name string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	s := v.at[name]
	if s == nil || s.base == nil {
		return
	}
	v.tally.Replace(s.base, nil)
	if at, ok := slices.BinarySearch(v.names, name); ok {
		v.names = slices.Delete(v.names, at, at+1)
	}
	s.base, s.view, s.alloc, s.condition, s.lastFault = nil, nil, nil, "", time.Time{}
	delete(v.stale, name)
	v.list = nil
	v.tidy(name, s)
}

// tidy forgets a name that nothing refers to.
func (v *views) tidy(name string, s *spot) {
	if s.base == nil && len(s.used) == 0 && s.promised == 0 {
		delete(v.at, name)
	}
}

// pod counts what a pod takes now, on the node where it is now: nothing, if it has ended.
func (v *views) pod(p *corev1.Pod) { v.place(p.UID, placeOf(p), asksFor(p), ended(p)) }

func (v *views) place(uid types.UID, node string, asked corev1.ResourceList, ended bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if node == "" || ended {
		v.dropPod(uid)
		return
	}
	now := claim{node, v.vector.of(asked)}
	was, known := v.counts[uid]
	if known && was.node == now.node && maps.Equal(was.asked, now.asked) {
		v.pledged(node) // its state may end or revive a reservation
		return
	}
	v.dropPod(uid)
	v.counts[uid] = now
	s := v.spot(node)
	sum(s.used, now.asked, 1)
	v.touch(node, s)
}

func (v *views) podGone(uid types.UID) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.dropPod(uid)
}

func (v *views) dropPod(uid types.UID) {
	was, known := v.counts[uid]
	if !known {
		return
	}
	delete(v.counts, uid)
	s := v.spot(was.node)
	sum(s.used, was.asked, -1)
	v.touch(was.node, s)
	v.tidy(was.node, s)
}

// pledged puts the view of a node that is reserved out of date.
func (v *views) pledged(node string) {
	if s := v.at[node]; s != nil && s.promised > 0 {
		v.touch(node, s)
	}
}

// promise takes in that a reservation is for a node now; empty: that it is gone.
func (v *views) promise(reservation, node string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if was, ok := v.pledge[reservation]; ok {
		delete(v.pledge, reservation)
		s := v.spot(was)
		s.promised--
		v.touch(was, s)
		v.tidy(was, s)
	}
	if node != "" {
		v.pledge[reservation] = node
		s := v.spot(node)
		s.promised++
		v.touch(node, s)
	}
}

// sum adds what is asked for, or takes it back. A resource that nobody uses any more is dropped, so that an empty map means an empty node.
func sum(to, asked map[string]int64, by int64) {
	for name, q := range asked {
		if to[name] += by * q; to[name] == 0 {
			delete(to, name)
		}
	}
}

// get returns a node's view; nil if the node is not there.
func (v *views) get(name string) *fleet.Node {
	v.mu.Lock()
	defer v.mu.Unlock()
	s := v.at[name]
	if s == nil || s.base == nil {
		return nil
	}
	v.refresh(name, s)
	return s.view
}

func (v *views) refresh(name string, s *spot) {
	if _, old := v.stale[name]; old || s.view == nil {
		s.view = v.build(name, s, nil)
		delete(v.stale, name)
	}
}

// build makes the view of a node, without what some pods take of it. The caller holds mu.
func (v *views) build(name string, s *spot, without map[types.UID]bool) *fleet.Node {
	view := *s.base
	view.Free = maps.Clone(s.alloc)
	take := func(asked map[string]int64, by int64) {
		for r, q := range asked {
			if _, ok := view.Free[r]; ok {
				view.Free[r] -= by * q
			}
		}
	}
	take(s.used, 1)
	for uid := range without {
		if c, ok := v.counts[uid]; ok && c.node == name {
			take(c.asked, -1)
		}
	}
	if s.promised > 0 {
		take(v.held(name, without), 1)
	}
	return &view
}

// all returns every view by name. The slice is the same until a view changes.
func (v *views) all() []*fleet.Node {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.sorted()
}

func (v *views) sorted() []*fleet.Node {
	if v.list != nil && len(v.stale) == 0 {
		return v.list
	}
	for name, s := range v.stale {
		v.refresh(name, s)
	}
	list := make([]*fleet.Node, 0, len(v.names))
	for _, name := range v.names {
		list = append(list, v.at[name].view)
	}
	v.list = list
	return list
}

// note changes what is known of a node from elsewhere than its object.
func (v *views) note(name string, change func(*spot)) {
	v.mu.Lock()
	defer v.mu.Unlock()
	s := v.at[name]
	if s == nil || s.base == nil {
		return
	}
	wasCondition, wasFault := s.condition, s.lastFault
	if change(s); s.condition == wasCondition && s.lastFault.Equal(wasFault) {
		return
	}
	base := *s.base
	base.Condition, base.LastFault = s.condition, s.lastFault
	s.base = &base
	v.touch(name, s)
}

// baseView is a node without what its pods leave free.
func baseView(n *corev1.Node) *fleet.Node {
	taints := make([]fleet.Taint, 0, len(n.Spec.Taints))
	for _, t := range n.Spec.Taints {
		taints = append(taints, fleet.Taint{Key: t.Key, Value: t.Value, Effect: string(t.Effect)})
	}
	return &fleet.Node{Name: n.Name, UID: string(n.UID), BootID: n.Status.NodeInfo.BootID, Pool: fleet.PoolOf(n.Labels), Labels: n.Labels, Annotations: n.Annotations,
		Ready: conditionOf(n, corev1.NodeReady) == corev1.ConditionTrue, Unschedulable: n.Spec.Unschedulable, OutOfService: fleet.OutOfService(taints),
		Quarantined: taintValue(n, TaintQuarantine), FoundCordoned: n.Annotations[AnnotationCordon] == cordonFound, Reserved: taintValue(n, TaintReserved),
		Held: held(n.Annotations), Healthy: string(conditionOf(n, ConditionHealthy)), KubeletAddr: kubeletAddr(n), Taints: taints}
}

// Node returns what the watches know of a node; ErrNotFound if they know none of that name.
func (c *Cluster) Node(name string) (*fleet.Node, error) {
	if n := c.views.get(name); n != nil {
		return n, nil
	}
	return nil, fmt.Errorf("node %s: %w", name, ErrNotFound)
}

// Fleet returns every node, sorted by name. It is the same slice until something changes, and must not be modified.
func (c *Cluster) Fleet() []*fleet.Node { return c.views.all() }

// FleetWithout is Fleet with the room that some pods take, and what is reserved for them, counted as free: they are what is to be placed.
// Only the nodes concerned have another view than in Fleet. The slice must not be modified.
func (c *Cluster) FleetWithout(podUIDs ...string) []*fleet.Node {
	v := c.views
	without := map[types.UID]bool{}
	concerned := map[string]bool{}
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, uid := range podUIDs {
		without[types.UID(uid)] = true
		if at, ok := v.counts[types.UID(uid)]; ok {
			concerned[at.node] = true
		}
		for _, p := range indexed[*corev1.Pod](c.pods, byUID, uid) {
			for _, node := range c.reservedNodes(p) {
				concerned[node] = true
			}
		}
	}
	list := v.sorted()
	if len(concerned) == 0 {
		return list
	}
	list = slices.Clone(list)
	for node := range concerned {
		if at, ok := slices.BinarySearch(v.names, node); ok {
			list[at] = v.build(node, v.at[node], without)
		}
	}
	return list
}

// Tally counts nodes and quarantines, of all nodes, by pool and by each of placement.Tiers. It is kept up to date by the watch.
func (c *Cluster) Tally() *fleet.Tally { return c.views.tally }

// NoteCondition says what is wrong with a node's hardware by the word of its agent; empty: nothing. A node that is not watched is ignored.
func (c *Cluster) NoteCondition(node, condition string) {
	c.views.note(node, func(s *spot) { s.condition = condition })
}

// NoteFault says when a node had a fault. An earlier time than the one known changes nothing.
func (c *Cluster) NoteFault(node string, at time.Time) {
	c.views.note(node, func(s *spot) {
		if at.After(s.lastFault) {
			s.lastFault = at
		}
	})
}

// maxVectors bounds what is shared; what is forgotten is only stored twice.
const maxVectors = 10_000

// vectors keeps one copy of each combination of requests: a cluster has a few dozen of them and 100,000 pods.
type vectors map[string]map[string]int64

func (k vectors) of(list corev1.ResourceList) map[string]int64 {
	var key strings.Builder
	names := make([]string, 0, 8)
	for name := range list {
		names = append(names, string(name))
	}
	slices.Sort(names)
	for _, name := range names {
		q := list[corev1.ResourceName(name)]
		fmt.Fprintf(&key, "%s=%d,", name, quantity(corev1.ResourceName(name), q))
	}
	if asked, ok := k[key.String()]; ok {
		return asked
	}
	if len(k) >= maxVectors {
		clear(k)
	}
	asked := whole(list)
	asked[string(corev1.ResourcePods)] = 1
	k[key.String()] = asked
	return asked
}

// reservedNodes are the nodes that are reserved for a pod.
func (c *Cluster) reservedNodes(p *corev1.Pod) (nodes []string) {
	for _, o := range c.reservations.GetStore().List() {
		if m, ok := o.(*corev1.ConfigMap); ok && reservedFor(m, p) {
			nodes = append(nodes, m.Data[keyNode])
		}
	}
	return nodes
}

// promised sums what is reserved on a node for pods that are not there yet. What is reserved for one of the pods without is free for it.
func (c *Cluster) promised(node string, without map[types.UID]bool) map[string]int64 {
	var bound []*corev1.Pod // only those can fulfil a reservation
	for _, p := range append(indexed[*corev1.Pod](c.pods, byNode, node), indexed[*corev1.Pod](c.pods, byNode, nominated+node)...) {
		if !ended(p) && p.DeletionTimestamp == nil && metav1.GetControllerOf(p) != nil && !without[p.UID] {
			bound = append(bound, p)
		}
	}
	for uid := range without {
		bound = append(bound, indexed[*corev1.Pod](c.pods, byUID, string(uid))...)
	}
	total := map[string]int64{}
	for _, m := range indexed[*corev1.ConfigMap](c.reservations, byNode, node) {
		if !slices.ContainsFunc(bound, func(p *corev1.Pod) bool { return reservedFor(m, p) }) {
			sum(total, requestsOf(m), 1)
		}
	}
	return total
}
