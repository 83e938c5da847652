package dcgmreceiver

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/receiver/receivertest"

	"github.com/pitcrew/pitcrew/semconv"
)

func TestTheDefaultConfigurationIsValid(t *testing.T) {
	if err := NewFactory().CreateDefaultConfig().(*Config).Validate(); err != nil {
		t.Error(err)
	}
}

func TestEachMistakeIsNamed(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Config)
		want   []string
	}{
		{"an unknown mode", func(c *Config) { c.Mode = "remote" }, []string{`mode: unknown "remote"`}},
		{"no address", func(c *Config) { c.Address = "" }, []string{"address: empty"}},
		{"no recording", func(c *Config) { c.Mode = ModeReplay }, []string{"file: empty"}},
		{"too short an interval", func(c *Config) { c.Interval = time.Millisecond }, []string{"interval: 1ms is below 100ms"}},
		{"no deadline", func(c *Config) { c.CallTimeout = 0 }, []string{"call_timeout"}},
		{"a gap below nothing", func(c *Config) { c.DCGMNamesInterval = -1 }, []string{"dcgm_names_interval"}},
		{"no longest interval", func(c *Config) { c.MaxInterval = 0 }, []string{"max_interval"}},
		{"an unknown policy", func(c *Config) { c.Policies = []string{"xid", "heat"} }, []string{`policies: unknown "heat"`}},
		{"an unknown field", func(c *Config) { c.ExtraFields = []uint16{9999} }, []string{"extra_fields: 9999"}},
		{"a core field", func(c *Config) { c.ExtraFields = []uint16{150} }, []string{"extra_fields: 150", "read anyway"}},
		{"two mistakes", func(c *Config) { c.Mode, c.ExpectedGPUs = "x", -1 }, []string{"mode:", "expected_gpus:"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := NewDefaultConfig()
			c.change(cfg)
			err := cfg.Validate()
			if err == nil {
				t.Fatal("it is valid")
			}
			for _, w := range c.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("error %q lacks %q", err, w)
				}
			}
		})
	}
}

func TestTheConfigurationIsReadFromItsKeys(t *testing.T) {
	cfg := NewDefaultConfig()
	err := confmap.NewFromStringMap(map[string]any{
		"mode": "embedded", "interval": "200ms", "call_timeout": "2s", "expected_gpus": 8, "dcgm_names": false, "max_interval": "20s",
		"policies": []any{"xid"}, "extra_fields": []any{1002, 1004}, "cluster": "c", "node": "n", "library": "/l", "retry_max": "3s",
	}).Unmarshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := cfg.Validate(); err != nil {
		t.Error(err)
	}
	if cfg.Interval != 200*time.Millisecond || cfg.ExpectedGPUs != 8 || cfg.DCGMNames || cfg.Library != "/l" || cfg.RetryMax != 3*time.Second || cfg.MaxInterval != 20*time.Second {
		t.Errorf("configuration is %+v", cfg)
	}
	if n := len(cfg.fields()); n != 55+len(switchFields)+2 {
		t.Errorf("%d fields", n)
	}
}

func TestFieldsOfFaultsFollowTheIntervalAndOthersTheirOwn(t *testing.T) {
	base, most := 200*time.Millisecond, 15*time.Second
	for id, want := range map[uint16]time.Duration{230: base, 310: base, 311: base, 395: base, 396: base, 150: 10 * time.Second, 385: most} {
		f, _ := FieldByID(id)
		if got := f.every(base, most); got != want {
			t.Errorf("field %d every %v, want %v", id, got, want)
		}
	}
	f, _ := FieldByID(150)
	if got := f.every(time.Minute, time.Minute); got != time.Minute {
		t.Errorf("field 150 every %v at an interval of a minute", got)
	}
	now := t0
	w := newWorker(func() time.Time { return now })
	defer w.stop()
	s := newSession(twoGPUs(), w, Fields, time.Second, 15*time.Second, func() time.Time { return now })
	s.run(false)
	now = now.Add(time.Second)
	ids, _ := s.take(false)
	if slices.Contains(ids, 150) || !slices.Contains(ids, 230) {
		t.Errorf("a second later %v are due", ids)
	}
	now = now.Add(9 * time.Second)
	if ids, _ = s.take(false); !slices.Contains(ids, 150) || slices.Contains(ids, 250) {
		t.Errorf("ten seconds later %v are due", ids)
	}
}

func TestARecordingIsPlayed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "node.json")
	rec := `{"devices":[{"ID":0,"UUID":"GPU-r","PCI":"00000000:1A:00.0","Model":"NVIDIA H100","Answer":true}],
	"values":[{"gpu":0,"field":150,"int":61},{"gpu":0,"field":155,"float":300.5},{"gpu":0,"field":140}]}`
	if err := os.WriteFile(file, []byte(rec), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := NewDefaultConfig()
	cfg.Mode, cfg.File = ModeReplay, file
	var sink consumertest.MetricsSink
	r, err := NewFactory().CreateMetrics(t.Context(), receivertest.NewNopSettings(Type), cfg, &sink)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Start(t.Context(), componenttest.NewNopHost()); err != nil {
		t.Fatal(err)
	}
	defer r.Shutdown(t.Context())
	eventually(t, "its values come", func() bool {
		for _, md := range sink.AllMetrics() {
			temp := points(md, "hw.temperature", semconv.HWSensorLocation)
			power := points(md, "hw.power", semconv.HWID)
			if len(temp) == 1 && len(power) == 1 { // the memory's temperature is a blank
				return temp["gpu"].IntValue() == 61 && power["GPU-r"].DoubleValue() == 300.5
			}
		}
		return false
	})
}

func TestAMissingRecordingIsAnErrorAtStart(t *testing.T) {
	cfg := NewDefaultConfig()
	cfg.Mode, cfg.File = ModeReplay, filepath.Join(t.TempDir(), "none.json")
	r, err := NewFactory().CreateMetrics(t.Context(), receivertest.NewNopSettings(Type), cfg, consumertest.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	defer r.Shutdown(t.Context())
	if err := r.Start(t.Context(), componenttest.NewNopHost()); err == nil || !strings.Contains(err.Error(), "none.json") {
		t.Errorf("error is %v", err)
	}
}
