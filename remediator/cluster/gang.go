package cluster

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	jobsetv1alpha2 "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"github.com/pitcrew/pitcrew/event"
)

// Kind is a kind of workload that Pitcrew can bring back.
type Kind string

// The kinds.
const (
	KindIndexedJob Kind = "indexed-job"
	KindJobSet     Kind = "jobset"
)

// Gang is a workload whose pods only work together, as the watches show it.
type Gang struct {
	Job       event.Job // the Job, or the JobSet that owns the Jobs
	Kind      Kind
	Launcher  bool     // its containers run pitcrew_torch.run, so a single pod can be replaced
	Size      int      // members when complete
	Members   []Member // by index, the current pod of each; an index without a pod is missing here
	Leaving   []Member // pods that are being deleted, or ended and were replaced
	OptIn     bool     // its owner, or else its namespace, wants healing
	Held      string   // why nobody may touch it; empty: nobody asked for that
	Suspended bool
	Finished  string // Complete or Failed; empty while it runs
	Queued    bool   // Kueue admits it, so suspending is Kueue's

	Labels          map[string]string // of the Job or JobSet; shared with the watch: read only
	Annotations     map[string]string // of the Job or JobSet; shared with the watch: read only
	NamespaceLabels map[string]string // shared with the watch: read only
	PriorityClass   string            // of its first pod template that names one
	Restarts        int               // JobSet: whole restarts so far
	RestartsMax     int               // JobSet: that its failure policy allows

	jobs    []*batchv1.Job
	watched *Cluster // whose watches show it
}

// Member is one pod of a gang.
type Member struct {
	Index     int // in the gang: 0 … Size−1
	Namespace string
	Pod       string
	PodUID    string
	Node      string // empty until bound
	SentTo    string // of a pod that is not bound: the only node where the placement policy lets it go; empty: not stamped
	Phase     string // Pending, Running, Succeeded, Failed, Unknown
	Ready     bool
	Deleting  bool
	PodIP     string
	Created   time.Time
	Ended     time.Time        // when its last container ended; zero while it runs
	Requests  map[string]int64 // base units, cpu in thousandths

	OwnerUID        string // of the Job that owns it: what a Reservation names
	Owner           string // that Job's name
	CompletionIndex int    // in that Job
	JobIndex        int    // of that Job in its JobSet; 0 otherwise

	labels   map[string]string // of the pod; shared with the watch: read only
	template *corev1.PodTemplateSpec
	volumes  []volume // of the template's claims
	tracked  bool     // the Job controller has not let go of it yet
	grace    int64    // of its deletion, seconds
}

func (m Member) String() string { return m.Namespace + "/" + m.Pod }

func (m Member) terminal() bool {
	return m.Phase == string(corev1.PodSucceeded) || m.Phase == string(corev1.PodFailed)
}

// GangOfPod finds the gang that a pod belongs to: pod → Job → JobSet, by controller references and their UIDs. ErrUnsupported names the
// owner that Pitcrew does not know how to restart. What the watches lack is read live.
func (c *Cluster) GangOfPod(ctx context.Context, namespace, name string) (Gang, error) {
	pod, ok := cached[*corev1.Pod](c.pods, namespace+"/"+name)
	if !ok {
		var err error
		if pod, err = c.getPod(ctx, namespace, name); err != nil {
			return Gang{}, wrap("pod "+namespace+"/"+name, err)
		}
	}
	return c.gangOf(ctx, pod)
}

// GangOfPodUID is GangOfPod for who knows only the UID, as agents do.
func (c *Cluster) GangOfPodUID(ctx context.Context, uid string) (Gang, error) {
	pods := indexed[*corev1.Pod](c.pods, byUID, uid)
	if len(pods) == 0 {
		return Gang{}, fmt.Errorf("pod with UID %s: %w", uid, ErrNotFound)
	}
	return c.gangOf(ctx, pods[0])
}

// Gang finds a gang by its job: a Job, which may be a JobSet's, or a JobSet. A UID, where the job has one, must match.
func (c *Cluster) Gang(ctx context.Context, job event.Job) (Gang, error) {
	switch job.Kind {
	case "Job":
		j, err := c.job(ctx, job.Namespace, job.Name, job.UID)
		if err != nil {
			return Gang{}, err
		}
		return c.gangOfJob(ctx, j)
	case "JobSet":
		return c.gangOfJobSet(ctx, job.Namespace, job.Name, job.UID)
	}
	return Gang{}, unsupported(job.Kind, job.Namespace, job.Name, "only Job and JobSet are")
}

func unsupported(kind, namespace, name, why string) error {
	return fmt.Errorf("%s %s/%s: %w: %s", kind, namespace, name, ErrUnsupported, why)
}

func staleUID(what, want, have string) error {
	return fmt.Errorf("%s: %w: its UID is %s, not %s", what, ErrStale, have, want)
}

