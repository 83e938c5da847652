// Command language checks what people read in this repository: the pages, and the texts in Go sources and YAML files that users see.
//
// It counts three things per file: words that the style guide replaces (words.tsv), sentences of more than 30 words, and lines of
// prose that are wider than 120 columns. ratchet.tsv holds the counts that are allowed today. A count above it fails the check. A file
// that is not in ratchet.tsv may have no such word, no wide line, and 10 % long sentences.
//
// It does not judge grammar, and it does not read Python sources, comments or identifiers.
package main
