package cluster

import (
	"testing"

	batchv1 "k8s.io/api/batch/v1"
)

// Torchrun and the launcher answer SIGTERM with exit code 1, so a rule about 1 decides what an eviction does to their Job.
func TestARuleAboutTheExitCodeOfATerminatedTorchrunCountsForAnEviction(t *testing.T) {
	rule := func(op batchv1.PodFailurePolicyOnExitCodesOperator, code int32) *batchv1.PodFailurePolicy {
		return &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{{Action: batchv1.PodFailurePolicyActionFailJob,
			OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{Operator: op, Values: []int32{code}}}}}
	}
	for code, want := range map[int32]batchv1.PodFailurePolicyAction{
		1: batchv1.PodFailurePolicyActionFailJob, 137: batchv1.PodFailurePolicyActionFailJob,
		143: batchv1.PodFailurePolicyActionFailJob, 42: batchv1.PodFailurePolicyActionCount,
	} {
		if got := disruption(rule(batchv1.PodFailurePolicyOnExitCodesOpIn, code), true); got != want {
			t.Errorf("FailJob on exit code %d: %s, want %s", code, got, want)
		}
	}
}
