package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// The outcomes that a caller decides by. Errors of this package wrap one of them where one applies; none of them has changed anything
// unless the method's comment says so.
var (
	ErrRetry       = errors.New("the API server did not answer in time or not usefully; trying again can help")
	ErrStale       = errors.New("the object is not the one that was meant")
	ErrNotFound    = errors.New("the object does not exist")
	ErrConflict    = errors.New("the object kept changing; read it again and decide anew")
	ErrBudget      = errors.New("a PodDisruptionBudget forbids the eviction")
	ErrFails       = errors.New("the Job would end by the eviction")
	ErrFinished    = errors.New("the pod has already ended by itself")
	ErrForbidden   = errors.New("the API server forbids it; compare the account's rights with deploy/rbac.yaml")
	ErrUnsupported = errors.New("this kind of workload cannot be restarted by Pitcrew")
	ErrReserved    = errors.New("the node is reserved by another incident")
	ErrQuarantined = errors.New("the node is quarantined by another incident")
	ErrDeposed     = errors.New("the lease has run out, so another remediator may lead by now; nothing was sent")
	ErrHeld        = errors.New("it is on hold (`pitcrew node release NODE`, or remove the annotation pitcrew.dev/hold)")
	ErrSuspended   = errors.New("someone else suspended it")
	ErrStuck       = errors.New("pods do not end")
	ErrNoPolicy    = errors.New("replacements are not steered on this cluster") // every *Unsteered is one
)

// Retriable says whether the same call can succeed later without anyone changing anything.
func Retriable(err error) bool { return errors.Is(err, ErrRetry) || errors.Is(err, ErrConflict) }

// wrap names the operation and files an API error under its outcome.
func wrap(op string, err error) error {
	if err == nil {
		return nil
	}
	if kind := outcomeOf(err); kind != nil && !errors.Is(err, kind) {
		return fmt.Errorf("%s: %w: %w", op, kind, err)
	}
	return fmt.Errorf("%s: %w", op, err)
}

func outcomeOf(err error) error {
	var netErr net.Error
	switch {
	case errors.Is(err, context.Canceled):
		return nil // the caller gave up; it knows why
	case apierrors.IsNotFound(err):
		return ErrNotFound
	case apierrors.IsConflict(err):
		return ErrConflict
	case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
		return ErrForbidden
	case apierrors.IsTimeout(err), apierrors.IsServerTimeout(err), apierrors.IsTooManyRequests(err), apierrors.IsInternalError(err),
		apierrors.IsServiceUnavailable(err), apierrors.IsUnexpectedServerError(err), errors.Is(err, context.DeadlineExceeded), errors.As(err, &netErr):
		return ErrRetry
	}
	return nil
}
