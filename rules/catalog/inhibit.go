package catalog

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// InhibitFile is the path of the inhibit rules below rules/.
const InhibitFile = "alertmanager/inhibit.yaml"

// findings are the alerts by which the remediator sends incidents and findings to an Alertmanager. Their label signal names the cause.
const findings = "PitcrewIncident|PitcrewFinding"

var signalForm = regexp.MustCompile(`^[a-z0-9]+/[A-Za-z0-9-]+$`)

// wholeNode are sources that concern each device of a node. Others concern one device: they explain no alert about a single device,
// since Alertmanager could not tell whether it is the same one.
var wholeNode = []string{"node/lost", "nvswitch/lost", "GPUNodeNotReady", "NVSwitchLost"}

// weights of an alert's severity. A source inhibits only what is not graver than itself.
var weights = [][]string{{"info", "warning", "critical", "fatal"}, {"warning", "critical", "fatal"}, {"critical", "fatal"}}

// nodeLabels name the node in the series of alerts.
var nodeLabels = []string{"node", "k8s_node_name", "Hostname"}

// deviceLabels name one device of a node.
var deviceLabels = []string{"hw_id", "UUID", "gpu"}

// has tells whether the series of the record's test carry a label.
func (r *Record) has(label string) bool {
	if r.Test == nil {
		return false
	}
	for selector := range r.Test.Fires {
		if strings.Contains(selector, "{"+label+"=") || strings.Contains(selector, ","+label+"=") {
			return true
		}
	}
	return false
}

// nodeLabel is the label that names the node in the alert; empty if none does.
func (r *Record) nodeLabel() string {
	at := slices.IndexFunc(nodeLabels, r.has)
	if at < 0 {
		return ""
	}
	return nodeLabels[at]
}

// linked marks the records that inhibit rules name, and reports sources that lead nowhere.
func linked(all []Record) (faults []error) {
	byName := map[string]*Record{}
	for i := range all {
		byName[all[i].Alert] = &all[i]
	}
	bad := func(r *Record, format string, args ...any) {
		faults = append(faults, fmt.Errorf("%s:%d: %s: explained_by: %s", r.File, r.Line, r.Alert, fmt.Sprintf(format, args...)))
	}
	for i := range all {
		r := &all[i]
		for _, name := range r.ExplainedBy {
			source := byName[name]
			switch {
			case source == nil && !signalForm.MatchString(name):
				bad(r, "%q is neither an alert nor a signal", name)
				continue
			case source != nil && source.nodeLabel() == "":
				bad(r, "%s names no node", name)
			case source != nil && slices.Index(severities, source.Severity) > slices.Index(severities, r.Severity):
				bad(r, "%s is less severe", name)
			}
			if slices.ContainsFunc(deviceLabels, r.has) && !slices.Contains(wholeNode, name) {
				bad(r, "%s concerns one device, and the alert may concern another", name)
			}
			if source != nil {
				source.named = true
			}
		}
		if len(r.ExplainedBy) > 0 {
			r.named = true
			if r.nodeLabel() == "" {
				bad(r, "the alert names no node")
			}
		}
	}
	return append(faults, circles(all, byName)...)
}

// circles reports alerts that explain each other: Alertmanager would mute them all.
func circles(all []Record, byName map[string]*Record) (faults []error) {
	for i := range all {
		seen, todo := map[string]bool{}, slices.Clone(all[i].ExplainedBy)
		for len(todo) > 0 {
			name := todo[0]
			todo = todo[1:]
			if name == all[i].Alert {
				faults = append(faults, fmt.Errorf("%s:%d: %s: explained_by: leads back to itself, so that Alertmanager would mute both", all[i].File, all[i].Line, name))
				break
			}
			if r := byName[name]; r != nil && !seen[name] {
				seen[name] = true
				todo = append(todo, r.ExplainedBy...)
			}
		}
	}
	return faults
}

// InhibitRules renders the inhibit_rules of an Alertmanager's configuration.
func InhibitRules(all []Record) string {
	alerts := map[string]bool{}
	for i := range all {
		alerts[all[i].Alert] = true
	}
	var b strings.Builder
	b.WriteString(header + "# Paste it into the configuration of your Alertmanager. An alert that names its cause mutes those that follow from it, on the same node.\ninhibit_rules:\n")
	for i := range all {
		r := &all[i]
		var signals, names []string
		for _, s := range r.ExplainedBy {
			if alerts[s] {
				names = append(names, s)
			} else {
				signals = append(signals, s)
			}
		}
		grave := weights[2-slices.Index(severities, r.Severity)]
		write := func(source ...string) {
			// Labels that both lack are equal: an alert that names no node mutes nothing.
			source = append(source, `'node!=""'`)
			fmt.Fprintf(&b, "- source_matchers: [%s]\n  target_matchers: ['alertname=\"%s\"', 'node!=\"\"']\n  equal: [cluster, node]\n", strings.Join(source, ", "), r.Alert)
		}
		if len(signals) > 0 {
			write(`'alertname=~"`+findings+`"'`, `'signal=~"`+strings.Join(signals, "|")+`"'`, `'severity=~"`+strings.Join(grave, "|")+`"'`)
		}
		if len(names) > 0 {
			write(`'alertname=~"` + strings.Join(names, "|") + `"'`)
		}
	}
	return b.String()
}

// nodeTemplate gives the alert the label node, by which inhibit rules compare; empty if it has it or no rule names the alert.
func (r *Record) nodeTemplate() string {
	if from := r.nodeLabel(); r.named && from != "" && from != "node" {
		return "{{ $labels." + from + " }}"
	}
	return ""
}

// explained is the row of a page that names what mutes the alert; empty if nothing does.
func (r *Record) explained() string {
	if len(r.ExplainedBy) == 0 {
		return ""
	}
	return fmt.Sprintf("| muted by | `%s`, on the same node, where Alertmanager has `rules/%s` |\n", strings.Join(r.ExplainedBy, "`, `"), InhibitFile)
}
