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
		return endpoint{}, fmt.Errorf("%q is no http address; give one like http://alertmanager:9093", u.Redacted())
	}
	if path != "" {
		u = u.JoinPath(path)
	}
	return endpoint{url: u, media: media, client: &http.Client{}}, nil
}

// name is the address without what may be secret: credentials and the query.
func (e endpoint) name() string { return e.url.Scheme + "://" + e.url.Host + e.url.Path }

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
		return fmt.Errorf("%s: %s", resp.Status, strings.TrimSpace(string(said)))
	}
	return fmt.Errorf("%w: %s: %s", ErrRefused, resp.Status, strings.TrimSpace(string(said)))
}

// cleaned is the client's error without the address, which may hold a secret.
func cleaned(err error, e endpoint) error {
	if u, ok := err.(*url.Error); ok { //nolint:errorlint // the client wraps once, at the outside
		return fmt.Errorf("post to %s: %w", e.name(), u.Err)
	}
	return err
}
