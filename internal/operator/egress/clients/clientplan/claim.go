package clientplan

import (
	"cmp"
	"slices"
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

// Unconfirmed is how long gateways serve a pod at addresses that only its node says. A pod that starts waits for its
// gateways before its kubelet says its addresses; a stolen token of a node may say those of a server.
const Unconfirmed = 5 * time.Minute

// Confirmed are the addresses of a pod as far as they are believed.
type Confirmed struct {
	// Addresses are those at which gateways may serve it.
	Addresses []string
	// Elsewhere are those of which its kubelet says others.
	Elsewhere []string
	// Since is when only its node said an address; zero: its kubelet does, or none is said.
	Since time.Time
}

// Confirm compares the addresses that the node of a pod says with those that its kubelet says, of which there are none
// while it starts. since is what the last comparison had: nothing that the node says begins the time anew.
func Confirm(node, kubelet []string, since, now time.Time) Confirmed {
	if len(kubelet) > 0 {
		var c Confirmed
		for _, a := range node {
			if slices.Contains(kubelet, a) {
				c.Addresses = append(c.Addresses, a)
			} else {
				c.Elsewhere = append(c.Elsewhere, a)
			}
		}
		return c
	}
	if since.IsZero() && len(node) > 0 {
		since = now
	}
	if now.Before(since.Add(Unconfirmed)) {
		return Confirmed{Addresses: node, Since: since}
	}
	return Confirmed{Since: since}
}
