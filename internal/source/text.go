package source

import (
	"strings"
	"unicode"
)

// OneLine is a text of elsewhere on one line, and of some bytes at most.
func OneLine(s string, most int) string {
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, s)
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "..."
	}
	return s
}

// ASCII is a text as the messages in status.node of Berth's kinds may be: one line of printable
// ASCII, of some bytes at most.
func ASCII(s string, most int) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, s)
	return s[:min(len(s), most)]
}
