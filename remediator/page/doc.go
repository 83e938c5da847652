// Package page serves the incident page: incidents as they happen, why each decision was made, and what a person can do about it.
//
// It promises:
//   - It shows what the store and the cluster's watch say, and how old that is. Every replica shows the same.
//   - It never acts by itself. Each change is one POST of a person with the role operator, from a form of this page, and is written to the
//     audit log with that person's name before and after. Without Options.Actions no such request exists.
//   - Whatever an incident's text holds, it is shown as text: no markup, control character or change of writing direction gets through, and
//     no text is longer than a bound.
//   - It needs no other host, and no request has to be repeated to the same replica.
//
// It decides nothing. Of the cluster it changes only what a person asks for: a quarantine is lifted, a hold is set or taken away.
package page
