package cluster

import (
	"errors"
	"fmt"

	"k8s.io/client-go/kubernetes"
	typedcore "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// NodeClient reads and patches nodes with an operator's own rights.
type NodeClient = typedcore.NodeInterface

// OperatorNodes connects with a kubeconfig as kubectl does: the file given, else KUBECONFIG, else ~/.kube/config.
func OperatorNodes(kubeconfig string) (NodeClient, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = kubeconfig
	cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		return nil, noKubeconfig(err)
	}
	return nodesOf(cfg)
}

// noKubeconfig names the remedy. client-go's own words for a missing file advise variables that nothing here reads.
func noKubeconfig(err error) error {
	if clientcmd.IsEmptyConfig(err) {
		return errors.New("no kubeconfig found; set --kubeconfig or KUBECONFIG")
	}
	return fmt.Errorf("kubeconfig: %w; set --kubeconfig or KUBECONFIG", err)
}

// NodesAt connects to an API server that asks for no credentials.
func NodesAt(address string) (NodeClient, error) { return nodesOf(&rest.Config{Host: address}) }

func nodesOf(cfg *rest.Config) (NodeClient, error) {
	kube, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	return kube.CoreV1().Nodes(), nil
}
