package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

const longShare = 0.10 // of the sentences of a page that is not in the ratchet

const ratchetHead = "# What each file may have at most: words to replace, long sentences, wide lines. `make golden` lowers the counts; it raises none.\n"

func readRatchet(text string) (map[string]counts, error) {
	out := map[string]counts{}
	for i, line := range strings.Split(text, "\n") {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		var path string
		var c counts
		if _, err := fmt.Sscanf(line, "%s\t%d\t%d\t%d", &path, &c.words, &c.long, &c.wide); err != nil {
			return nil, fmt.Errorf("ratchet.tsv:%d: %q: %w", i+1, line, err)
		}
		out[path] = c
	}
	return out, nil
}

func writeRatchet(limits map[string]counts) string {
	var b strings.Builder
	b.WriteString(ratchetHead)
	for _, path := range slices.Sorted(maps.Keys(limits)) {
		c := limits[path]
		fmt.Fprintf(&b, "%s\t%d\t%d\t%d\n", path, c.words, c.long, c.wide)
	}
	return b.String()
}

// unlisted is what a file may have that is not in the ratchet.
func unlisted(r report) counts {
	return counts{long: int(longShare * float64(r.sentences))}
}

// exceeds names each count of a file that is above its limit.
func exceeds(have, limit counts) []string {
	var out []string
	for _, k := range []struct {
		what        string
		have, limit int
	}{
		{"words to replace", have.words, limit.words},
		{"sentences of more than 30 words", have.long, limit.long},
		{"lines wider than 120 columns", have.wide, limit.wide},
	} {
		if k.have > k.limit {
			out = append(out, fmt.Sprintf("%d %s, %d allowed", k.have, k.what, k.limit))
		}
	}
	return out
}

// lowered is the ratchet after a run: no limit is raised, a file that is gone or clean enough is left out.
func lowered(limits map[string]counts, reports map[string]report, first bool) map[string]counts {
	out := map[string]counts{}
	for path, r := range reports {
		limit, listed := limits[path]
		c := r.counts
		if listed {
			c = counts{min(c.words, limit.words), min(c.long, limit.long), min(c.wide, limit.wide)}
		} else if !first {
			continue
		}
		if len(exceeds(c, unlisted(r))) > 0 {
			out[path] = c
		}
	}
	return out
}
