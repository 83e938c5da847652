package notify

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"text/template"
	"time"
)

// TemplateOptions are the settings of a webhook with a template.
type TemplateOptions struct {
	URL         func() string // asked for at each request: it may be a secret
	Method      string        // empty: POST
	ContentType string        // empty: application/json
	Header      func() http.Header
	Template    string // text/template over a Notice; empty: {{ json . }}
	Canary      bool   // it gets canaries
	Follow      bool   // it gets the notices of stage Progress
}

// Template posts each notice as a template makes it.
type Template struct {
	name string
	o    TemplateOptions
	body *template.Template
}

// maxBody bounds what a template may make.
const maxBody = 1 << 20

// functions are those of a template beside text/template's own.
var functions = template.FuncMap{
	"json": func(v any) (string, error) {
		raw, err := json.Marshal(v)
		return string(raw), err
	},
	"upper": strings.ToUpper,
	"lower": strings.ToLower,
	"cut": func(most int, s string) string {
		if r := []rune(s); len(r) > most {
			return string(r[:max(0, most)])
		}
		return s
	},
	"rfc3339": func(t time.Time) string { return t.UTC().Format(time.RFC3339) },
}

// NewTemplate makes a receiver by a name of its own. The template is tried with a notice whose text would break JSON.
func NewTemplate(name string, o TemplateOptions) (*Template, error) {
	if o.Method == "" {
		o.Method = http.MethodPost
	}
	if o.ContentType == "" {
		o.ContentType = apiMedia
	}
	if o.Template == "" {
		o.Template = "{{ json . }}"
	}
	if o.Header == nil {
		o.Header = func() http.Header { return nil }
	}
	body, err := template.New(name).Funcs(functions).Option("missingkey=error").Parse(o.Template)
	if err != nil {
		return nil, fmt.Errorf("webhook %s: template: %w", name, err)
	}
	t := &Template{name: name, o: o, body: body}
	bad := "a \"quote\", a \\ and\na line"
	for _, n := range []Notice{
		{Key: "k", Stage: Opened, Incident: "inc-1", Summary: bad, Broken: bad, Doing: bad, Person: bad, Detail: bad, Node: bad, Job: bad, Signal: bad},
		{Key: "k", Stage: Finding}, {Key: "k", Stage: Closed, Outcome: "recovered", LostSteps: new(int64)},
	} {
		if _, err := t.render(n); err != nil {
			return nil, fmt.Errorf("webhook %s: %w", name, err)
		}
	}
	return t, nil
}

// Name implements Receiver.
func (t *Template) Name() string { return t.name }

// Follows implements Follower.
func (t *Template) Follows() bool { return t.o.Follow }

// Send implements Receiver.
func (t *Template) Send(ctx context.Context, n Notice) (proof string, err error) {
	body, err := t.render(n)
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrRefused, err)
	}
	address := t.o.URL()
	if address == "" {
		return "", fmt.Errorf("webhook %s: the address cannot be read", t.name)
	}
	e, err := newEndpoint(address, "", t.o.ContentType)
	if err != nil {
		return "", fmt.Errorf("webhook %s: %w", t.name, err)
	}
	e.header = t.o.Header()
	_, err = e.do(ctx, t.o.Method, body, maxSaid)
	return "", err
}

// canaryTemplate is a Template that takes canaries: what is behind it watches that they come.
type canaryTemplate struct{ *Template }

// Probe implements Prober.
func (t canaryTemplate) Probe(ctx context.Context, canary Notice) error {
	_, err := t.Send(ctx, canary)
	return err
}

// render makes the body. JSON that is none is an error: text of a notice was put into it as it is.
func (t *Template) render(n Notice) ([]byte, error) {
	var b limited
	if err := t.body.Execute(&b, n); err != nil {
		return nil, fmt.Errorf("template: %w", err)
	}
	if strings.Contains(t.o.ContentType, "json") && !json.Valid(b.Bytes()) {
		return nil, fmt.Errorf("template: it does not make JSON; write {{ json .Summary }} in place of \"{{ .Summary }}\"")
	}
	return b.Bytes(), nil
}

// limited is a buffer that takes no more than maxBody.
type limited struct{ bytes.Buffer }

func (l *limited) Write(p []byte) (int, error) {
	if l.Len()+len(p) > maxBody {
		return 0, fmt.Errorf("it makes more than %d bytes", maxBody)
	}
	return l.Buffer.Write(p)
}
