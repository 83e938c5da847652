package sandbox

import (
	"context"
	"errors"
)

func (s *Sandbox) startJobSet(context.Context) error { return errors.New("jobset") }
