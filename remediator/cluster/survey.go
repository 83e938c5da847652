package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Survey reads a cluster with an operator's own rights, for `pitcrew doctor`. It changes nothing. Each method is one question, so that missing
// rights for one leave the others answered. Errors wrap those of this package.
type Survey struct{ c *Cluster }

// SurveyOf connects with a kubeconfig as kubectl does. An empty namespace is Pitcrew's default.
func SurveyOf(kubeconfig, namespace string) (*Survey, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = kubeconfig
	cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		return nil, noKubeconfig(err)
	}
	return SurveyAt(cfg, namespace)
}

// SurveyAt is SurveyOf for a client configuration.
func SurveyAt(cfg *rest.Config, namespace string) (*Survey, error) {
	c, err := New(cfg, Options{Namespace: namespace})
	if err != nil {
		return nil, err
	}
	return &Survey{c}, nil
}

// Namespace is Pitcrew's namespace.
func (s *Survey) Namespace() string { return s.c.opts.Namespace }

// Server returns the address of the API server and the version of Kubernetes that it serves.
func (s *Survey) Server(ctx context.Context) (address, version string, err error) {
	v, err := read(ctx, s.c, func(ctx context.Context) (info apiversion.Info, err error) {
		raw, err := s.c.kube.Discovery().RESTClient().Get().AbsPath("/version").DoRaw(ctx)
		if err != nil {
			return info, err
		}
		return info, json.Unmarshal(raw, &info)
	})
	version = v.GitVersion
	if v.EmulationMinor != "" { // what it serves; a development build has no other version
		version = "v" + v.EmulationMajor + "." + v.EmulationMinor
	}
	return s.c.cfg.Host, version, wrap("API server "+s.c.cfg.Host, err)
}

// Leader returns the remediator that holds the lease, and when it renewed it last. ErrNotFound: none has ever led.
func (s *Survey) Leader(ctx context.Context) (holder string, renewed time.Time, valid bool, err error) {
	l, err := s.c.kube.CoordinationV1().Leases(s.c.opts.Namespace).Get(ctx, fieldManager, metav1.GetOptions{})
	if err != nil {
		return "", time.Time{}, false, wrap("lease "+s.c.opts.Namespace+"/"+fieldManager, err)
	}
	if l.Spec.HolderIdentity != nil {
		holder = *l.Spec.HolderIdentity
	}
	if l.Spec.RenewTime != nil {
		renewed = l.Spec.RenewTime.Time
	}
	if l.Spec.LeaseDurationSeconds != nil {
		valid = holder != "" && time.Since(renewed) < time.Duration(*l.Spec.LeaseDurationSeconds)*time.Second
	}
	return holder, renewed, valid, nil
}

// Steering reports how replacements are steered; if they are not, why.
func (s *Survey) Steering(ctx context.Context) (how Steering, unsteered string, err error) {
	how, err = s.c.DecideSteering(ctx)
	var u *Unsteered
	if errors.As(err, &u) {
		return SteerCordon, u.Error(), nil
	}
	return how, "", err
}

// JobSet reports whether the API server serves JobSets.
func (s *Survey) JobSet(ctx context.Context) (bool, error) { return s.c.served(ctx, jobsetResource) }

// Fleet counts nodes: all, those with GPUs, those that Pitcrew has quarantined.
type Fleet struct{ Nodes, GPU, Quarantined int }

// Fleet lists the nodes, in pages.
func (s *Survey) Fleet(ctx context.Context) (f Fleet, err error) {
	page := metav1.ListOptions{Limit: 500}
	for {
		list, err := s.c.kube.CoreV1().Nodes().List(ctx, page)
		if err != nil {
			return f, wrap("list nodes", err)
		}
		for i := range list.Items {
			n := &list.Items[i]
			f.Nodes++
			if q := n.Status.Capacity["nvidia.com/gpu"]; !q.IsZero() {
				f.GPU++
			}
			if taintValue(n, TaintQuarantine) != "" {
				f.Quarantined++
			}
		}
		if page.Continue = list.Continue; page.Continue == "" {
			return f, nil
		}
	}
}

// HealedNamespaces lists the namespaces whose jobs are healed without a label of their own.
func (s *Survey) HealedNamespaces(ctx context.Context) (names []string, err error) {
	list, err := s.c.kube.CoreV1().Namespaces().List(ctx, metav1.ListOptions{LabelSelector: LabelHeal + " in (true, enabled)"})
	if err != nil {
		return nil, wrap("list namespaces", err)
	}
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return names, nil
}

// Role reports whether a ClusterRoleBinding of Pitcrew exists: "observe" or "enforce".
func (s *Survey) Role(ctx context.Context, role string) (bool, error) {
	_, err := s.c.kube.RbacV1().ClusterRoleBindings().Get(ctx, fieldManager+"-"+role, metav1.GetOptions{})
	if err = wrap("ClusterRoleBinding "+fieldManager+"-"+role, err); errors.Is(err, ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}
