package sandbox_test

import (
	"os"
	"strings"
	"testing"

	"github.com/pitcrew/pitcrew/sandbox"
)

func TestAnEmulatedAPIServerLacksWhatLaterVersionsBrought(t *testing.T) {
	s, err := sandbox.Up(t.Context(), sandbox.Options{Emulate: "1.35", Progress: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Stop() })
	list, err := s.Client().Discovery().ServerResourcesForGroupVersion("admissionregistration.k8s.io/v1")
	if err != nil {
		t.Fatal(err)
	}
	webhooks := false
	for _, r := range list.APIResources {
		webhooks = webhooks || r.Name == "mutatingwebhookconfigurations"
		if strings.HasPrefix(r.Name, "mutatingadmissionpolic") {
			t.Errorf("it serves %s, which came with 1.36", r.Name)
		}
	}
	if !webhooks {
		t.Error("it serves no webhooks either")
	}
}
