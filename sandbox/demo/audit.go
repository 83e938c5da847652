package demo

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"
)

// auditEvent is what we read of a line of the API server's audit log.
type auditEvent struct {
	Stage      string `json:"stage"`
	Verb       string `json:"verb"`
	UserAgent  string `json:"userAgent"`
	RequestURI string `json:"requestURI"`
	ObjectRef  struct {
		Resource, Subresource, Namespace, Name string
	} `json:"objectRef"`
	ResponseStatus struct {
		Code int `json:"code"`
	} `json:"responseStatus"`
	RequestObject struct {
		Status struct {
			Phase string `json:"phase"`
		} `json:"status"`
		DeleteOptions struct {
			DryRun        []string `json:"dryRun"`
			Preconditions struct {
				UID string `json:"uid"`
			} `json:"preconditions"`
		} `json:"deleteOptions"`
		DryRun        []string `json:"dryRun"`
		Preconditions struct {
			UID string `json:"uid"`
		} `json:"preconditions"`
	} `json:"requestObject"`
	At time.Time `json:"requestReceivedTimestamp"`
}

// Record is what the API server's audit log says of one job's pods.
type Record struct {
	// Removed counts, by pod UID, the evictions that the API server granted to Pitcrew, or the deletions, whichever are more: a
	// pod may be evicted and then, when its node turns out to be lost, once be deleted without its kubelet.
	Removed map[string]int
	// Unsure are pod UIDs of which such a request ended in an error of the server's: it may have been granted, as when the remediator
	// died while it waited for the answer.
	Unsure map[string]bool
	// Strangers are pods outside the job that Pitcrew evicted or deleted.
	Strangers []string
	// Doubled are indices of which a pod was said to run before the one that ran until then had been told to go.
	Doubled []string
}

// uid is the pod's, as the request's precondition names it.
func (e auditEvent) uid() string {
	return e.RequestObject.DeleteOptions.Preconditions.UID + e.RequestObject.Preconditions.UID
}

// removes reports whether the request takes a pod away, and not only asks whether it could.
func (e auditEvent) removes() bool {
	o := e.RequestObject
	if e.ObjectRef.Resource != "pods" || len(o.DryRun) > 0 || len(o.DeleteOptions.DryRun) > 0 || strings.Contains(e.RequestURI, "dryRun=All") {
		return false
	}
	return e.Verb == "create" && e.ObjectRef.Subresource == "eviction" || e.Verb == "delete" && e.ObjectRef.Subresource == ""
}

func (e auditEvent) runs() bool {
	return e.ObjectRef.Resource == "pods" && e.ObjectRef.Subresource == "status" && e.RequestObject.Status.Phase == "Running"
}

// ReadAudit reads the log; removals count since a moment. A pod of the job is named <job>-…-<index>-<random>.
func ReadAudit(file string, since time.Time, job string) (Record, error) {
	r := Record{Removed: map[string]int{}, Unsure: map[string]bool{}}
	f, err := os.Open(file)
	if err != nil {
		return r, err
	}
	defer f.Close()
	running, gone := map[string]string{}, map[string]bool{} // pod by index; pods told to go
	times := map[string]map[string]int{"create": {}, "delete": {}}
	s := bufio.NewScanner(f)
	s.Buffer(nil, 4<<20)
	for s.Scan() {
		var e auditEvent
		if json.Unmarshal(s.Bytes(), &e) != nil || e.Stage != "ResponseComplete" {
			continue
		}
		if code := e.ResponseStatus.Code; code >= 300 {
			if code >= 500 && e.removes() && strings.HasPrefix(e.UserAgent, "pitcrew-remediator") && !e.At.Before(since) {
				r.Unsure[e.uid()] = true
			}
			continue
		}
		pod := e.ObjectRef.Name
		ours := e.ObjectRef.Namespace == Namespace && strings.HasPrefix(pod, job+"-")
		switch {
		case ours && e.runs():
			parts := strings.Split(pod, "-")
			index := parts[max(0, len(parts)-2)]
			if before := running[index]; before != "" && before != pod && !gone[before] {
				r.Doubled = append(r.Doubled, fmt.Sprintf("index %s: %s while %s ran", index, pod, before))
			}
			running[index] = pod
		case e.removes():
			gone[pod] = true
			if !strings.HasPrefix(e.UserAgent, "pitcrew-remediator") || e.At.Before(since) {
				continue
			}
			uid := e.uid()
			if uid == "" {
				return r, fmt.Errorf("%s of pod %s/%s carries no UID precondition", e.Verb, e.ObjectRef.Namespace, pod)
			}
			times[e.Verb][uid]++
			r.Removed[uid] = max(r.Removed[uid], times[e.Verb][uid])
			if !ours {
				r.Strangers = append(r.Strangers, e.ObjectRef.Namespace+"/"+pod)
			}
		}
	}
	return r, s.Err()
}
