// Package steer sends replacement pods to their reserved nodes where the API server has no MutatingAdmissionPolicy: it serves the mutating
// webhook of deploy/placement-webhook.yaml, with the effect of deploy/placement-policy.yaml.
//
// It promises that a pod which no reservation means passes unchanged, that it refuses no pod, and that its certificates renew themselves.
// It reads reservations from the caller's watch and writes nothing.
package steer

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew/pitcrew/remediator/cluster"
)

const (
	// Path is where the API server posts its reviews.
	Path         = "/steer"
	hostname     = "kubernetes.io/hostname"
	maxReview    = 8 << 20 // the API server takes objects of 3 MiB at most
	answerWithin = 2 * time.Second
)

// Result is what became of a review, as Count is told.
type Result string

const (
	Stamped   Result = "stamped"   // the pod got the node selector and the toleration
	Passed    Result = "passed"    // no reservation means the pod
	Malformed Result = "malformed" // the request was no review of a pod
)

// Stamper knows the reservations; any goroutine may call it.
type Stamper interface {
	StampOf(*corev1.Pod) (cluster.Stamp, bool)
}

// Options of Serve.
type Options struct {
	Address  string // host:port
	CA       string // directory with ca.crt and ca.key
	Names    []string
	Stamper  Stamper
	Now      func() time.Time
	Log      *slog.Logger
	Count    func(Result)
	Listener net.Listener // takes the place of Address
}

// ServiceName is the DNS name under which the API server calls the webhook of a namespace.
func ServiceName(namespace string) string { return "pitcrew-webhook." + namespace + ".svc" }

// Serve answers until ctx ends. An authority that cannot be read yet is looked for again at each connection; it is not an error.
func Serve(ctx context.Context, o Options) error {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Count == nil {
		o.Count = func(Result) {}
	}
	l := o.Listener
	if l == nil {
		var err error
		if l, err = net.Listen("tcp", o.Address); err != nil {
			return err
		}
	}
	certs := &certificates{dir: o.CA, names: o.Names, now: o.Now, log: o.Log}
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+Path, o.review)
	s := &http.Server{Handler: mux, ReadHeaderTimeout: answerWithin, ReadTimeout: answerWithin, WriteTimeout: answerWithin, IdleTimeout: time.Minute,
		MaxHeaderBytes: 64 << 10, ErrorLog: slog.NewLogLogger(o.Log.Handler(), slog.LevelDebug),
		TLSConfig: &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: certs.get}}
	stop := context.AfterFunc(ctx, func() { _ = s.Close() })
	defer stop()
	if err := s.ServeTLS(l, "", ""); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// review answers one review. It always allows: the worst outcome is a pod that the scheduler places, which is read back.
func (o *Options) review(w http.ResponseWriter, r *http.Request) {
	var review admissionv1.AdmissionReview
	err := json.NewDecoder(io.LimitReader(r.Body, maxReview)).Decode(&review)
	if err != nil || review.Request == nil || review.Request.Kind.Kind != "Pod" {
		o.Count(Malformed)
		http.Error(w, "not an AdmissionReview of a Pod", http.StatusBadRequest)
		return
	}
	q := review.Request
	a := &admissionv1.AdmissionResponse{UID: q.UID, Allowed: true}
	var pod corev1.Pod
	result := Malformed
	if err := json.Unmarshal(q.Object.Raw, &pod); err == nil {
		pod.Namespace, result = q.Namespace, Passed
		if stamp, ok := o.Stamper.StampOf(&pod); ok && q.Operation == admissionv1.Create {
			if patch := patchOf(&pod, stamp); len(patch) > 0 {
				kind := admissionv1.PatchTypeJSONPatch
				if a.Patch, err = json.Marshal(patch); err == nil {
					a.PatchType, result = &kind, Stamped
				}
			}
		}
	}
	o.Count(result)
	review.Request, review.Response = nil, a
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(review)
}

// operation is one step of a JSON patch.
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// patchOf has the effect of deploy/placement-policy.yaml's mutations. Doing it twice changes nothing.
func patchOf(p *corev1.Pod, s cluster.Stamp) (ops []operation) {
	switch {
	case p.Spec.NodeSelector == nil:
		ops = append(ops, operation{"add", "/spec/nodeSelector", map[string]string{hostname: s.Hostname}})
	case p.Spec.NodeSelector[hostname] != s.Hostname:
		ops = append(ops, operation{"add", "/spec/nodeSelector/" + strings.ReplaceAll(hostname, "/", "~1"), s.Hostname})
	}
	want := corev1.Toleration{Key: cluster.TaintReserved, Operator: corev1.TolerationOpEqual, Value: s.Incident, Effect: corev1.TaintEffectNoSchedule}
	for _, t := range p.Spec.Tolerations {
		if t == want {
			return ops
		}
	}
	if p.Spec.Tolerations == nil {
		return append(ops, operation{"add", "/spec/tolerations", []corev1.Toleration{want}})
	}
	return append(ops, operation{"add", "/spec/tolerations/-", want})
}
