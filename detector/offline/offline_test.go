package offline

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pitcrew/pitcrew/bench"
)

// jobFile is a told job with two workloads and a fault of +30 % from step 1200 on.
func jobFile(steps int, fault bool, seed uint64) string {
	rng := rand.New(rand.NewPCG(seed, 1))
	var b strings.Builder
	b.WriteString("timestamp,step,phase,workload,step_ms,host\n")
	t := 1.7e9
	for i := range steps {
		ms, phase, work := 50*math.Exp(0.02*rng.NormFloat64()), "train", "a"
		if i < 12 {
			phase, ms = "warmup", ms*30
		}
		if i >= 800 {
			ms, work = ms*1.8, "b"
		}
		if fault && i >= 1200 && i < 1350 {
			ms *= 1.3
		}
		if i%200 == 199 {
			phase = "eval"
		}
		t += ms / 1000
		fmt.Fprintf(&b, "%.3f,%d,%s,%s,%.3f,n1\n", t, i, phase, work, ms)
	}
	return b.String()
}

func detect(t *testing.T, in string, change func(*Options)) (rows [][]string, found []record) {
	t.Helper()
	dir := t.TempDir()
	o := Options{In: filepath.Join(dir, "in.csv"), Out: filepath.Join(dir, "out.csv"), Findings: filepath.Join(dir, "f.jsonl"), Step: "step"}
	if change != nil {
		change(&o)
	}
	if err := os.WriteFile(o.In, []byte(in), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Run(context.Background(), o); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(o.Out)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r := csv.NewReader(f)
	if rows, err = r.ReadAll(); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(o.Findings)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(strings.TrimSpace(string(b)), "\n") {
		if line == "" {
			continue
		}
		var x record
		if err := json.Unmarshal([]byte(line), &x); err != nil {
			t.Fatal(err)
		}
		found = append(found, x)
	}
	return rows, found
}

func TestTheFaultIsFoundTheToldChangeIsNotAndTheRowsAreRepeated(t *testing.T) {
	in := jobFile(2000, true, 1)
	rows, found := detect(t, in, nil)
	if got := strings.Join(rows[0], ","); got != "timestamp,step,phase,workload,step_ms,host,anomaly_score,alarm,expected,lower,upper" {
		t.Errorf("header %s", got)
	}
	for i, line := range strings.Split(strings.TrimSpace(in), "\n")[1:] {
		if !strings.HasPrefix(strings.Join(rows[i+1], ","), line+",") {
			t.Fatalf("row %d is not repeated: %v", i, rows[i+1])
		}
	}
	if len(found) != 1 || found[0].State != "cleared" || found[0].Ratio == nil || math.Abs(*found[0].Ratio-1.3) > 0.05 || len(found[0].Samples) == 0 {
		t.Fatalf("findings %+v", found)
	}
	if f := found[0]; f.Ended == nil || math.Abs(f.Seconds-f.Ended.Sub(f.Onset).Seconds()) > 1e-6 || !f.Onset.Before(f.Opened) {
		t.Errorf("lasted %g s, from %v (told %v) to %v", f.Seconds, f.Onset, f.Opened, f.Ended)
	}
	for i, r := range rows[1:] {
		if alarm := r[7] == "1"; alarm && (i < 1200 || i > 1360) {
			t.Fatalf("alarm at row %d", i)
		}
	}
}

func TestCuttingTheInputNeverChangesTheRowsBefore(t *testing.T) {
	inputs := map[string]func(*Options){jobFile(1500, true, 3): nil}
	var b strings.Builder
	b.WriteString("timestamp,rank,a,b\n")
	rng := rand.New(rand.NewPCG(4, 4))
	for i := range 900 {
		fmt.Fprintf(&b, "2026-01-01 %02d:%02d:00,%d,%.3f,%d\n", i/60%24, i%60, i%3, rng.NormFloat64(), rng.IntN(9))
	}
	inputs[b.String()] = func(o *Options) { o.SeriesBy = "rank" }
	for in, change := range inputs {
		lines := strings.SplitAfter(in, "\n")
		whole, _ := detect(t, in, change)
		for range 12 {
			cut := 2 + rng.IntN(len(lines)-3)
			part, _ := detect(t, strings.Join(lines[:cut], ""), change)
			if fmt.Sprint(part) != fmt.Sprint(whole[:len(part)]) {
				t.Fatalf("the first %d rows depend on later ones", cut)
			}
		}
	}
}

// runFile is a run as a file with every column that detect honours.
func runFile(r *bench.TrainingRun, slow func(row int) float64) string {
	var b strings.Builder
	b.WriteString("timestamp,step,phase,workload,step_ms\n")
	clock := 1.7e9
	for i, row := range r.Rows {
		phase := "train"
		switch ms := row.MS * slow(i); {
		case row.Eval:
			phase = "eval"
		default:
			clock += ms / 1000
			if row.Step < 12 {
				phase = "warmup"
			}
		}
		fmt.Fprintf(&b, "%.6f,%d,%s,w%d,%.0f\n", clock+float64(i)*1e-6, row.Step, phase, r.Workload[i], row.MS*slow(i))
	}
	return b.String()
}

func TestRandomCutsOfManyRunsAndASecondRunChangeNoByte(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 5))
	findings := 0
	for _, r := range bench.Synthetic(3, 8, 1) {
		from := 400 + rng.IntN(1500)
		in := runFile(r, func(i int) float64 {
			if i >= from && i < from+200 {
				return 1.4
			}
			return 1
		})
		lines := strings.SplitAfter(in, "\n")
		whole, found := detect(t, in, nil)
		findings += len(found)
		if again, second := detect(t, in, nil); fmt.Sprint(again) != fmt.Sprint(whole) || fmt.Sprint(len(second)) != fmt.Sprint(len(found)) {
			t.Fatalf("run %s: two passes differ", r.ID)
		}
		for range 6 {
			cut := 2 + rng.IntN(len(lines)-3)
			part, _ := detect(t, strings.Join(lines[:cut], ""), nil)
			if fmt.Sprint(part) != fmt.Sprint(whole[:len(part)]) {
				t.Fatalf("run %s: the first %d rows depend on later ones", r.ID, cut)
			}
		}
	}
	if findings < 8 {
		t.Errorf("%d findings in eight runs with a fault each: this test proves little", findings)
	}
}

