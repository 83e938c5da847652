package page

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/fleet"
	"github.com/pitcrew/pitcrew/remediator/policy"
)

// nodesPerPage bounds the nodes that one page draws.
const nodesPerPage = 200

// nodeStates are how a node may stand, the worst first. The first that holds is shown.
var nodeStates = []struct {
	Key, Name string
	holds     func(*fleet.Node, []ill) bool
}{
	{"lost", "Not ready", func(n *fleet.Node, _ []ill) bool { return !n.Ready || n.OutOfService != "" }},
	{"quarantined", "Quarantined by Pitcrew", func(n *fleet.Node, _ []ill) bool { return n.Quarantined != "" }},
	{"faulty", "Reports a fault", func(_ *fleet.Node, said []ill) bool {
		return slices.ContainsFunc(said, func(i ill) bool { return i.Severity.AtLeast(event.Critical) })
	}},
	{"warned", "Reports a warning", func(_ *fleet.Node, said []ill) bool {
		return slices.ContainsFunc(said, func(i ill) bool { return i.Severity.AtLeast(event.Warning) })
	}},
	{"cordoned", "Cordoned by others", func(n *fleet.Node, _ []ill) bool { return n.Unschedulable }},
	{"held", "On hold", func(n *fleet.Node, _ []ill) bool { return n.Held != "" }},
	{"reserved", "Reserved", func(n *fleet.Node, _ []ill) bool { return n.Reserved != "" }},
	{"well", "Well", func(*fleet.Node, []ill) bool { return true }},
}

// gpus are the GPUs of a node that are drawn alike. Kubernetes counts GPUs and does not say which are in use, so they are drawn in the order
// faulty, used, free.
type gpus struct{ Class, Path string }

// rank is the number of a rank on a GPU.
type rank struct {
	X, Y int
	N    string
}

// nodeView is one node of the fleet.
type nodeView struct {
	Name, State, StateName string
	GPUs                   []gpus
	Numbers                []rank
	W, H                   int
	Title                  string // everything about it, in words
	Incident               string
	Ranks                  string // of the chosen job
	Used, Total            int64
}

type rackView struct {
	Name   string
	Nodes  []nodeView
	Counts string
	Worst  string
	worst  int
	all    []standing
}

// standing is a node of a rack and how it stands.
type standing struct {
	node  *fleet.Node
	state int
	used  int64
	said  []ill
	at    *place
}

type fleetView struct {
	head
	States     []tab
	Racks      []rackView
	Nodes      int
	GPUs, Used int64
	Text, Only string
	Job        string
	Jobs       []string
	JobText    string
	JobMissing bool
	Newer      string
	Older      string
	First      int
	Last       int
	Synced     bool
}

func jobName(j event.Job) string { return j.Kind + "/" + j.Namespace + "/" + j.Name }

func fleetLink(only, job string, page int) string {
	v := url.Values{}
	if only != "" {
		v.Set("state", only)
	}
	if job != "" {
		v.Set("job", job)
	}
	if page > 0 {
		v.Set("page", strconv.Itoa(page))
	}
	if len(v) == 0 {
		return "/fleet"
	}
	return "/fleet?" + v.Encode()
}

// place is where ranks of the chosen job run.
type place struct {
	ranks []string
	pods  []string
}

// maxJobs bounds the jobs that are offered.
const maxJobs = 500

