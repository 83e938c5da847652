package cluster

import (
	"fmt"
	"regexp"

	"github.com/pitcrew/pitcrew/remediator/placement"
)

// What Pitcrew writes on cluster objects, and reads from them.
const (
	TaintQuarantine   = placement.QuarantineTaint           // value: the incident; effect NoSchedule
	TaintReserved     = placement.ReservedTaint             // value: the incident; effect NoSchedule
	TaintOutOfService = "node.kubernetes.io/out-of-service" // Kubernetes' own; set only on nodes the caller has fenced

	AnnotationQuarantine  = "pitcrew.dev/quarantined-by" // on a node: the incident that quarantined it
	AnnotationSince       = "pitcrew.dev/quarantined-at" // on a node: when, RFC 3339
	AnnotationCordon      = "pitcrew.dev/cordon"         // on a node: "made" by Pitcrew, or "found": someone else's, which stays
	AnnotationUncordoned  = "pitcrew.dev/uncordoned"     // on a node: a person's `pitcrew node uncordon`, as JSON, until the leader has recorded it
	AnnotationFastReplace = "pitcrew.dev/fast-replace"   // on a pod: the incident that lifted its finalizer in order to evict it
	AnnotationSuspended   = "pitcrew.dev/suspended-by"   // on a Job or JobSet: the incident that suspended it
	AnnotationSuspendedAt = "pitcrew.dev/suspended-at"   // on a Job or JobSet: when, RFC 3339
	AnnotationFenced      = "pitcrew.dev/fenced-by"      // on a node: the incident that put it out of service
	AnnotationHold        = "pitcrew.dev/hold"           // on a node, a namespace, a Job or a JobSet: hands off; the value is the reason
	AnnotationExpires     = "pitcrew.dev/expires"        // on a reservation: when it ends unless its incident is open, RFC 3339
	AnnotationLauncher    = "pitcrew.dev/launcher"       // on a pod template: "true" where it runs pitcrew_torch.run behind a wrapper
	LabelHeal             = "pitcrew.dev/heal"           // on a namespace (label), or on a job (annotation or label, which wins): "true" or "false"
	LabelReservation      = "pitcrew.dev/reservation"    // on a ConfigMap: "true"
	LabelIncident         = "pitcrew.dev/incident"       // on a ConfigMap: whose reservation it is

	// ConditionHealthy is the node condition that says what Pitcrew holds of a node.
	ConditionHealthy = "PitcrewHealthy"

	// PlacementPolicyName names the MutatingAdmissionPolicy, its binding, and so the policy file's objects.
	PlacementPolicyName = "pitcrew-placement"
)

const (
	cordonMade  = "made"
	cordonFound = "found"

	jobTrackingFinalizer = "batch.kubernetes.io/job-tracking"
	completionIndex      = "batch.kubernetes.io/job-completion-index"
	hostnameLabel        = "kubernetes.io/hostname"
	kueueQueue           = "kueue.x-k8s.io/queue-name"
	fieldManager         = "pitcrew-remediator"
)

// An incident's name is a taint's value and a label's, so it must be one.
var incidentName = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`)

func checkIncident(incident string) error {
	if !incidentName.MatchString(incident) {
		return fmt.Errorf("incident %q cannot be a taint's value: use at most 63 letters, digits, '-', '_' and '.', a letter or digit at both ends", incident)
	}
	return nil
}