func (c *Cluster) gangOf(ctx context.Context, pod *corev1.Pod) (Gang, error) {
	ref := metav1.GetControllerOf(pod)
	switch {
	case ref == nil:
		return Gang{}, unsupported("Pod", pod.Namespace, pod.Name, "it has no controller that would replace it")
	case ref.Kind != "Job" || !strings.HasPrefix(ref.APIVersion, batchv1.GroupName+"/"):
		return Gang{}, unsupported(ref.Kind, pod.Namespace, ref.Name, "only Job and JobSet are")
	}
	job, err := c.job(ctx, pod.Namespace, ref.Name, string(ref.UID))
	if err != nil {
		return Gang{}, err
	}
	return c.gangOfJob(ctx, job)
}

func (c *Cluster) job(ctx context.Context, namespace, name, uid string) (*batchv1.Job, error) {
	j, ok := cached[*batchv1.Job](c.jobs, namespace+"/"+name)
	if !ok || (uid != "" && string(j.UID) != uid) {
		var err error
		j, err = read(ctx, c, func(ctx context.Context) (*batchv1.Job, error) {
			return c.kube.BatchV1().Jobs(namespace).Get(ctx, name, metav1.GetOptions{})
		})
		if err != nil {
			return nil, wrap("Job "+namespace+"/"+name, err)
		}
	}
	if uid != "" && string(j.UID) != uid {
		return nil, staleUID("Job "+namespace+"/"+name, uid, string(j.UID))
	}
	return j, nil
}

func (c *Cluster) gangOfJob(ctx context.Context, job *batchv1.Job) (Gang, error) {
	if ref := metav1.GetControllerOf(job); ref != nil && ref.Kind == "JobSet" {
		return c.gangOfJobSet(ctx, job.Namespace, ref.Name, string(ref.UID))
	} else if ref != nil && ref.Kind != "CronJob" {
		return Gang{}, unsupported(ref.Kind, job.Namespace, ref.Name, "it owns Job "+job.Name+" and would work against a restart")
	}
	if job.Spec.CompletionMode == nil || *job.Spec.CompletionMode != batchv1.IndexedCompletion {
		return Gang{}, unsupported("Job", job.Namespace, job.Name, "its pods have no index; set completionMode: Indexed")
	}
	g := Gang{Kind: KindIndexedJob, Job: event.Job{APIVersion: "batch/v1", Kind: "Job", Namespace: job.Namespace, Name: job.Name, UID: string(job.UID)},
		Size: completions(&job.Spec), Suspended: job.Spec.Suspend != nil && *job.Spec.Suspend, jobs: []*batchv1.Job{job}}
	for _, cond := range job.Status.Conditions {
		if cond.Status == corev1.ConditionTrue && (cond.Type == batchv1.JobComplete || cond.Type == batchv1.JobFailed) {
			g.Finished = string(cond.Type)
		}
	}
	c.fill(ctx, &g, job.ObjectMeta, func(*batchv1.Job) (int, int) { return 0, 0 })
	return g, nil
}

func (c *Cluster) gangOfJobSet(ctx context.Context, namespace, name, uid string) (Gang, error) {
	set, err := c.jobset(ctx, namespace, name, uid)
	if err != nil {
		return Gang{}, err
	}
	if ref := metav1.GetControllerOf(set); ref != nil {
		return Gang{}, unsupported(ref.Kind, namespace, ref.Name, "it owns JobSet "+name+" and would work against a restart")
	}
	g := Gang{Kind: KindJobSet, Job: event.Job{APIVersion: jobsetv1alpha2.GroupVersion.String(), Kind: "JobSet", Namespace: namespace, Name: name, UID: string(set.UID)},
		Suspended: set.Spec.Suspend != nil && *set.Spec.Suspend, Restarts: int(set.Status.Restarts)}
	if set.Spec.FailurePolicy != nil {
		g.RestartsMax = int(set.Spec.FailurePolicy.MaxRestarts)
	}
	for _, cond := range set.Status.Conditions {
		if cond.Status == metav1.ConditionTrue && (cond.Type == string(jobsetv1alpha2.JobSetCompleted) || cond.Type == string(jobsetv1alpha2.JobSetFailed)) {
			g.Finished = cond.Type
		}
	}
	// A member's index counts through the replicated jobs in their order, then their replicas, then the pods of each.
	var first []int
	for i := range set.Spec.ReplicatedJobs {
		r := &set.Spec.ReplicatedJobs[i]
		for range r.Replicas {
			first = append(first, g.Size)
			g.Size += completions(&r.Template.Spec)
		}
	}
	for _, j := range indexed[*batchv1.Job](c.jobs, byOwner, string(set.UID)) {
		if j.DeletionTimestamp == nil {
			g.jobs = append(g.jobs, j)
		}
	}
	c.fill(ctx, &g, set.ObjectMeta, func(j *batchv1.Job) (global, offset int) {
		global, err := strconv.Atoi(labelOf(j.ObjectMeta, jobsetv1alpha2.JobGlobalIndexKey))
		if err != nil || global < 0 || global >= len(first) {
			return 0, 0
		}
		return global, first[global]
	})
	return g, nil
}

