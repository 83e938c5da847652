package notify

import (
	"context"
	"fmt"
	"time"
)

// NoticeType is the CloudEvents type of a notice.
const NoticeType = "dev.pitcrew.notice.v1"

// Webhook posts each notice as a CloudEvent 1.0 in structured JSON. Its id is the notice's key.
type Webhook struct{ to endpoint }

// NewWebhook makes a receiver for an http address.
func NewWebhook(address string) (*Webhook, error) {
	e, err := newEndpoint(address, "", "application/cloudevents+json; charset=utf-8")
	if err != nil {
		return nil, fmt.Errorf("webhook: %w", err)
	}
	return &Webhook{e}, nil
}

// Name implements Receiver.
func (w *Webhook) Name() string { return w.to.name() }

// envelope is a CloudEvent in structured JSON.
type envelope struct {
	SpecVersion     string    `json:"specversion"`
	ID              string    `json:"id"`
	Source          string    `json:"source"`
	Type            string    `json:"type"`
	Subject         string    `json:"subject,omitempty"`
	Time            time.Time `json:"time"`
	DataContentType string    `json:"datacontenttype"`
	Data            Notice    `json:"data"`
}

// Send implements Receiver.
func (w *Webhook) Send(ctx context.Context, n Notice) (proof string, err error) {
	e := envelope{
		SpecVersion: "1.0", ID: n.Key, Source: "//" + n.Cluster + "/remediator", Type: NoticeType, Time: n.At, DataContentType: "application/json", Data: n,
	}
	switch {
	case n.Incident != "":
		e.Subject = "incident/" + n.Incident
	case n.GPU != "":
		e.Subject = "gpu/" + n.GPU
	case n.Node != "":
		e.Subject = "node/" + n.Node
	}
	return "", w.to.post(ctx, e)
}