func TestSiblingsExplainAScheduleThatNobodyTold(t *testing.T) {
	dir := t.TempDir()
	for i := range 3 {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%d.csv", i)), []byte(untold(jobFile(2000, false, uint64(10+i)))), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	in := untold(jobFile(2000, true, 1))
	_, alone := detect(t, in, nil)
	_, with := detect(t, in, func(o *Options) { o.Siblings = dir })
	if len(with) != 1 || with[0].Baseline != "siblings" || with[0].Severity != "warning" {
		t.Errorf("with siblings: %+v", with)
	}
	if len(alone) < 2 || alone[0].Severity != "info" {
		t.Errorf("alone: %+v, want the change and the fault, both for information", alone)
	}
}

// untold leaves out the columns phase and workload.
func untold(in string) string {
	var b strings.Builder
	for _, line := range strings.Split(strings.TrimSpace(in), "\n") {
		f := strings.Split(line, ",")
		fmt.Fprintf(&b, "%s,%s,%s\n", f[0], f[1], f[4])
	}
	return b.String()
}

func TestAPictureIsDrawnAndWrongInputIsNamed(t *testing.T) {
	png := filepath.Join(t.TempDir(), "x.png")
	detect(t, jobFile(600, false, 1), func(o *Options) { o.Plot = png })
	if b, err := os.ReadFile(png); err != nil || !strings.HasPrefix(string(b), "\x89PNG") {
		t.Errorf("no picture: %v", err)
	}
	for in, want := range map[string]string{
		"": "no header", "a,b\n1,2\n": "no column timestamp", "timestamp,host\n1,n1\n": "no column of numbers",
	} {
		path := filepath.Join(t.TempDir(), "in.csv")
		if err := os.WriteFile(path, []byte(in), 0o600); err != nil {
			t.Fatal(err)
		}
		err := Run(context.Background(), Options{In: path, Out: filepath.Join(t.TempDir(), "out.csv")})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", in, err, want)
		}
	}
}