// fill adds what stands on the top object, the namespace, the templates and the pods. place gives a Job's index and its first member's.
func (c *Cluster) fill(ctx context.Context, g *Gang, top metav1.ObjectMeta, place func(*batchv1.Job) (global, offset int)) {
	ns, _ := cached[*corev1.Namespace](c.namespaces, g.Job.Namespace)
	g.Held, g.OptIn = held(top.Annotations), wantsHealing(top, ns)
	if ns != nil && g.Held == "" {
		g.Held = held(ns.Annotations)
	}
	g.Queued = labelOf(top, kueueQueue) != ""
	g.Labels, g.Annotations = top.Labels, top.Annotations
	if ns != nil {
		g.NamespaceLabels = ns.Labels
	}
	g.watched = c
	current := map[int]Member{}
	for _, job := range g.jobs {
		g.Launcher = g.Launcher || runsLauncher(&job.Spec.Template)
		if g.PriorityClass == "" {
			g.PriorityClass = job.Spec.Template.Spec.PriorityClassName
		}
		global, offset := place(job)
		mounted := c.volumesOf(ctx, job.Namespace, &job.Spec.Template.Spec)
		for _, pod := range indexed[*corev1.Pod](c.pods, byOwner, string(job.UID)) {
			m, ok := member(pod, job, global, offset)
			if !ok {
				continue
			}
			m.volumes = mounted
			if host := pod.Spec.NodeSelector[hostnameLabel]; m.Node == "" && host != "" && job.Spec.Template.Spec.NodeSelector[hostnameLabel] == "" {
				m.SentTo = c.nodeOfHost(host)
			}
			if other, taken := current[m.Index]; taken {
				if comparePods(other, m) >= 0 {
					other, m = m, other
				}
				g.Leaving = append(g.Leaving, other)
			}
			current[m.Index] = m
		}
	}
	for _, m := range current {
		g.Members = append(g.Members, m)
	}
	slices.SortFunc(g.Members, func(a, b Member) int { return cmp.Compare(a.Index, b.Index) })
}

// comparePods is greater for the pod that stands for the index now: one that stays, then one that has not ended, then the younger.
func comparePods(a, b Member) int {
	rank := func(m Member) int {
		switch {
		case m.Deleting:
			return 0
		case m.terminal():
			return 1
		}
		return 2
	}
	return cmp.Or(cmp.Compare(rank(a), rank(b)), a.Created.Compare(b.Created), cmp.Compare(a.PodUID, b.PodUID))
}

func member(pod *corev1.Pod, job *batchv1.Job, global, offset int) (Member, bool) {
	at, err := strconv.Atoi(labelOf(pod.ObjectMeta, completionIndex))
	if err != nil {
		return Member{}, false
	}
	m := Member{Index: offset + at, CompletionIndex: at, JobIndex: global, Namespace: pod.Namespace, Pod: pod.Name, PodUID: string(pod.UID),
		Node: pod.Spec.NodeName, Phase: string(pod.Status.Phase), Deleting: pod.DeletionTimestamp != nil, PodIP: pod.Status.PodIP,
		Created: pod.CreationTimestamp.Time, Requests: whole(requests(&pod.Spec)), Owner: job.Name, OwnerUID: string(job.UID), labels: pod.Labels, template: &job.Spec.Template,
		Ready: isReady(pod), tracked: slices.Contains(pod.Finalizers, jobTrackingFinalizer)}
	if pod.DeletionGracePeriodSeconds != nil {
		m.grace = *pod.DeletionGracePeriodSeconds
	}
	if m.terminal() {
		for _, cs := range pod.Status.ContainerStatuses {
			if t := cs.State.Terminated; t != nil && t.FinishedAt.After(m.Ended) {
				m.Ended = t.FinishedAt.Time
			}
		}
	}
	return m, true
}

func completions(spec *batchv1.JobSpec) int {
	switch {
	case spec.Completions != nil:
		return int(*spec.Completions)
	case spec.Parallelism != nil:
		return int(*spec.Parallelism)
	}
	return 1
}

// labelOf reads what controllers write as a label, an annotation or both.
func labelOf(m metav1.ObjectMeta, key string) string {
	if v := m.Annotations[key]; v != "" {
		return v
	}
	return m.Labels[key]
}

func wantsHealing(top metav1.ObjectMeta, ns *corev1.Namespace) bool {
	want := labelOf(top, LabelHeal)
	if want == "" && ns != nil {
		want = ns.Labels[LabelHeal]
	}
	return want == "true" || want == "enabled"
}

func runsLauncher(t *corev1.PodTemplateSpec) bool {
	if labelOf(t.ObjectMeta, AnnotationLauncher) == "true" {
		return true
	}
	for i := range t.Spec.Containers {
		for _, word := range slices.Concat(t.Spec.Containers[i].Command, t.Spec.Containers[i].Args) {
			if strings.Contains(word, "pitcrew_torch.run") {
				return true
			}
		}
	}
	return false
}

func uidOf(s string) types.UID { return types.UID(s) }
