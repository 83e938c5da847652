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
	"strconv"
	"strings"
	"time"
)

// maxSaid bounds what is read of an answer that says what is wrong.
const maxSaid = 512

// endpoint is an HTTP address to which JSON is posted.
type endpoint struct {
	url    *url.URL
	media  string
	client *http.Client
	header http.Header // of every request; may hold secrets
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
	return endpoint{url: u, media: media, client: &http.Client{CheckRedirect: refuseRedirect}}, nil
}

// refuseRedirect rejects every redirect. A client that follows one sends the headers and the address, which may be secrets, to another host,
// and turns the POST into a GET without a body, which that host may accept.
func refuseRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

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
	for _, values := range e.header {
		parts = append(parts, values...)
		for _, v := range values {
			parts = append(parts, strings.Fields(v)...) // "Bearer TOKEN"
		}
	}
	slices.SortFunc(parts, func(a, b string) int { return len(b) - len(a) }) // a part is left out with what is around it
	for _, p := range parts {
		if len(p) >= leastSecret {
			said = strings.ReplaceAll(said, p, "…")
		}
	}
	return said
}

// post sends v as JSON. An answer that a repetition cannot change wraps ErrRefused.
func (e endpoint) post(ctx context.Context, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	_, err = e.do(ctx, http.MethodPost, body, maxSaid)
	return err
}

// do makes a request and returns at most so many bytes of an answer that is well.
func (e endpoint) do(ctx context.Context, method string, body []byte, most int64) (answer []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, method, e.url.String(), bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("%w: the address cannot be used", ErrRefused) // the error repeats it
	}
	for name, values := range e.header {
		req.Header[name] = values
	}
	if len(body) > 0 {
		req.Header.Set("Content-Type", e.media)
	}
	req.Header.Set("User-Agent", "pitcrew-remediator")
	resp, err := e.client.Do(req)
	if err != nil {
		return nil, cleaned(err, e)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode < 300 {
		if answer, err = io.ReadAll(io.LimitReader(resp.Body, most)); err != nil {
			return nil, cleaned(err, e)
		}
		_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<20)) // so that the connection is used again
		return answer, nil
	}
	said, _ := io.ReadAll(io.LimitReader(resp.Body, maxSaid))
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<20))
	err = fmt.Errorf("%s: %s", e.redact(resp.Status), e.redact(strings.TrimSpace(string(said))))
	switch {
	case resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode == http.StatusServiceUnavailable:
		return nil, busy{err, retryAfter(resp.Header.Get("Retry-After"), time.Now())}
	case resp.StatusCode == http.StatusRequestTimeout || resp.StatusCode >= 500:
		return nil, answered{err}
	}
	return nil, fmt.Errorf("%w: %w", ErrRefused, err)
}

// retryAfter reads the header of that name: seconds or a date. 0: it asks for nothing.
func retryAfter(value string, now time.Time) time.Duration {
	if s, err := strconv.Atoi(value); err == nil && s > 0 {
		return time.Duration(min(s, int(maxRetryAfter/time.Second))) * time.Second
	}
	if at, err := http.ParseTime(value); err == nil && at.After(now) {
		return at.Sub(now)
	}
	return 0
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
