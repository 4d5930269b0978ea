package podevents

import (
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// maxNote is how long an Event's note may be, in bytes (events.k8s.io/v1, Event.note).
const maxNote = 1024

// maxCause is how much of a cause is shown, in bytes. Those of Berth's own are
// shorter; in operator mode the object has the word.
const maxCause = 64

// troubleNote tells of a wait or a failure: what is wrong, then what to do. The end
// of a long message gives way.
func troubleNote(n News) string {
	remedy, _ := RemedyOf(n.Cause)
	end := fmt.Sprintf(" [%s]", clip(plain(n.Cause), maxCause))
	if remedy.Do != "" {
		end += " " + remedy.Do
	}
	end += fmt.Sprintf(" (docs/troubleshoot.md, %q)", remedy.Heading)
	return clip(interfacePrefix(n.IfName)+plain(n.Message), maxNote-len(end)) + end
}

// resolvedNote tells that an address came, or the network is back, and how long after the
// first trouble.
func resolvedNote(n News, after time.Duration) string {
	what := "has " + strings.Join(n.Addresses, " and ")
	if n.Kind == Restored {
		what = "is connected again"
	}
	return clip(fmt.Sprintf("%s%s, %v after the first of these Events", interfacePrefix(n.IfName), what, after.Round(100*time.Millisecond)), maxNote)
}

// interfacePrefix names an interface unless it is the one that every pod has.
func interfacePrefix(name string) string {
	if name == "eth0" {
		return ""
	}
	return "interface " + plain(name) + ": "
}

// plain is a text on one line, without what a terminal would act on.
func plain(s string) string {
	return strings.Join(strings.FieldsFunc(s, func(r rune) bool {
		return unicode.IsSpace(r) || !unicode.IsPrint(r) || r == unicode.ReplacementChar
	}), " ")
}

// clip shortens s to so many bytes, at a character.
func clip(s string, most int) string {
	const ellipsis = "…"
	if len(s) <= most {
		return s
	}
	cut := max(0, most-len(ellipsis))
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + ellipsis
}