func (p *Page) serveFleet(w http.ResponseWriter, r *http.Request, who *Person) {
	in := r.URL.Query()
	v := fleetView{head: p.head(w, r, who, "Fleet"), Text: clean(in.Get("q"), 100), Only: in.Get("state"), Job: clean(in.Get("job"), 300)}
	v.Nav, v.Live = "fleet", true
	for _, j := range p.o.Nodes.Jobs() {
		if len(v.Jobs) < maxJobs {
			v.Jobs = append(v.Jobs, clean(jobName(j), 300))
		}
	}
	ranks := p.ranks(r, &v)
	all := p.o.Nodes.Fleet()
	v.Synced = len(all) > 0
	counts := make([]int, len(nodeStates))
	racks := map[string]*rackView{}
	for _, n := range all {
		said := p.nodes.of(n.Name, n.BootID)
		state := slices.IndexFunc(nodeStates, func(s struct {
			Key, Name string
			holds     func(*fleet.Node, []ill) bool
		}) bool {
			return s.holds(n, said)
		})
		used := max(0, n.GPUs.Total-n.Free[n.GPUs.Resource])
		v.GPUs, v.Used = v.GPUs+n.GPUs.Total, v.Used+used
		counts[state]++
		at := ranks[n.Name]
		if v.Only != "" && nodeStates[state].Key != v.Only || v.Only == "" && v.Job != "" && !v.JobMissing && at == nil || !holds(n, v.Text) {
			continue
		}
		rack := cmp.Or(rackName(n), "no rack label")
		of := racks[rack]
		if of == nil {
			of = &rackView{Name: rack, worst: len(nodeStates)}
			racks[rack] = of
		}
		v.Nodes++
		of.worst = min(of.worst, state)
		of.all = append(of.all, standing{n, state, used, said, at})
	}
	for k, s := range nodeStates {
		v.States = append(v.States, tab{s.Name, fleetLink(s.Key, v.Job, 0), counts[k], v.Only == s.Key})
	}
	for _, of := range racks {
		of.Worst = nodeStates[of.worst].Key
		of.Counts = tally(of.all)
		slices.SortStableFunc(of.all, func(a, b standing) int { return a.state - b.state }) // by name they are already
		v.Racks = append(v.Racks, *of)
	}
	slices.SortFunc(v.Racks, func(a, b rackView) int { return cmp.Or(a.worst-b.worst, strings.Compare(a.Name, b.Name)) })
	page, _ := strconv.Atoi(in.Get("page"))
	v.cut(max(0, min(page, 1<<20)))
	p.show(w, r, http.StatusOK, "fleet", v)
}

// cut keeps one page of the racks' nodes.
func (v *fleetView) cut(page int) {
	page = min(page, max(0, (v.Nodes-1)/nodesPerPage))
	from, to := page*nodesPerPage, min((page+1)*nodesPerPage, v.Nodes)
	var out []rackView
	at := 0
	for _, rack := range v.Racks {
		lo, hi := max(from-at, 0), min(to-at, len(rack.all))
		at += len(rack.all)
		if lo < hi {
			for _, s := range rack.all[lo:hi] {
				rack.Nodes = append(rack.Nodes, s.view())
			}
			out = append(out, rack)
		}
	}
	v.Racks, v.First, v.Last = out, from+1, to
	if page > 0 {
		v.Newer = fleetLink(v.Only, v.Job, page-1)
		if page == 1 && v.Newer == "/fleet" {
			v.Newer = "/fleet?page=0"
		}
	}
	if to < v.Nodes {
		v.Older = fleetLink(v.Only, v.Job, page+1)
	}
	if v.Text != "" {
		more := url.QueryEscape(v.Text)
		for _, link := range []*string{&v.Newer, &v.Older} {
			switch {
			case *link == "":
			case strings.Contains(*link, "?"):
				*link += "&q=" + more
			default:
				*link += "?q=" + more
			}
		}
	}
}

// ranks finds where the chosen job's ranks run, by node.
func (p *Page) ranks(r *http.Request, v *fleetView) map[string]*place {
	kind, rest, _ := strings.Cut(v.Job, "/")
	namespace, name, ok := strings.Cut(rest, "/")
	if !ok {
		v.JobMissing = v.Job != ""
		return nil
	}
	g, err := p.o.Nodes.Gang(r.Context(), event.Job{Kind: kind, Namespace: namespace, Name: name})
	if err != nil {
		v.JobMissing = true
		return nil
	}
	each := 1
	v.JobText = fmt.Sprintf("%d of %s", len(g.Members), count(g.Size, "pod"))
	if a, err := p.o.Attempts(r.Context(), g.Job.UID); err == nil && a.NProc > 0 {
		each = a.NProc
		v.JobText += fmt.Sprintf(", %s, attempt %d", count(a.WorldSize, "rank"), a.Attempt)
	}
	out := map[string]*place{}
	for _, m := range g.Members {
		if m.Node == "" {
			continue
		}
		at := out[m.Node]
		if at == nil {
			at = &place{}
			out[m.Node] = at
		}
		at.pods = append(at.pods, m.Pod)
		for k := range min(each, 16) {
			at.ranks = append(at.ranks, strconv.Itoa(m.Index*each+k))
		}
	}
	return out
}

