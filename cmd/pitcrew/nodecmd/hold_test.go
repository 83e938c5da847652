package nodecmd

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/pitcrew/pitcrew/cmd/pitcrew/exit"
	"github.com/pitcrew/pitcrew/remediator/cluster"
)

func TestANodeIsHeldAndReleasedAndNothingElseOnItChanges(t *testing.T) {
	a, say := newAPI(t)
	a.add(t, "n1", "", false)
	a.before = func(n map[string]any) { // somebody writes in between: the patch is made anew
		n["metadata"].(map[string]any)["annotations"].(map[string]any)["theirs"] = "x"
	}
	out, _, err := say("", "hold", "n1", "--reason", "RMA 4711")
	n := a.node(t, "n1")
	why := n.Annotations[cluster.AnnotationHold]
	if err != nil || !strings.HasPrefix(out, "n1 is on hold: RMA 4711 (") || !strings.HasPrefix(why, "RMA 4711 (") || n.Annotations["theirs"] != "x" || n.Annotations["own"] != "kept" || n.Spec.Unschedulable {
		t.Fatalf("%v, %s, %v", err, out, n.Annotations)
	}
	if out, _, err := say("", "list"); err != nil || !strings.Contains(out, "\nON HOLD  REASON\nn1       "+why+"\n") {
		t.Errorf("the list lacks the hold: %v\n%s", err, out)
	}
	if _, _, err := say("", "hold", "n1", "--reason", "another"); exit.Code(err) != exit.Refused || !strings.Contains(err.Error(), why) || !strings.Contains(err.Error(), "pitcrew node release") || a.node(t, "n1").Annotations[cluster.AnnotationHold] != why {
		t.Errorf("a second hold: %v", err)
	}
	out, _, err = say("", "release", "n1", "-o", "json")
	var got heldNode
	if _, there := a.node(t, "n1").Annotations[cluster.AnnotationHold]; err != nil || there || json.Unmarshal([]byte(out), &got) != nil || got.Node != "n1" || got.Held {
		t.Errorf("%v, %s", err, out)
	}
	if out, _, _ := say("", "list"); strings.Contains(out, "ON HOLD") {
		t.Errorf("a released node is listed:\n%s", out)
	}
	if _, _, err := say("", "release", "n1"); exit.Code(err) != exit.Refused || !strings.Contains(err.Error(), "not on hold") {
		t.Errorf("%v", err)
	}
	if _, _, err := say("", "hold", "n2", "--reason", "x"); exit.Code(err) != exit.NotFound {
		t.Errorf("%d, %v", exit.Code(err), err)
	}
	if _, _, err := say("", "hold", "n1"); err == nil || !strings.Contains(err.Error(), `"reason" not set`) {
		t.Errorf("without a reason: %v", err)
	}
}
