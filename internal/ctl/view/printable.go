package view

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf16"
)

// printable is s with everything that would not be seen as itself escaped:
// control characters, which a terminal obeys, and those that reorder or hide
// text. Names and messages come from pods, from EC2 and from other programs.
func printable(s string) string { return escape(s, unicode.IsPrint) }

// Printable is printable, for those who write errors.
func Printable(s string) string { return printable(s) }

// printableJSON does so for JSON text, which stays the same value: what is not
// printable is in strings there, but for the ends of lines.
func printableJSON(s string) string {
	return escape(s, func(r rune) bool { return r == '\n' || unicode.IsPrint(r) })
}

func escape(s string, keep func(rune) bool) string {
	if strings.IndexFunc(s, func(r rune) bool { return !keep(r) || r == unicode.ReplacementChar }) < 0 {
		return s
	}
	var b strings.Builder
	for _, r := range s { // what is no UTF-8 becomes U+FFFD
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
