package notify

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pitcrew/pitcrew/docs/runbooks"
)

// slackAPI is where the methods of Slack's Web API are.
const slackAPI = "https://slack.com/api/"

// SlackOptions are the settings of a Slack channel.
type SlackOptions struct {
	Channel string        // id, such as C0123456789
	Token   func() string // a bot's token, asked for at each request
	API     string        // empty: slackAPI
	Books   string        // base address of the runbooks
	Threads Store
	Now     func() time.Time // nil: time.Now
}

// Slack posts to a channel by Slack's Web API. An incident is one message there: it always shows how the incident stands, and its
// thread has one reply for each stage. The thread is claimed in a store before it is opened. Whoever finds a claim without a thread
// looks in the channel's history whether the message was posted, so neither a crash nor a second leader opens another thread.
type Slack struct {
	name string
	o    SlackOptions
	api  endpoint
	id   string // of this process, in claims
}

// claimLasts is how long another process may take to open a thread that it has claimed: longer than a try.
const claimLasts = 30 * time.Second

// slackEvent is the metadata type by which a message is found again.
const slackEvent = "pitcrew_incident"

// NewSlack makes a receiver by a name of its own.
func NewSlack(name string, o SlackOptions) (*Slack, error) {
	if o.API == "" {
		o.API = slackAPI
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	api, err := newEndpoint(o.API, "", "application/json; charset=utf-8")
	switch {
	case err != nil:
		return nil, fmt.Errorf("slack %s: %w", name, err)
	case o.Channel == "":
		return nil, fmt.Errorf("slack %s: channel is missing; give its id, such as C0123456789", name)
	case o.Threads == nil || o.Token == nil:
		return nil, fmt.Errorf("slack %s: it needs a token and a store of threads", name)
	}
	return &Slack{name: name, o: o, api: api, id: rand.Text()}, nil
}

// Name implements Receiver.
func (s *Slack) Name() string { return s.name }

// Follows implements Follower: the thread has each step.
func (*Slack) Follows() bool { return true }

// Probe implements Prober. Slack has no message that nobody sees, so it only proves that the API is reached and the token valid.
func (s *Slack) Probe(ctx context.Context, _ Notice) error {
	_, err := s.call(ctx, "auth.test", map[string]any{})
	return err
}

// Send implements Receiver.
func (s *Slack) Send(ctx context.Context, n Notice) (proof string, err error) {
	id := n.thread()
	if id == "" {
		a, err := s.post(ctx, s.message(n))
		return a.proof(), err
	}
	t, opened, err := s.thread(ctx, id, n)
	if err != nil {
		return "", err
	}
	if opened || slices.Contains(t.Said, n.Key) {
		return answer{Channel: t.Channel, TS: t.TS}.proof(), nil
	}
	if !n.At.Before(t.Shows) { // else it is told late, and the message shows more
		m := s.message(n)
		m["channel"], m["ts"] = t.Channel, t.TS
		switch _, err := s.call(ctx, "chat.update", m); {
		case said(err, "message_not_found"): // a person deleted it
			return "", errors.Join(err, s.forget(ctx, id, t.TS))
		case err != nil && !said(err, "edit_window_closed", "cant_update_message"):
			return "", err
		}
	}
	reply := map[string]any{
		"channel": t.Channel, "thread_ts": t.TS, "text": s.reply(n), "reply_broadcast": n.NeedsPerson, "unfurl_links": false, "unfurl_media": false,
	}
	a, err := s.post(ctx, reply)
	if err != nil {
		return "", err
	}
	_, err = change(ctx, s.o.Threads, id, func(r *Record) error {
		now := r.Threads[s.name]
		if now.TS == t.TS {
			now.Said = newest(append(now.Said, n.Key))
			if n.At.After(now.Shows) {
				now.Shows = n.At
			}
			r.set(s.name, now)
		}
		return nil
	})
	return a.proof(), err
}

// errClaimed is for a thread that another process is opening.
var errClaimed = errors.New("another process is opening the thread")

// thread is the incident's thread. It is opened with the notice if there is none.
func (s *Slack) thread(ctx context.Context, id string, n Notice) (t Thread, opened bool, err error) {
	var before Thread
	r, err := change(ctx, s.o.Threads, id, func(r *Record) error {
		before = r.Threads[s.name]
		if left := claimLasts - s.o.Now().Sub(before.Claimed); before.TS == "" && before.Claim != "" && before.Claim != s.id && left > 0 {
			return busy{errClaimed, left}
		}
		if before.TS == "" {
			claim := Thread{Claim: s.id, Claimed: s.o.Now(), Tried: before.Tried}
			if claim.Tried.IsZero() {
				claim.Tried = claim.Claimed
			}
			r.set(s.name, claim)
		}
		return nil
	})
	if t = r.Threads[s.name]; err != nil || t.TS != "" {
		return t, false, err
	}
	var at answer
	if before.Claim != "" { // somebody may have posted it, and could not record that
		if at, err = s.find(ctx, id, before.Tried.Add(-time.Minute)); err != nil {
			return t, false, err
		}
	}
	if opened = at.TS == ""; opened {
		m := s.message(n)
		m["metadata"] = map[string]any{"event_type": slackEvent, "event_payload": map[string]any{"incident": id}}
		if at, err = s.post(ctx, m); err != nil {
			return t, false, err
		}
	}
	r, err = change(ctx, s.o.Threads, id, func(r *Record) error {
		t = r.Threads[s.name]
		if t.Claim != s.id {
			return errClaimed
		}
		t.Channel, t.TS = at.Channel, at.TS
		if opened {
			t.Said, t.Shows = []string{n.Key}, n.At
		}
		r.set(s.name, t)
		return nil
	})
	if errors.Is(err, errClaimed) && opened { // it stood still for longer than a claim lasts, and another process went on
		_, gone := s.call(ctx, "chat.delete", map[string]any{"channel": at.Channel, "ts": at.TS})
		err = errors.Join(err, gone)
	}
	return r.Threads[s.name], opened, err
}

// find looks for the message of an incident in the channel's history. Without the right to read it, nothing is found.
func (s *Slack) find(ctx context.Context, id string, since time.Time) (answer, error) {
	a, err := s.call(ctx, "conversations.history", map[string]any{
		"channel": s.o.Channel, "oldest": strconv.FormatInt(since.Unix(), 10), "include_all_metadata": true, "limit": 200,
	})
	if said(err, "missing_scope") {
		return answer{}, nil
	}
	for _, m := range a.Messages {
		if m.Metadata.Type == slackEvent && m.Metadata.Payload.Incident == id {
			return answer{Channel: s.o.Channel, TS: m.TS}, nil
		}
	}
	return answer{}, err
}

// forget ends a thread whose first message is gone, so that the next try opens another.
func (s *Slack) forget(ctx context.Context, id, ts string) error {
	_, err := change(ctx, s.o.Threads, id, func(r *Record) error {
		if r.Threads[s.name].TS == ts {
			r.set(s.name, Thread{})
		}
		return nil
	})
	return err
}

// icons begin a message, by what it says.
func icon(n Notice) string {
	switch {
	case n.NeedsPerson:
		return ":raising_hand:"
	case n.Stage == Closed:
		return ":white_check_mark:"
	case n.Stage == Finding:
		return ":mag:"
	}
	return ":wrench:"
}

// message is a first message: how it stands now.
func (s *Slack) message(n Notice) map[string]any {
	lines := []string{icon(n) + " " + slackEscape.Replace(n.Summary)}
	if n.Detail != "" {
		lines = append(lines, "```"+slackEscape.Replace(n.Detail)+"```")
	}
	facts := []string{"`" + slackEscape.Replace(n.Severity) + "`", "cluster " + slackEscape.Replace(n.Cluster)}
	if n.Rule != "" {
		facts = append(facts, slackEscape.Replace("rule "+n.Rule+" of policy "+n.Policy))
	}
	if !n.Began.IsZero() {
		facts = append(facts, "began "+n.Began.UTC().Format(time.DateTime)+" UTC")
	}
	book := incidentAlert
	if n.NeedsPerson {
		book = personAlert
	}
	if n.Incident == "" {
		book = findingAlert
	} else {
		facts = append(facts, "`pitcrew incident show "+slackEscape.Replace(n.Incident)+"`")
	}
	lines = append(lines, strings.Join(append(facts, "<"+runbooks.URL(s.o.Books, book)+"|what to do>"), " · "))
	return map[string]any{"channel": s.o.Channel, "text": strings.Join(lines, "\n"), "unfurl_links": false, "unfurl_media": false}
}

// reply is a message in the thread: what is new.
func (s *Slack) reply(n Notice) string {
	text := n.Summary
	if n.Doing != "" {
		text = FirstLine("", n.Doing, n.Person)
	}
	return icon(n) + " " + n.At.UTC().Format(time.TimeOnly) + " UTC  " + slackEscape.Replace(text)
}

// answer is what a method of the API answers.
type answer struct {
	OK       bool   `json:"ok"`
	Error    string `json:"error"`
	Channel  string `json:"channel"`
	TS       string `json:"ts"`
	Messages []struct {
		TS       string `json:"ts"`
		Metadata struct {
			Type    string `json:"event_type"`
			Payload struct {
				Incident string `json:"incident"`
			} `json:"event_payload"`
		} `json:"metadata"`
	} `json:"messages"`
}

// proof names the message that Slack has stored.
func (a answer) proof() string {
	if a.TS == "" {
		return ""
	}
	return "message " + a.TS + " in " + a.Channel
}

// slackError is an answer that is not ok.
type slackError string

func (e slackError) Error() string { return "slack: " + string(e) }

// said reports whether an error is one of these answers.
func said(err error, words ...string) bool {
	var e slackError
	return errors.As(err, &e) && slices.Contains(words, string(e))
}

// slackRetries are the errors that another try may not meet.
var slackRetries = []string{"ratelimited", "rate_limited", "internal_error", "fatal_error", "service_unavailable", "request_timeout", "message_not_found"}

func (s *Slack) post(ctx context.Context, message map[string]any) (answer, error) {
	return s.call(ctx, "chat.postMessage", message)
}

// call asks a method of the API. An answer that another try cannot change wraps ErrRefused.
func (s *Slack) call(ctx context.Context, method string, arguments map[string]any) (a answer, err error) {
	body, err := json.Marshal(arguments)
	if err != nil {
		return a, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	token := s.o.Token()
	if token == "" {
		return a, fmt.Errorf("%s: the token cannot be read", method)
	}
	e := s.api
	e.url, e.header = e.url.JoinPath(method), http.Header{"Authorization": {"Bearer " + token}}
	raw, err := e.do(ctx, http.MethodPost, body, maxReadBack)
	if err != nil {
		return a, fmt.Errorf("%s: %w", method, err)
	}
	if err := json.Unmarshal(raw, &a); err != nil {
		return answer{}, fmt.Errorf("%s: the answer is not Slack's", method)
	}
	switch {
	case a.OK:
		return a, nil
	case slices.Contains(slackRetries, a.Error):
		return a, answered{fmt.Errorf("%s: %w", method, slackError(e.redact(a.Error)))}
	}
	return a, fmt.Errorf("%s: %w: %w", method, ErrRefused, slackError(e.redact(a.Error)))
}
