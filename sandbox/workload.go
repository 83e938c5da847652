package sandbox

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/pitcrew/pitcrew/sandbox/freeport"
)

// Launchers of a Workload.
const (
	LauncherPitcrew  = "pitcrew"  // python -m pitcrew_torch.run
	LauncherTorchrun = "torchrun" // stock torchrun, static rendezvous
)

// JobSetResource is what a dynamic client needs to create a JobSet.
var JobSetResource = schema.GroupVersionResource{Group: "jobset.x-k8s.io", Version: "v1alpha2", Resource: "jobsets"}

// Workload describes a training job: Pods pods, each with a whole node's eight GPUs and one training process.
type Workload struct {
	Name       string
	Namespace  string            // "default" when empty
	Labels     map[string]string // on the job and its pods
	Launcher   string            // LauncherPitcrew when empty
	Pods       int               // 2 when 0
	Python     Python            // from FindPython
	Script     string            // the interpreter's trainer in sandbox/trainer when empty
	Args       []string          // of the script
	Env        map[string]string
	MasterPort int // a free port when 0
}

// mount paths inside the pods; on the sandbox's nodes they are rewritten to where the volumes really are.
const (
	pitcrewMount    = "/pitcrew"
	checkpointMount = "/checkpoints"
)

// Job builds an Indexed Job. Its pods prefer to share a rack (tier-0) and need a node each.
//
// The rendezvous address is 127.0.0.1 and a port that is free now, since all nodes are on this machine: only a sandbox can do that.
func (s *Sandbox) Job(w Workload) (*batchv1.Job, error) {
	w, err := w.complete()
	if err != nil {
		return nil, err
	}
	template, err := s.template(w, "batch.kubernetes.io/job-name", "batch.kubernetes.io/controller-uid", corev1.RestartPolicyOnFailure)
	if err != nil {
		return nil, err
	}
	spec := jobSpec(w, template, 1<<20)
	return &batchv1.Job{TypeMeta: metav1.TypeMeta{APIVersion: "batch/v1", Kind: "Job"},
		ObjectMeta: metav1.ObjectMeta{Name: w.Name, Namespace: w.Namespace, Labels: w.Labels}, Spec: spec}, nil
}

// JobSet builds the same as a JobSet with one Job whose first failure makes JobSet recreate the gang.
func (s *Sandbox) JobSet(w Workload) (*unstructured.Unstructured, error) {
	w, err := w.complete()
	if err != nil {
		return nil, err
	}
	template, err := s.template(w, "jobset.sigs.k8s.io/jobset-name", "jobset.sigs.k8s.io/jobset-uid", corev1.RestartPolicyNever)
	if err != nil {
		return nil, err
	}
	spec := jobSpec(w, template, 0)
	job, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&spec)
	if err != nil {
		return nil, err
	}
	labels := map[string]any{}
	for k, v := range w.Labels {
		labels[k] = v
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet",
		"metadata": map[string]any{"name": w.Name, "namespace": w.Namespace, "labels": labels},
		"spec": map[string]any{
			"failurePolicy": map[string]any{"maxRestarts": int64(1000)},
			"replicatedJobs": []any{map[string]any{"name": "workers", "replicas": int64(1),
				"template": map[string]any{"spec": job}}},
		},
	}}, nil
}

func (w Workload) complete() (Workload, error) {
	if w.Namespace == "" {
		w.Namespace = metav1.NamespaceDefault
	}
	if w.Launcher == "" {
		w.Launcher = LauncherPitcrew
	}
	if w.Pods == 0 {
		w.Pods = 2
	}
	if w.Name == "" || w.Python.Path == "" {
		return w, fmt.Errorf("sandbox: a workload needs a name and a Python interpreter")
	}
	if w.MasterPort == 0 {
		port, err := freeport.Claim() // the job keeps it for its whole life, also while none of its pods listens
		if err != nil {
			return w, err
		}
		w.MasterPort = port
	}
	return w, nil
}

func jobSpec(w Workload, template corev1.PodTemplateSpec, backoffLimit int32) batchv1.JobSpec {
	pods, mode, replace := int32(w.Pods), batchv1.IndexedCompletion, batchv1.TerminatingOrFailed
	return batchv1.JobSpec{Parallelism: &pods, Completions: &pods, CompletionMode: &mode, BackoffLimit: &backoffLimit,
		PodReplacementPolicy: &replace, Template: template}
}

