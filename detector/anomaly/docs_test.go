package anomaly

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/pitcrew/pitcrew/detector/series"
)

var update = flag.Bool("update", false, "rewrite the table in docs/anomalies.md")

func catalogueTable() string {
	var b strings.Builder
	b.WriteString("| signal | metric | of | kind | bad | family |\n|---|---|---|---|---|---|\n")
	kinds := map[series.Kind]string{series.Ratio: "ratio", series.Level: "level", series.Counter: "rate"}
	for _, s := range Catalogue {
		if s.Name == "" {
			continue
		}
		metric := "`" + s.Metric
		if s.Attr != "" {
			metric += "{" + s.Value + "}"
		}
		kind := kinds[s.Kind]
		if s.Certain != 0 {
			kind = fmt.Sprintf("limit %g", s.Certain)
		}
		family := string(s.Family)
		if s.Info {
			family += ", info"
		}
		fmt.Fprintf(&b, "| `%s` | %s` | %s | %s | %s | %s |\n", s.Name, metric, aboutNames[s.About], kind, s.Bad, family)
	}
	return b.String()
}

func TestTheDocsListTheSignalsAsTheyAre(t *testing.T) {
	const file, begin, end = "../../docs/anomalies.md", "-run Docs -update -->\n", "<!-- end -->"
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(raw), begin)
	_, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatal("the table's marks are gone")
	}
	want := head + begin + catalogueTable() + end + tail
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if want != string(raw) {
		t.Error("docs/anomalies.md has drifted from the catalogue; run go test ./detector/anomaly -run Docs -update")
	}
}
