package sandbox_test

import (
	"testing"

	"github.com/pitcrew/pitcrew/sandbox/sandboxtest"
)

func TestMain(m *testing.M) { sandboxtest.Main(m) }

func TestUp(t *testing.T) {
	s := sandboxtest.Cluster(t)
	t.Log(s.Dir())
}
