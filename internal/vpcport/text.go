package vpcport

import "strings"

// Cut is a text of so many bytes at most, of whole characters.
func Cut(text string, most int) string {
	if len(text) > most {
		text = text[:most]
	}
	return strings.ToValidUTF8(text, "")
}
