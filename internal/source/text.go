package source

import (
	"cmp"
	"fmt"
	"strings"
	"unicode"
)

// OneLine returns untrusted text on one line, cut to most bytes and an ellipsis.
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

// ASCII returns a text in the form that messages in status.node of Berth's kinds accept: one line of printable ASCII, cut to
// most bytes.
func ASCII(s string, most int) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, s)
	return s[:min(len(s), most)]
}

// CheckPoolName returns an error for an invalid name of an AddressPool, before it gets into a log or a message. by
// names the origin of the name.
func CheckPoolName(by, pool string) error {
	outside := func(r rune) bool { return r != '-' && (r < '0' || r > '9') && (r < 'a' || r > 'z') }
	if len(pool) > 63 || strings.ContainsFunc(pool, outside) {
		return fmt.Errorf("%s is %.80q, expected the name of an AddressPool: at most 63 lower-case letters, digits and hyphens", by, pool)
	}
	return nil
}

// CheckNetworkPool is CheckPoolName for the pool of the network's configuration, if it names one.
func CheckNetworkPool(w PodOptions) error {
	return CheckPoolName("pool of the network's configuration", w.NetworkPool)
}

// ReasonOf converts a condition's reason (PoolExhausted, ENILimit) to a Reason of Exhausted (pool-exhausted, eni-limit).
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
