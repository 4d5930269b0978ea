package clientplan

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// Claim is a live pod that has an address, or whose node reports it.
type Claim struct {
	UID, Pod string // Pod is namespace/name
	// Confirmed tells that the pod's own status has the address.
	Confirmed bool
	// Served tells that gateways serve the pod there.
	Served  bool
	Created time.Time
}

// Holder is the claim that wins an address, of at least one. A claim that a pod's status confirms
// comes first, so that a report of one node takes nothing from another node's pods; then that of a
// pod that gateways serve already; then that of the oldest pod.
func Holder(claims []Claim) Claim {
	best := claims[0]
	for _, c := range claims[1:] {
		if cmp.Or(first(c.Confirmed, best.Confirmed), first(c.Served, best.Served), c.Created.Compare(best.Created), strings.Compare(c.UID, best.UID)) < 0 {
			best = c
		}
	}
	return best
}

// first orders true before false.
func first(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// Unconfirmed is how long gateways serve a pod at addresses that only its node reports. A starting
// pod needs its gateways before its kubelet reports the addresses. Whoever stole a node's token may
// report the addresses of a server.
const Unconfirmed = 5 * time.Minute

// Confirmed is the result of Confirm.
type Confirmed struct {
	// Addresses are those at which gateways may serve the pod.
	Addresses []string
	// Elsewhere are those that contradict the kubelet.
	Elsewhere []string
	// Since is when the node first reported addresses without the kubelet; zero: the kubelet has
	// reported some, or neither has.
	Since time.Time
}

// Confirm compares the addresses of a pod that its node reports with those that its kubelet reports,
// which are none while the pod starts. since is that of the last result: nothing that the node
// reports restarts the time.
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
