package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// A real informer takes bystanders in, updates and deletes them, though they are no Pods.
func TestAnInformerKeepsBystanders(t *testing.T) {
	p := testPod("u1", "n1", 2)
	p.APIVersion, p.Kind, p.ResourceVersion = "v1", "Pod", "1"
	p.OwnerReferences[0].Kind = "DaemonSet"
	events := make(chan string, 2)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch q := r.URL.Query(); {
		case r.URL.Path != "/api/v1/pods", q.Get("sendInitialEvents") != "":
			w.WriteHeader(http.StatusUnprocessableEntity)
			fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Invalid","code":422}`)
		case q.Get("watch") == "":
			_ = json.NewEncoder(w).Encode(corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}, ListMeta: metav1.ListMeta{ResourceVersion: "1"}, Items: []corev1.Pod{*p}})
		default:
			w.(http.Flusher).Flush()
			for {
				select {
				case <-r.Context().Done():
					return
				case e := <-events:
					fmt.Fprintln(w, e)
					w.(http.Flusher).Flush()
				}
			}
		}
	}))
	defer srv.Close()
	defer srv.CloseClientConnections()
	c, err := New(&rest.Config{Host: srv.URL}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	c.set(testNode("n1", 8, nil))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); c.pods.RunWithContext(ctx) }()
	defer func() { cancel(); <-ended }()
	free := func(want int64) {
		t.Helper()
		for end := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
			n, err := c.Node("n1")
			if err == nil && n.Free["nvidia.com/gpu"] == want {
				return
			} else if time.Now().After(end) {
				t.Fatalf("%+v, %v; want %d free", n, err, want)
			}
		}
	}
	say := func(what string) {
		raw, _ := json.Marshal(p)
		events <- fmt.Sprintf(`{"type":%q,"object":%s}`, what, raw)
	}
	free(6)
	changed := testPod("u1", "n1", 5)
	p.Spec, p.ResourceVersion = changed.Spec, "2"
	say("MODIFIED")
	free(3)
	p.ResourceVersion = "3"
	say("DELETED")
	free(8)
	if len(c.views.counts) > 0 || len(c.pods.GetStore().List()) > 0 {
		t.Errorf("%+v", c.views.counts)
	}
}
