package webhook

import (
	"slices"
	"time"
)

const (
	// renewAfter is how old the newest authority is when the next is made.
	renewAfter = authorityLife * 2 / 3
	// settle is how long a new authority is trusted before it signs: until then every
	// API server knows it.
	settle = time.Hour
)

// current are the authorities that are not over, and whether another is due.
func current(list []authority, now time.Time) (kept []authority, due bool) {
	kept = slices.DeleteFunc(slices.Clone(list), func(a authority) bool { return !now.Before(a.cert.NotAfter) })
	return kept, !slices.ContainsFunc(kept, func(a authority) bool { return now.Before(a.made().Add(renewAfter)) })
}

// signer is the one that signs: the newest that has settled, or else the oldest.
func signer(list []authority, now time.Time) (authority, bool) {
	kept, _ := current(list, now)
	if len(kept) == 0 {
		return authority{}, false
	}
	slices.SortStableFunc(kept, func(a, b authority) int { return a.made().Compare(b.made()) })
	for _, a := range slices.Backward(kept) {
		if !now.Before(a.made().Add(settle)) {
			return a, true
		}
	}
	return kept[0], true
}