func rackName(n *fleet.Node) string {
	_, value, _ := strings.Cut(policy.RackOf(n.Labels), "=")
	if value != "" {
		return "rack " + clean(value, maxCell)
	}
	if n.Pool != "" {
		return "pool " + clean(n.Pool, maxCell)
	}
	return ""
}

func holds(n *fleet.Node, text string) bool {
	for _, word := range strings.Fields(strings.ToLower(text)) {
		if !strings.Contains(strings.ToLower(n.Name+" "+rackName(n)+" "+n.Quarantined), word) {
			return false
		}
	}
	return true
}

func tally(nodes []standing) string {
	n := make([]int, len(nodeStates))
	for _, x := range nodes {
		n[x.state]++
	}
	var parts []string
	for k, s := range nodeStates {
		if n[k] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n[k], strings.ToLower(s.Name)))
		}
	}
	return strings.Join(parts, ", ")
}

// view is what the page draws of a node.
func (s standing) view() nodeView {
	n, state, used, said, at := s.node, s.state, s.used, s.said, s.at
	x := nodeView{Name: n.Name, State: nodeStates[state].Key, StateName: nodeStates[state].Name, Incident: cmp.Or(n.Quarantined, n.Reserved), Used: used, Total: n.GPUs.Total}
	about := []string{n.Name, x.StateName, fmt.Sprintf("%d of %d GPUs in use", used, n.GPUs.Total)}
	add := func(what, text string) {
		if text != "" {
			about = append(about, what+" "+clean(text, maxCell))
		}
	}
	add("incident", n.Quarantined)
	add("reserved for", n.Reserved)
	add("held:", n.Held)
	ill := map[string]bool{}
	for k, i := range said {
		if i.GPU != "" && i.Severity.AtLeast(event.Warning) {
			ill[i.GPU] = true
		}
		if k < 8 {
			add("reports", i.Key)
		}
	}
	if at != nil {
		x.Ranks = strings.Join(at.ranks, ", ")
		add("pods", strings.Join(at.pods, ", "))
		add("ranks", x.Ranks)
	}
	x.Title = strings.Join(about, "; ")
	x.draw(len(ill), at)
	return x
}

const gpuSize = 20

// maxDrawn bounds the GPUs of a node that are drawn.
const maxDrawn = 16

// draw places the GPUs of a node in rows of four, and the ranks of the chosen job on the first of them.
func (x *nodeView) draw(ill int, at *place) {
	n := int(min(x.Total, maxDrawn))
	corner := func(k int) (int, int) { return k % 4 * (gpuSize + 2), k / 4 * (gpuSize + 2) }
	bound := []int{min(ill, n), min(max(ill, int(x.Used)), n), n}
	from := 0
	for c, class := range []string{"ill", "used", "free"} {
		var path strings.Builder
		for ; from < bound[c]; from++ {
			left, top := corner(from)
			fmt.Fprintf(&path, "M%d %dh%dv%dh-%dz", left, top, gpuSize, gpuSize, gpuSize)
		}
		if path.Len() > 0 {
			x.GPUs = append(x.GPUs, gpus{class, path.String()})
		}
	}
	if at != nil {
		for k := range min(len(at.ranks), n) {
			left, top := corner(k)
			x.Numbers = append(x.Numbers, rank{left + gpuSize/2, top + gpuSize - 6, at.ranks[k]})
		}
	}
	x.W, x.H = 4*(gpuSize+2)-2, (n+3)/4*(gpuSize+2)-2
}
