// Package deploy holds the manifests that Pitcrew needs on a cluster, as files to apply and embedded for the programs that apply them.
package deploy

import _ "embed"

// PlacementPolicy is placement-policy.yaml: the MutatingAdmissionPolicy that sends a replacement pod to its reserved node, and its binding.
//
//go:embed placement-policy.yaml
var PlacementPolicy []byte

// PlacementWebhook is placement-webhook.yaml: the MutatingWebhookConfiguration that takes the policy's place below Kubernetes 1.36, without its
// caBundle.
//
//go:embed placement-webhook.yaml
var PlacementWebhook []byte

// RBAC is rbac.yaml: the remediator's account, its two roles, and the binding of the one that only reads.
//
//go:embed rbac.yaml
var RBAC []byte

// RBACEnforce is rbac-enforce.yaml: the binding of the role that acts.
//
//go:embed rbac-enforce.yaml
var RBACEnforce []byte

// RemediatorBounds is remediator-bounds.yaml: the ValidatingAdmissionPolicy that limits which fields the remediator may change, and where.
//
//go:embed remediator-bounds.yaml
var RemediatorBounds []byte

// AgentRBAC is agent-rbac.yaml: what an agent may read so that series and events name jobs, and DRA claims their GPUs. It is optional.
//
//go:embed agent-rbac.yaml
var AgentRBAC []byte

// NATSAuth is nats-auth.conf: the part of nats-server's configuration by which a remediator says who may connect.
//
//go:embed nats-auth.conf
var NATSAuth string

// NATSAccounts is nats-accounts.yaml: the service accounts that have a role on the bus and no right on the cluster.
//
//go:embed nats-accounts.yaml
var NATSAccounts []byte
