{{/* Names are fixed, not made of the release's: the account and the placement policy are one a cluster. */}}

{{- define "pitcrew.labels" -}}
app.kubernetes.io/name: pitcrew
app.kubernetes.io/part-of: pitcrew
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "pitcrew.image" -}}
{{- with .Values.image }}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{- define "pitcrew.nats" -}}
{{- if .Values.nats.url }}{{ .Values.nats.url }}
{{- else if .Values.bus.enabled }}nats://pitcrew-bus.{{ .Release.Namespace }}.svc:{{ .Values.bus.port }}
{{- else }}{{ fail "nats.url: say where NATS is, or set bus.enabled" }}
{{- end }}
{{- end }}

{{/* What every pod has: imagePullSecrets, scheduling. Takes the component's values and the root. */}}
{{- define "pitcrew.place" -}}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
{{- range . }}
- name: {{ . }}
{{- end }}
{{- end }}
{{- with .c.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .c.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .c.tolerations }}
tolerations: {{- toYaml . | nindent 0 }}
{{- end }}
{{- end }}

{{/* A pod that needs nothing of its node: Pod Security level restricted. */}}
{{- define "pitcrew.restrictedPod" -}}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "pitcrew.restrictedContainer" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{/* Rather not on a GPU node, and two of a kind rather on two nodes. */}}
{{- define "pitcrew.apart" -}}
affinity:
  nodeAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      preference: {matchExpressions: [{key: nvidia.com/gpu.present, operator: DoesNotExist}]}
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 50
      podAffinityTerm:
        topologyKey: kubernetes.io/hostname
        labelSelector: {matchLabels: {app.kubernetes.io/name: pitcrew, app.kubernetes.io/component: {{ . }}}}
{{- end }}

{{/* Fields of the pod come first, so that the values after them may name them. Takes set (the chart's own) and over (the user's). */}}
{{- define "pitcrew.env" -}}
- {name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
- {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
- {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
- {name: HOST_IP, valueFrom: {fieldRef: {fieldPath: status.hostIP}}}
{{- range $name, $value := merge (dict) .over .set }}
- {name: {{ $name }}, value: {{ $value | toString | quote }}}
{{- end }}
{{- end }}

{{- define "pitcrew.probes" -}}
livenessProbe:
  httpGet: {path: {{ .path }}, port: health}
  initialDelaySeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: {{ .path }}, port: health}
  timeoutSeconds: 5
{{- end }}

{{/* How a component shows NATS who it is: its account's token for NATS alone, or credentials of a Secret. Takes root and component. */}}
{{- define "pitcrew.natsEnv" -}}
{{- if and .root.Values.nats.keysSecret (not .root.Values.remediator.enabled) }}{{ fail "nats.keysSecret: NATS asks the remediator who may connect, and remediator.enabled is false" }}{{ end }}
{{- if .root.Values.nats.keysSecret }}
PITCREW_NATS_TOKEN_FILE: /etc/pitcrew/nats/token
{{- else if index .root.Values.nats.credentials .component }}
PITCREW_NATS_CREDS: /etc/pitcrew/nats/nats.creds
{{- end }}
{{- end }}

{{- define "pitcrew.natsMount" -}}
{{- if or .root.Values.nats.keysSecret (index .root.Values.nats.credentials .component) }}
- {name: nats, mountPath: /etc/pitcrew/nats, readOnly: true}
{{- end }}
{{- end }}

{{- define "pitcrew.natsVolume" -}}
{{- if .root.Values.nats.keysSecret }}
- {name: nats, projected: {defaultMode: 0440, sources: [{serviceAccountToken: {path: token, audience: pitcrew-nats, expirationSeconds: 3600}}]}}
{{- else if index .root.Values.nats.credentials .component }}
- {name: nats, secret: {secretName: {{ index .root.Values.nats.credentials .component }}, defaultMode: 0440}}
{{- end }}
{{- end }}

{{/* A shipped manifest, for this release's namespace: one source with what kubectl applies. Takes root, file and, to have only some, kinds. */}}
{{- define "pitcrew.manifest" -}}
{{- range splitList "\n---\n" (.root.Files.Get .file) }}
{{- $doc := fromYaml . }}
{{- if and (ne $doc.kind "Namespace") (or (not $.kinds) (has $doc.kind $.kinds)) }}
---
{{ replace "pitcrew-system" $.root.Release.Namespace . | trim }}
{{- end }}
{{- end }}
{{- end }}

{{/* Not empty where some policy may act: then the remediator's account gets the role that acts. Takes the root. */}}
{{- define "pitcrew.enforces" -}}
{{- $rights := .Values.remediator.rights }}
{{- if eq $rights "enforce" }}yes
{{- else if eq $rights "auto" }}
{{- if and .Values.policies.shipped (has .Values.policies.mode (list "approve" "enforce")) }}yes{{ end }}
{{- range .Values.policies.extra }}{{ if regexMatch "mode[\"']?:\\s*[\"']?(approve|enforce)" . }}yes{{ end }}{{ end }}
{{- end }}
{{- end }}

{{/* Not empty where the API server steers by itself. */}}
{{- define "pitcrew.placementPolicy" -}}
{{- $has := .Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy" }}
{{- if or (eq (toString .Values.placementPolicy) "true") (and (eq (toString .Values.placementPolicy) "auto") $has) }}yes{{ end }}
{{- end }}

{{/* Not empty where the remediator's webhook steers. */}}
{{- define "pitcrew.webhook" -}}
{{- $on := toString .Values.webhook.enabled }}
{{- $auto := and (include "pitcrew.enforces" .) (not (include "pitcrew.placementPolicy" .)) (include "pitcrew.v130" .) }}
{{- if and .Values.remediator.enabled (or (eq $on "true") (and (eq $on "auto") $auto)) }}yes{{ end }}
{{- end }}

{{/* Not empty from Kubernetes 1.30 on. A rendering without a cluster knows the version alone, some API servers name none. */}}
{{- define "pitcrew.v130" -}}
{{- if or (.Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy") (ge (int (regexFind "^[0-9]+" .Capabilities.KubeVersion.Minor)) 30) }}yes{{ end }}
{{- end }}
