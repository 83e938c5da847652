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

// Removals counts, by pod UID, the evictions and deletions of pods that the API server granted to Pitcrew since a moment, and says
// which of them touched a pod outside Namespace/job.
func Removals(file string, since time.Time, job string) (byUID map[string]int, strangers []string, err error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	byUID = map[string]int{}
	s := bufio.NewScanner(f)
	s.Buffer(nil, 4<<20)
	for s.Scan() {
		var e auditEvent
		if json.Unmarshal(s.Bytes(), &e) != nil || e.Stage != "ResponseComplete" || e.At.Before(since) || e.ResponseStatus.Code >= 300 {
			continue
		}
		evicts := e.Verb == "create" && e.ObjectRef.Resource == "pods" && e.ObjectRef.Subresource == "eviction"
		deletes := e.Verb == "delete" && e.ObjectRef.Resource == "pods"
		o := e.RequestObject
		dry := len(o.DryRun) > 0 || len(o.DeleteOptions.DryRun) > 0 || strings.Contains(e.RequestURI, "dryRun=All")
		if !evicts && !deletes || dry || !strings.HasPrefix(e.UserAgent, "pitcrew-remediator") {
			continue
		}
		uid := o.DeleteOptions.Preconditions.UID + o.Preconditions.UID
		if uid == "" {
			return nil, nil, fmt.Errorf("%s of pod %s/%s carries no UID precondition", e.Verb, e.ObjectRef.Namespace, e.ObjectRef.Name)
		}
		byUID[uid]++
		if e.ObjectRef.Namespace != Namespace || !strings.HasPrefix(e.ObjectRef.Name, job+"-") {
			strangers = append(strangers, e.ObjectRef.Namespace+"/"+e.ObjectRef.Name)
		}
	}
	return byUID, strangers, s.Err()
}