func TestWhatIsReadIsNeverWrittenOver(t *testing.T) {
	dir := t.TempDir()
	in := filepath.Join(dir, "in.csv")
	link := filepath.Join(dir, "link.csv")
	if err := os.Symlink(in, link); err != nil {
		t.Fatal(err)
	}
	body := jobFile(100, false, 1)
	out := filepath.Join(dir, "out.csv")
	for _, o := range []Options{{Out: in}, {Out: link}, {Out: out, Findings: in}, {Out: out, Plot: in}, {Out: out, Findings: out}} {
		if err := os.WriteFile(in, []byte(body), 0o600); err != nil {
			t.Fatal(err)
		}
		o.In = in
		if err := Run(context.Background(), o); err == nil || !strings.Contains(err.Error(), "name the same file") {
			t.Errorf("%+v: %v", o, err)
		}
		if b, err := os.ReadFile(in); err != nil || string(b) != body {
			t.Errorf("%+v: the input is changed: %d bytes, %v", o, len(b), err)
		}
	}
}

func TestNoFolderIsMadeForANameThatMayBeASlip(t *testing.T) {
	dir := t.TempDir()
	in, typo := filepath.Join(dir, "in.csv"), filepath.Join(dir, "typo")
	if err := os.WriteFile(in, []byte(jobFile(100, false, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(dir, "out.csv")
	for _, o := range []Options{{Out: filepath.Join(typo, "x.csv")}, {Out: out, Findings: filepath.Join(typo, "x.jsonl")}, {Out: out, Plot: filepath.Join(typo, "x.png")}} {
		o.In = in
		if err := Run(context.Background(), o); err == nil || !strings.Contains(err.Error(), "there is no folder "+typo) {
			t.Errorf("%+v: %v", o, err)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
			t.Errorf("%+v: %v, %v beside the input", o, err, left)
		}
	}
}

func TestARunIsNoSiblingOfItself(t *testing.T) {
	dir := t.TempDir()
	in := filepath.Join(dir, "in.csv")
	if err := os.WriteFile(in, []byte(jobFile(100, false, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	err := Run(context.Background(), Options{In: in, Out: filepath.Join(dir, "out.csv"), Siblings: dir, Step: "step"})
	if err == nil || !strings.Contains(err.Error(), "no CSV files of past runs") {
		t.Errorf("alone in its folder: %v", err)
	}
}

func TestASignalThatTheFileLacksIsNamed(t *testing.T) {
	in := filepath.Join(t.TempDir(), "in.csv")
	if err := os.WriteFile(in, []byte(jobFile(100, false, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	o := Options{In: in, Out: filepath.Join(t.TempDir(), "out.csv"), Config: Config{Signals: map[string]SignalConfig{"stepms": {}}}}
	if err := Run(context.Background(), o); err == nil || !strings.Contains(err.Error(), "stepms") {
		t.Errorf("signals: stepms: %v", err)
	}
}

func TestTheConfigurationSaysWhichSideOfAColumnIsBad(t *testing.T) {
	in := strings.Replace(jobFile(1400, true, 1), "step_ms", "value", 1)
	for _, c := range []struct {
		config   Config
		severity string
	}{
		{Config{}, "warning"},
		{Config{Bad: "high"}, "warning"},
		{Config{Bad: "low"}, "info"},
		{Config{Bad: "low", Signals: map[string]SignalConfig{"value": {Bad: "both"}}}, "warning"},
		{Config{Signals: map[string]SignalConfig{"value": {Bad: "low"}}}, "info"},
	} {
		_, found := detect(t, in, func(o *Options) { o.Config = c.config })
		if len(found) != 1 || found[0].Severity != c.severity || found[0].Better != (c.severity == "info") {
			t.Errorf("%+v: %+v", c.config, found)
		}
	}
	for _, c := range []Config{{Bad: "up"}, {Signals: map[string]SignalConfig{"value": {Bad: "up"}}}} {
		if err := c.check(); err == nil || !strings.Contains(err.Error(), "high, low or both") {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
