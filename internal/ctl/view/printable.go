package view

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf16"
)

// printable escapes everything in s that is not printable: control characters, which a
// terminal would interpret, and characters that reorder or hide text. Names and messages
// come from pods, from EC2 and from other programs, and are not trusted.
func printable(s string) string { return escape(s, unicode.IsPrint) }

// Printable returns s with everything escaped that could affect a terminal.
func Printable(s string) string { return printable(s) }

// printableJSON does the same for JSON text and keeps its value: apart from line breaks,
// characters that are not printable occur in strings only.
func printableJSON(s string) string {
	return escape(s, func(r rune) bool { return r == '\n' || unicode.IsPrint(r) })
}

func escape(s string, keep func(rune) bool) string {
	if strings.IndexFunc(s, func(r rune) bool { return !keep(r) || r == unicode.ReplacementChar }) < 0 {
		return s
	}
	var b strings.Builder
	for _, r := range s { // invalid UTF-8 becomes U+FFFD
		switch {
		case keep(r):
			b.WriteRune(r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}
