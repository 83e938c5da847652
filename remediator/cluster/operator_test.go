package cluster_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/pitcrew/pitcrew/remediator/cluster"
)

func TestAMissingKubeconfigNamesWhatToSet(t *testing.T) {
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	for name, connect := range map[string]func() error{
		"nodes":  func() error { _, err := cluster.OperatorNodes(""); return err },
		"survey": func() error { _, err := cluster.SurveyOf("", ""); return err },
	} {
		if err := connect(); err == nil || err.Error() != "no kubeconfig found; set --kubeconfig or KUBECONFIG" {
			t.Errorf("%s: %v", name, err)
		}
	}
	file := filepath.Join(t.TempDir(), "absent")
	if _, err := cluster.OperatorNodes(file); err == nil || !strings.Contains(err.Error(), file) || !strings.Contains(err.Error(), "--kubeconfig") {
		t.Errorf("a file that is named and missing: %v", err)
	}
}
