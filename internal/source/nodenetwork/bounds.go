package nodenetwork

import "strings"

// What the definition of NodeNetworks takes (api/v1alpha1, IPAMStatus and
// UsedAddress). A report that has more would be refused as a whole, with what
// the operator needs in it, because of a name that only people read.
const (
	mostWaiting = 4096
	ownerLength = 317 // a namespace of 63, a slash, a name of 253
	uidLength   = 64
	ownersTotal = 400_000
)

// cut is the beginning of a text, of at most so many bytes and whole characters.
func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:max(0, most)], "")
}
