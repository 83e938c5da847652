package remediator

import (
	"bufio"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// ReadLabels reads the labels of each node from what kubectl get nodes -o json prints.
func ReadLabels(file io.Reader) (map[string]map[string]string, error) {
	var list struct {
		Items []struct {
			Metadata struct {
				Name   string            `json:"name"`
				Labels map[string]string `json:"labels"`
			} `json:"metadata"`
		} `json:"items"`
	}
	raw, err := io.ReadAll(file)
	if err == nil {
		err = json.Unmarshal(raw, &list)
	}
	if err != nil {
		return nil, err
	}
	out := map[string]map[string]string{}
	for _, n := range list.Items {
		out[n.Metadata.Name] = n.Metadata.Labels
	}
	if len(out) == 0 {
		return nil, errors.New("it names no node; write it by kubectl get nodes -o json")
	}
	return out, nil
}

// maxDeeds bounds the file of what people did.
const maxDeeds = 100_000

// ReadDeeds reads CSV whose first line names time, node and action in any order, or JSON lines. An error names the line or entry.
func ReadDeeds(file io.Reader) ([]Deed, error) {
	in := bufio.NewReader(file)
	head, err := in.Peek(1)
	if err != nil {
		return nil, errors.New("it is empty")
	}
	if head[0] == '{' {
		return jsonDeeds(in)
	}
	return csvDeeds(in)
}

func jsonDeeds(in io.Reader) (out []Deed, err error) {
	for d := json.NewDecoder(in); len(out) < maxDeeds; {
		var one Deed
		err := d.Decode(&one)
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err == nil {
			err = one.check()
		}
		if err != nil {
			return nil, fmt.Errorf("entry %d: %w", len(out)+1, err)
		}
		out = append(out, one)
	}
	return nil, fmt.Errorf("more than %d entries", maxDeeds)
}

func csvDeeds(in io.Reader) (out []Deed, err error) {
	r := csv.NewReader(in)
	r.TrimLeadingSpace, r.Comment = true, '#'
	head, err := r.Read()
	if err != nil {
		return nil, err
	}
	column := map[string]int{}
	for k, name := range head {
		column[strings.ToLower(strings.TrimSpace(name))] = k
	}
	for _, want := range []string{"time", "node", "action"} {
		if _, there := column[want]; !there {
			return nil, fmt.Errorf("no column %q; the first line names time, node and action", want)
		}
	}
	for len(out) < maxDeeds {
		row, err := r.Read()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		line, _ := r.FieldPos(0)
		d := Deed{Node: strings.TrimSpace(row[column["node"]]), Action: strings.TrimSpace(row[column["action"]])}
		if d.Time, err = time.Parse(time.RFC3339, strings.TrimSpace(row[column["time"]])); err == nil {
			err = d.check()
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
		out = append(out, d)
	}
	return nil, fmt.Errorf("more than %d lines", maxDeeds)
}

func (d Deed) check() error {
	if d.Time.IsZero() || d.Node == "" || d.Action == "" {
		return errors.New("it wants a time such as 2026-11-21T22:00:00Z, a node and an action")
	}
	return nil
}
