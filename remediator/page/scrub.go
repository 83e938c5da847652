package page

import "github.com/pitcrew/pitcrew/remediator/safetext"

// maxText bounds each text that is shown, in bytes. A kernel line is below 1 KiB.
const maxText = 2048

func clean(s string, limit int) string { return safetext.Clean(s, limit) }

func hidden(r rune) bool { return safetext.Hidden(r) }

// scrub cleans every text within v, a pointer, so that no template can forget one.
func scrub(v any) { safetext.CleanAll(v, maxText) }
