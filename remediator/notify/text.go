package notify

import "strings"

// slackEscape makes text plain in Slack: no mention, no link, no end of a code block.
var slackEscape = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "`", "'")