// template is the pod: nameLabel tells the gang's pods from others, uidLabel carries the job's UID.
func (s *Sandbox) template(w Workload, nameLabel, uidLabel string, restart corev1.RestartPolicy) (corev1.PodTemplateSpec, error) {
	root, err := RepoRoot()
	if err != nil {
		return corev1.PodTemplateSpec{}, err
	}
	if w.Script == "" {
		script, _ := w.Python.Trainer()
		w.Script = filepath.Join(root, "sandbox", "trainer", script)
	}
	rendezvous := []string{"--nnodes", strconv.Itoa(w.Pods), "--node_rank", "$(JOB_COMPLETION_INDEX)", "--nproc_per_node", "1",
		"--master_addr", "$(MASTER_ADDR)", "--master_port", "$(MASTER_PORT)", w.Script}
	command := map[string][]string{
		LauncherPitcrew:  {w.Python.Path, "-m", "pitcrew_torch.run"},
		LauncherTorchrun: {w.Python.Path, filepath.Join(root, "sandbox", "trainer", "torchrun.py")},
	}[w.Launcher]
	if command == nil {
		return corev1.PodTemplateSpec{}, fmt.Errorf("sandbox: unknown launcher %q: want %s or %s", w.Launcher, LauncherPitcrew, LauncherTorchrun)
	}
	field := func(name, path string) corev1.EnvVar {
		return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}}
	}
	env := []corev1.EnvVar{
		field("POD_NAME", "metadata.name"), field("POD_UID", "metadata.uid"), field("NODE_NAME", "spec.nodeName"),
		field("PITCREW_JOB_UID", "metadata.labels['"+uidLabel+"']"),
		field("JOB_COMPLETION_INDEX", "metadata.annotations['batch.kubernetes.io/job-completion-index']"),
		{Name: "PITCREW_DIR", Value: pitcrewMount}, {Name: "PITCREW_CKPT_DIR", Value: checkpointMount},
		{Name: "MASTER_ADDR", Value: "127.0.0.1"}, {Name: "MASTER_PORT", Value: strconv.Itoa(w.MasterPort)},
		{Name: "GLOO_SOCKET_IFNAME", Value: "lo"}, {Name: "OMP_NUM_THREADS", Value: "1"},
		{Name: "PYTHONPATH", Value: filepath.Join(root, "python")}, {Name: "PYTHONUNBUFFERED", Value: "1"},
	}
	for _, name := range slices.Sorted(maps.Keys(w.Env)) {
		env = append(env, corev1.EnvVar{Name: name, Value: w.Env[name]})
	}
	grace, create, token := int64(1), corev1.HostPathDirectoryOrCreate, false
	labels := map[string]string{}
	for k, v := range w.Labels {
		labels[k] = v
	}
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: labels},
		Spec: corev1.PodSpec{
			RestartPolicy: restart, TerminationGracePeriodSeconds: &grace, AutomountServiceAccountToken: &token,
			Affinity: &corev1.Affinity{PodAffinity: &corev1.PodAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{{
				Weight: 100, PodAffinityTerm: corev1.PodAffinityTerm{TopologyKey: "fabric.topograph.run/tier-0",
					LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{nameLabel: w.Name}}}}}}},
			Containers: []corev1.Container{{
				Name: "train", Image: "pitcrew.dev/sandbox-host", Command: command, Args: append(rendezvous, w.Args...), Env: env,
				Resources:    corev1.ResourceRequirements{Limits: corev1.ResourceList{gpuResource: resource.MustParse("8")}},
				VolumeMounts: []corev1.VolumeMount{{Name: "pitcrew", MountPath: pitcrewMount}, {Name: "checkpoints", MountPath: checkpointMount}},
			}},
			Volumes: []corev1.Volume{
				{Name: "pitcrew", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}}},
				{Name: "checkpoints", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{
					Path: filepath.Join(s.Checkpoints(), w.Namespace+"-"+w.Name), Type: &create}}},
			},
		},
	}, nil
}
