package notify

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// maxSaid bounds what is read of an answer that says what is wrong.
const maxSaid = 512

// endpoint is an HTTP address to which JSON is posted.
type endpoint struct {
	url    *url.URL
	media  string
	client *http.Client
}

func newEndpoint(address, path, media string) (endpoint, error) {
	u, err := url.Parse(address)
	if wrong := (*url.Error)(nil); errors.As(err, &wrong) {
		return endpoint{}, fmt.Errorf("the address cannot be parsed: %w; give one like http://alertmanager:9093", wrong.Err) // it may hold a secret
	} else if err != nil {
		return endpoint{}, err
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return endpoint{}, fmt.Errorf("an address of scheme %q is no http address; give one like http://alertmanager:9093", u.Scheme) // the rest may be secret
	}
	if path != "" {
		u = u.JoinPath(path)
	}
	return endpoint{url: u, media: media, client: &http.Client{}}, nil
}

// name is the address without what may be secret: credentials, the query, and the path, which is the whole secret of many webhooks.
func (e endpoint) name() string {
	name := e.url.Scheme + "://" + e.url.Host
	if strings.Trim(e.url.Path, "/") != "" || e.url.RawQuery != "" {
		name += "/…"
	}
	return name
}

// leastSecret is how long a part of an address is that is taken for a secret where a receiver repeats it alone.
const leastSecret = 6

// redact leaves out of a receiver's words what they repeat of its address: "Cannot POST /services/T0/B0/x".
func (e endpoint) redact(said string) string {
	parts := []string{e.url.String(), e.url.RequestURI(), e.url.EscapedPath(), e.url.Path, e.url.RawQuery}
	if e.url.User != nil {
		word, _ := e.url.User.Password()
		parts = append(parts, e.url.User.String(), word, e.url.User.Username())
	}
	parts = append(parts, strings.FieldsFunc(e.url.Path+"&"+e.url.RawQuery, func(r rune) bool { return strings.ContainsRune("/&=?", r) })...)
	for _, query := range e.url.Query() {
		parts = append(parts, query...)
	}
	slices.SortFunc(parts, func(a, b string) int { return len(b) - len(a) }) // a part is left out with what is around it
	for _, p := range parts {
		if len(p) >= leastSecret {
			said = strings.ReplaceAll(said, p, "…")
		}
	}
	return said
}

// post sends v. An answer that a repetition cannot change wraps ErrRefused.
func (e endpoint) post(ctx context.Context, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.url.String(), bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	req.Header.Set("Content-Type", e.media)
	req.Header.Set("User-Agent", "pitcrew-remediator")
	resp, err := e.client.Do(req)
	if err != nil {
		return cleaned(err, e)
	}
	defer func() { _ = resp.Body.Close() }()
	said, _ := io.ReadAll(io.LimitReader(resp.Body, maxSaid))
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<20)) // so that the connection is used again
	switch {
	case resp.StatusCode < 300:
		return nil
	case resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode == http.StatusRequestTimeout || resp.StatusCode >= 500:
		return fmt.Errorf("%s: %s", e.redact(resp.Status), e.redact(strings.TrimSpace(string(said))))
	}
	return fmt.Errorf("%w: %s: %s", ErrRefused, e.redact(resp.Status), e.redact(strings.TrimSpace(string(said))))
}

// cleaned is the client's error without the address, which may hold a secret.
func cleaned(err error, e endpoint) error {
	if u, ok := err.(*url.Error); ok { //nolint:errorlint // the client wraps once, at the outside
		err = u.Err
	}
	if text := err.Error(); e.redact(text) != text { // a redirect that cannot be followed, say
		return fmt.Errorf("post to %s: %s", e.name(), e.redact(text))
	}
	return fmt.Errorf("post to %s: %w", e.name(), err)
}
