package collector

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/pitcrew/pitcrew/detector/class"
)

func TestAGatewayTakesUpTheClassesInItsStateFolderAndCountsThem(t *testing.T) {
	dir := t.TempDir()
	surround(t, dir, "nats://127.0.0.1:1")
	if err := os.Unsetenv(ClassesEnv); err != nil { // surround sets it back
		t.Fatal(err)
	}
	s, err := class.New(class.Config{})
	if err != nil {
		t.Fatal(err)
	}
	for run := range 3 {
		s.Observe(class.Key{Signature: class.Signature{Model: "gpt-124m"}, Signal: "pitcrew.train.step.duration"}, fmt.Sprint("job-", run), 1, 1, 0.2)
	}
	if err := errors.Join(os.MkdirAll(filepath.Join(dir, "state"), 0o700), s.Save(filepath.Join(dir, "state", "classes.snapshot"))); err != nil {
		t.Fatal(err)
	}
	defer run(t, Gateway)()
	resp, err := http.Get("http://" + os.Getenv("PITCREW_SELF") + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`(?m)^pitcrew_detector_classes_runs\S* 3$`, `(?m)^pitcrew_detector_classes\S* 1$`} {
		if !regexp.MustCompile(want).Match(raw) {
			t.Errorf("%s is not among\n%s", want, raw)
		}
	}
}

func TestAGatewayThatIsToKeepNoFileOrCannotStartsAllTheSame(t *testing.T) {
	dir := t.TempDir()
	surround(t, dir, "nats://127.0.0.1:1")
	t.Setenv(ClassesEnv, "")
	if err := Prepare(Gateway); err != nil || os.Getenv(ClassesEnv) != "" {
		t.Errorf("%v, %q", err, os.Getenv(ClassesEnv))
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PITCREW_STATE_DIR", filepath.Join(dir, "file", "in"))
	if err := os.Unsetenv(ClassesEnv); err != nil {
		t.Fatal(err)
	}
	if err := Prepare(Gateway); err != nil || os.Getenv(ClassesEnv) != "" {
		t.Errorf("%v, %q", err, os.Getenv(ClassesEnv))
	}
}
