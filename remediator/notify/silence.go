package notify

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"
)

// canaryAlert is the alert of a canary. Nobody is notified of it: a silence is there before it is.
const canaryAlert = "PitcrewCanary"

const (
	canaryLasts   = 5 * time.Minute // it ends without the next one
	silenceLasts  = 7 * 24 * time.Hour
	silenceRenews = 24 * time.Hour // before its end
)

// silence is Alertmanager's postableSilence and gettableSilence, as far as it is needed.
type silence struct {
	Matchers  []matcher `json:"matchers"`
	StartsAt  time.Time `json:"startsAt"`
	EndsAt    time.Time `json:"endsAt"`
	CreatedBy string    `json:"createdBy"`
	Comment   string    `json:"comment"`
	Status    *struct {
		State string `json:"state"`
	} `json:"status,omitempty"`
}

type matcher struct {
	Name    string `json:"name"`
	Value   string `json:"value"`
	IsRegex bool   `json:"isRegex"`
	IsEqual bool   `json:"isEqual"`
}

// canaryMatchers are those of the canary's silence. They match nothing else.
var canaryMatchers = []matcher{{Name: "alertname", Value: canaryAlert, IsEqual: true}}

// Probe implements Prober: it sends the canary as an alert that is silenced, and reads it back. Without the silence nothing is sent.
func (a *Alertmanager) Probe(ctx context.Context, canary Notice) error {
	if err := a.quiet(ctx); err != nil {
		return fmt.Errorf("the silence of the canary: %w", err)
	}
	now := a.now()
	sent := alert{
		Labels: filled(map[string]string{"alertname": canaryAlert, "cluster": canary.Cluster, "severity": "none"}),
		Annotations: map[string]string{
			"summary": canary.Summary, "canary": canary.Key,
		},
		StartsAt: now, EndsAt: now.Add(canaryLasts),
	}
	if err := a.to.post(ctx, []alert{sent}); err != nil {
		return err
	}
	got, err := a.read(ctx, sent.Labels)
	switch {
	case err != nil:
		return fmt.Errorf("read back: %w", err)
	case got == nil:
		return fmt.Errorf("%w: alert %s", ErrUnproven, canaryAlert)
	case got.Annotations["canary"] != canary.Key:
		return fmt.Errorf("%w: alert %s is of an earlier canary", ErrUnproven, canaryAlert)
	case len(got.Status.SilencedBy) == 0:
		sent.EndsAt = now // before anybody is notified of it
		return errors.Join(fmt.Errorf("alert %s is not silenced", canaryAlert), a.to.post(ctx, []alert{sent}))
	}
	return nil
}

// quiet makes sure that the canary's silence is there for a day.
func (a *Alertmanager) quiet(ctx context.Context) error {
	e := a.silences
	e.url = withFilters(e.url, map[string]string{"alertname": canaryAlert})
	raw, err := e.do(ctx, http.MethodGet, nil, maxReadBack)
	if err != nil {
		return err
	}
	var all []silence
	if err := json.Unmarshal(raw, &all); err != nil {
		return fmt.Errorf("the silences cannot be read: %w", err)
	}
	now := a.now()
	lasts := func(s silence) bool {
		return slices.Equal(s.Matchers, canaryMatchers) && s.Status != nil && s.Status.State == "active" && s.EndsAt.After(now.Add(silenceRenews))
	}
	if slices.ContainsFunc(all, lasts) {
		return nil
	}
	return a.silence.post(ctx, silence{
		Matchers: canaryMatchers, StartsAt: now, EndsAt: now.Add(silenceLasts), CreatedBy: "pitcrew-remediator",
		Comment: "Pitcrew's canary is read back every minute; nobody is notified of it",
	})
}
