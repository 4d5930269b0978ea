package source

import (
	"cmp"
	"strings"
	"unicode"
)

// ReasonOf makes a condition's reason (PoolExhausted, ENILimit) one of Exhausted
// (pool-exhausted, eni-limit).
func ReasonOf(reason string) string {
	var b strings.Builder
	letters := []rune(reason)
	for i, r := range letters {
		begins := i > 0 && unicode.IsUpper(r) &&
			(!unicode.IsUpper(letters[i-1]) || i+1 < len(letters) && unicode.IsLower(letters[i+1]))
		if begins {
			b.WriteByte('-')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return cmp.Or(b.String(), "degraded")
}
