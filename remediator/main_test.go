package remediator_test

import (
	"testing"

	"github.com/pitcrew/pitcrew/sandbox/sandboxtest"
)

func TestMain(m *testing.M) { sandboxtest.Main(m) }
