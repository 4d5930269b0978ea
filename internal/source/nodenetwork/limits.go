package nodenetwork

import "strings"

// What the definition of NodeNetworks takes (api/v1alpha1, IPAMStatus and
// UsedAddress). A report that has more would be refused as a whole, with what
// the operator needs in it, because of a name that only people read.
const (
	maxWaiting = 4096
	maxOwner   = 317 // a namespace of 63, a slash, a name of 253
	maxUID     = 64
	maxOwners  = 400_000
)

// truncate is the beginning of a text, of at most so many characters of one byte each.
// No others are in names and UIDs that Kubernetes gives, nor does the definition take any.
func truncate(text string, most int) string {
	text = strings.Map(func(r rune) rune {
		if r < '!' || r > '~' {
			return '?'
		}
		return r
	}, text)
	return text[:min(len(text), max(0, most))]
}
