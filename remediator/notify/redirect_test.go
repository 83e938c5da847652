package notify

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
)

func TestARedirectIsRefusedAndTellsNoOtherHost(t *testing.T) {
	for _, status := range []int{http.StatusMovedPermanently, http.StatusFound, http.StatusTemporaryRedirect, http.StatusPermanentRedirect} {
		var asked atomic.Int32
		other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
		hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, strings.Replace(other.URL, "127.0.0.1", "localhost", 1)+"/x", status)
		}))
		address := hook.URL + "/services/T0/B0/hidden-path?key=hidden-query"
		ticket, err := NewTemplate("tickets", TemplateOptions{
			URL:    func() string { return address },
			Header: func() http.Header { return http.Header{"X-Api-Key": {"hidden-header"}} },
		})
		if err != nil {
			t.Fatal(err)
		}
		manager, err := NewAlertmanager(hook.URL, "")
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range []Receiver{ticket, webhook(t, address), manager} {
			if _, err := r.Send(t.Context(), notice(Opened)); !errors.Is(err, ErrRefused) || strings.Contains(err.Error(), "hidden") {
				t.Errorf("status %d, %s: %v, want a refusal without secrets", status, r.Name(), err)
			}
		}
		if n := asked.Load(); n != 0 {
			t.Errorf("status %d: another host was asked %d times", status, n)
		}
		hook.Close()
		other.Close()
	}
}
