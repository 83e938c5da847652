package sandbox

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"
)

// Apply does, as the administrator, what kubectl apply --server-side does to each object of the manifests, in their order.
func (s *Sandbox) Apply(ctx context.Context, manifests ...[]byte) error {
	dyn, err := dynamic.NewForConfig(s.Config())
	if err != nil {
		return err
	}
	groups, err := restmapper.GetAPIGroupResources(s.Client().Discovery())
	if err != nil {
		return err
	}
	mapper := restmapper.NewDiscoveryRESTMapper(groups)
	for _, manifest := range manifests {
		for doc := range strings.SplitSeq(string(manifest), "\n---\n") {
			o := &unstructured.Unstructured{}
			if err := yaml.Unmarshal([]byte(doc), &o.Object); err != nil {
				return err
			}
			m, err := mapper.RESTMapping(o.GroupVersionKind().GroupKind(), o.GroupVersionKind().Version)
			if err != nil {
				return err
			}
			var client dynamic.ResourceInterface = dyn.Resource(m.Resource)
			if m.Scope.Name() == meta.RESTScopeNameNamespace {
				client = dyn.Resource(m.Resource).Namespace(o.GetNamespace())
			}
			if _, err := client.Apply(ctx, o.GetName(), o, metav1.ApplyOptions{FieldManager: "sandbox", Force: true}); err != nil {
				return fmt.Errorf("apply %s %s: %w", o.GetKind(), o.GetName(), err)
			}
		}
	}
	return nil
}

// tokenSeconds is how long an account's token lasts: nobody renews it, and no sandbox is up for longer.
const tokenSeconds = 24 * 60 * 60

// AccountKubeconfig returns the path of a kubeconfig with the rights of a service account: its own token, as a pod of that account has.
func (s *Sandbox) AccountKubeconfig(ctx context.Context, namespace, account string) (string, error) {
	lasts := int64(tokenSeconds)
	made, err := s.Client().CoreV1().ServiceAccounts(namespace).CreateToken(ctx, account,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &lasts}}, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("token of %s/%s: %w", namespace, account, err)
	}
	cfg, err := clientcmd.LoadFromFile(s.Kubeconfig())
	if err != nil {
		return "", err
	}
	for _, user := range cfg.AuthInfos {
		user.ClientCertificateData, user.ClientKeyData, user.Token = nil, nil, made.Status.Token
	}
	path := filepath.Join(s.dir, "kubeconfig-"+namespace+"-"+account)
	if err := clientcmd.WriteToFile(*cfg, path); err != nil {
		return "", err
	}
	return path, os.Chmod(path, 0o600)
}
