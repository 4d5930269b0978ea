package plan

import (
	"cmp"
	"strings"
	"time"
)

// Claim is a live pod that has an address, or whose node says so.
type Claim struct {
	UID, Pod string // Pod is namespace/name
	// Confirmed tells that the pod's own status has the address.
	Confirmed bool
	// Served tells that gateways serve it there.
	Served  bool
	Created time.Time
}

// Holder is the claim whose an address is, of at least one: the first that a pod's status
// confirms, so that what one node says alone takes nothing from another's pods; then that of
// the one that gateways serve already; then of the oldest pod.
func Holder(claims []Claim) Claim {
	best := claims[0]
	for _, c := range claims[1:] {
		if cmp.Or(first(c.Confirmed, best.Confirmed), first(c.Served, best.Served), c.Created.Compare(best.Created), strings.Compare(c.UID, best.UID)) < 0 {
			best = c
		}
	}
	return best
}

// first orders what is true before what is not.
func first(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}
