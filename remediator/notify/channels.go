package notify

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/goccy/go-yaml"
)

// channelsFile is a file of channels. Secrets are in files of their own, named relative to it, and are read at each request.
type channelsFile struct {
	Channels []struct {
		Name    string        `yaml:"name"`
		Slack   *slackFile    `yaml:"slack"`
		Webhook *templateFile `yaml:"webhook"`
	} `yaml:"channels"`
}

type slackFile struct {
	Channel   string `yaml:"channel"`
	TokenFile string `yaml:"tokenFile"`
	API       string `yaml:"api"`
}

type templateFile struct {
	URLFile     string            `yaml:"urlFile"`
	Method      string            `yaml:"method"`
	ContentType string            `yaml:"contentType"`
	Headers     map[string]string `yaml:"headers"`     // not secret
	HeaderFiles map[string]string `yaml:"headerFiles"` // files whose text is the value
	Template    string            `yaml:"template"`
	Canary      bool              `yaml:"canary"`
	Progress    bool              `yaml:"progress"`
}

const maxSecret = 16 << 10

var channelName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// Channels makes the receivers of a file. Threads are kept in a store. Runbooks are below a base address.
func Channels(path, books string, threads Store) ([]Receiver, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("channels: %w", err)
	}
	var f channelsFile
	if err := yaml.UnmarshalWithOptions(raw, &f, yaml.Strict()); err != nil {
		return nil, fmt.Errorf("channels %s: %s", path, yaml.FormatError(err, false, false)) // without the source: a secret may be in it by mistake
	}
	secret := func(name string) (func() string, error) { return secretIn(filepath.Dir(path), name) }
	var out []Receiver
	known := map[string]bool{}
	for k, c := range f.Channels {
		var r Receiver
		var err error
		switch {
		case !channelName.MatchString(c.Name):
			err = fmt.Errorf("name %q must be lower-case letters, digits and -", c.Name)
		case known[c.Name]:
			err = errors.New("the name is given twice")
		case (c.Slack == nil) == (c.Webhook == nil):
			err = errors.New("it needs either slack or webhook")
		case c.Slack != nil:
			r, err = c.Slack.receiver(c.Name, books, threads, secret)
		default:
			r, err = c.Webhook.receiver(c.Name, secret)
		}
		if err != nil {
			return nil, fmt.Errorf("channels %s: channel %d (%s): %w", path, k+1, c.Name, err)
		}
		known[c.Name] = true
		out = append(out, r)
	}
	return out, nil
}

func (c slackFile) receiver(name, books string, threads Store, secret func(string) (func() string, error)) (Receiver, error) {
	token, err := secret(c.TokenFile)
	if err != nil {
		return nil, fmt.Errorf("tokenFile: %w", err)
	}
	return NewSlack(name, SlackOptions{Channel: c.Channel, Token: token, API: c.API, Books: books, Threads: threads})
}

func (c templateFile) receiver(name string, secret func(string) (func() string, error)) (Receiver, error) {
	o := TemplateOptions{Method: c.Method, ContentType: c.ContentType, Template: c.Template, Canary: c.Canary, Follow: c.Progress}
	var err error
	if o.URL, err = secret(c.URLFile); err != nil {
		return nil, fmt.Errorf("urlFile: %w", err)
	}
	if _, err := newEndpoint(o.URL(), "", c.ContentType); err != nil {
		return nil, fmt.Errorf("urlFile: %w", err)
	}
	values := map[string]func() string{}
	for name, value := range c.Headers {
		values[name] = func() string { return value }
	}
	for name, file := range c.HeaderFiles {
		if values[name], err = secret(file); err != nil {
			return nil, fmt.Errorf("headerFiles: %s: %w", name, err)
		}
	}
	o.Header = func() http.Header {
		h := http.Header{}
		for name, value := range values {
			h.Set(name, value())
		}
		return h
	}
	t, err := NewTemplate(name, o)
	if err != nil || !c.Canary {
		return t, err
	}
	return canaryTemplate{t}, nil
}

// secretIn gives what reads a secret's file, and an error if it cannot be read now. A file that cannot be read later gives nothing.
func secretIn(dir, name string) (func() string, error) {
	if name == "" {
		return nil, errors.New("is missing; secrets are given as files")
	}
	if !filepath.IsAbs(name) {
		name = filepath.Join(dir, name)
	}
	read := func() (string, error) {
		raw, err := os.ReadFile(name)
		switch text := strings.TrimSpace(string(raw)); {
		case err != nil:
			return "", err
		case text == "" || len(raw) > maxSecret || strings.ContainsAny(text, "\r\n"):
			return "", fmt.Errorf("%s must hold one line", name)
		default:
			return text, nil
		}
	}
	_, err := read()
	return func() string { text, _ := read(); return text }, err
}
