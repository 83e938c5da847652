package anomaly

import (
	"encoding/json"
	"math"

	"github.com/pitcrew/pitcrew/detector/series"
	"github.com/pitcrew/pitcrew/detector/statement"
	"github.com/pitcrew/pitcrew/event"
)

// float is a number that JSON cannot say where it is none.
type float float64

func (f float) MarshalJSON() ([]byte, error) {
	if v := float64(f); !math.IsNaN(v) && !math.IsInf(v, 0) {
		return json.Marshal(v)
	}
	return []byte("null"), nil
}

func (f *float) UnmarshalJSON(b []byte) error {
	v := math.NaN()
	if string(b) != "null" {
		if err := json.Unmarshal(b, &v); err != nil {
			return err
		}
	}
	*f = float(v)
	return nil
}

type savedIndex struct {
	Boot     string                `json:"boot"`
	Now      int64                 `json:"now"`
	Shift    int64                 `json:"shift"`
	Said     []statement.Statement `json:"said,omitempty"` // by people: they hold until the bus is heard again
	Entities []savedEntity         `json:"entities"`
}

type savedEntity struct {
	About   About         `json:"about"`
	ID      string        `json:"id"`
	Rank    int64         `json:"rank"`
	Target  event.Target  `json:"target"`
	Seen    int64         `json:"seen"`
	Attempt int64         `json:"attempt"`
	Step    float         `json:"step"`
	Ckpt    float         `json:"ckpt"`
	Warm    int           `json:"warm"`
	Pace    float         `json:"pace"`
	Work    uint32        `json:"work"`
	WorkAt  float         `json:"work_at"`
	Series  []savedTrack  `json:"series"`
	Members []savedMember `json:"members,omitempty"`
	Stories []savedStory  `json:"stories,omitempty"`
}

type savedTrack struct {
	Signal  string    `json:"signal"`
	Profile uint8     `json:"profile,omitempty"`
	SID     series.ID `json:"sid"`
	T       int64     `json:"t"`
	Since   int64     `json:"since"`
	N       uint32    `json:"n"`
	Every   float     `json:"every"`
	Raw     float     `json:"raw"` // the last value: of a counter, what the next is compared with
}

type savedReport struct {
	Said     event.Severity `json:"said,omitempty"`
	Dropped  bool           `json:"dropped,omitempty"`
	Ack      string         `json:"ack,omitempty"`
	Severity event.Severity `json:"severity"`
}

type savedMember struct {
	Signal   string         `json:"signal"`
	Report   savedReport    `json:"report"`
	Onset    int64          `json:"onset"`
	Value    float          `json:"value"`
	Expected float          `json:"expected"`
	Lower    float          `json:"lower"`
	Upper    float          `json:"upper"`
	Score    float          `json:"score"`
	Baseline string         `json:"baseline"`
	Shape    string         `json:"shape"`
	Phase    string         `json:"phase"`
	PromQL   string         `json:"promql"`
	Age      int            `json:"age"`
	AgeS     float          `json:"age_s"`
	Samples  []event.Sample `json:"samples"`
	Z        float          `json:"z"`
	Flags    uint8          `json:"flags"`
	State    event.State    `json:"state"`
	Level    float          `json:"level"`
	Lost     float          `json:"lost"`
}

const (
	savedTold uint8 = 1 << iota
	savedCertain
	savedAbsent
	savedUp
	savedWatch
)

type savedStory struct {
	Pattern   string      `json:"pattern"`
	Report    savedReport `json:"report"`
	Onset     int64       `json:"onset"`
	State     event.State `json:"state"`
	Witnesses []string    `json:"witnesses"` // signals of the entity, or after "rank:" of the rank on it
}
