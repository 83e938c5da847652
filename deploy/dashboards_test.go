package deploy_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// boardsOf gives the text of each dashboard that the chart makes, by its file's name.
func boardsOf(t *testing.T, values map[string]any) (map[string]string, []*unstructured.Unstructured) {
	t.Helper()
	all := objects(t, map[string]any{"monitoring": map[string]any{"dashboards": values}})
	out := map[string]string{}
	for _, o := range all {
		if o.GetKind() == "ConfigMap" && strings.HasSuffix(o.GetName(), "-dashboard") {
			data, _, _ := unstructured.NestedStringMap(o.Object, "data")
			for name, text := range data {
				out[name] = text
			}
		}
	}
	return out, all
}

func committed(t *testing.T) map[string]string {
	t.Helper()
	paths, err := filepath.Glob("../dashboards/boards/*.json")
	if err != nil || len(paths) < 10 {
		t.Fatalf("boards: %v, %v", paths, err)
	}
	out := map[string]string{}
	for _, path := range paths {
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		out[filepath.Base(path)] = string(raw)
	}
	return out
}

func TestTheChartInstallsNoDashboardUnlessAsked(t *testing.T) {
	if boards, _ := boardsOf(t, map[string]any{}); len(boards) > 0 {
		t.Errorf("%d dashboards", len(boards))
	}
}

func TestTheChartsDashboardsAreTheCommittedOnes(t *testing.T) {
	boards, all := boardsOf(t, map[string]any{"kind": "configMap", "labels": map[string]any{"grafana_dashboard": "yes"}})
	want := committed(t)
	if len(boards) != len(want) {
		t.Errorf("%d dashboards, want %d", len(boards), len(want))
	}
	for name, text := range want {
		if boards[name] != text {
			t.Errorf("%s is not what is committed", name)
		}
		o := find(all, "ConfigMap", strings.TrimSuffix(name, ".json")+"-dashboard")
		if o == nil || o.GetLabels()["grafana_dashboard"] != "yes" || o.GetAnnotations()["grafana_folder"] != "Pitcrew" {
			t.Errorf("%s: the sidecar does not find it, or puts it into no folder", name)
		}
		if len(text) > 900_000 {
			t.Errorf("%s has %d bytes: a ConfigMap holds 1 MiB", name, len(text))
		}
	}
}

func TestTheOperatorsDashboardsReadTheConfigMaps(t *testing.T) {
	boards, all := boardsOf(t, map[string]any{"kind": "grafana", "instances": map[string]any{"team": "ml"}})
	for name := range committed(t) {
		id := strings.TrimSuffix(name, ".json")
		o := find(all, "GrafanaDashboard", id)
		if o == nil {
			t.Errorf("no GrafanaDashboard %s", id)
			continue
		}
		from, _, _ := unstructured.NestedStringMap(o.Object, "spec", "configMapRef")
		match, _, _ := unstructured.NestedStringMap(o.Object, "spec", "instanceSelector", "matchLabels")
		if find(all, "ConfigMap", from["name"]) == nil || boards[from["key"]] == "" || match["team"] != "ml" {
			t.Errorf("%s reads %v for %v", id, from, match)
		}
		if find(all, "ConfigMap", id+"-dashboard").GetLabels()["grafana_dashboard"] != "" {
			t.Errorf("%s would be installed twice", id)
		}
	}
}

func TestTheAddressesInDashboardsAreSettings(t *testing.T) {
	boards, _ := boardsOf(t, map[string]any{"kind": "configMap", "runbooksURL": "https://docs.example/runbooks", "incidentsURL": "https://pitcrew.example"})
	for name, text := range boards {
		var b struct {
			Templating struct {
				List []struct {
					Name  string
					Query any
				}
			}
		}
		if err := json.Unmarshal([]byte(text), &b); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got := map[string]any{}
		for _, v := range b.Templating.List {
			got[v.Name] = v.Query
		}
		if got["runbooks"] != "https://docs.example/runbooks/" || got["incidents"] != "https://pitcrew.example" {
			t.Errorf("%s: runbooks %v, incidents %v", name, got["runbooks"], got["incidents"])
		}
	}
	if len(boards) == 0 {
		t.Error("no dashboards")
	}
	values := valuesFile(t, map[string]any{"monitoring": map[string]any{"dashboards": map[string]any{"kind": "configMap", "incidentsURL": `https://x","uid":"y`}}})
	if _, said, err := helm(t, "template", "pitcrew", chart, "-n", namespace, "-f", values); err == nil || !strings.Contains(said, "incidentsURL") {
		t.Errorf("an address that ends the string is taken: %v %s", err, said)
	}
}

// Dashboards select by cluster, and the Xid dashboard by node.
func TestThePodMonitorSetsTheLabelsOfTheDashboards(t *testing.T) {
	all := objects(t, map[string]any{"cluster": "west", "monitoring": map[string]any{"podMonitor": true}})
	ends, _, err := unstructured.NestedSlice(find(all, "PodMonitor", "pitcrew").Object, "spec", "podMetricsEndpoints")
	if err != nil || len(ends) != 3 {
		t.Fatalf("%d endpoints: %v", len(ends), err)
	}
	for _, e := range ends {
		end := e.(map[string]any)
		set := map[string]any{}
		for _, r := range end["relabelings"].([]any) {
			rule := r.(map[string]any)
			set[rule["targetLabel"].(string)] = rule["replacement"]
		}
		_, node := set["node"]
		if set["cluster"] != "west" || node == (end["port"] == "metrics") { // what is of GPUs names its own node
			t.Errorf("port %v sets %v", end["port"], set)
		}
	}
}
