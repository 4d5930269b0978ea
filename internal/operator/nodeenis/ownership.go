package nodeenis

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/nodenetwork"
)

// ownership is whether somebody else writes spec.ipam of a node's object, and
// what follows from it.
type ownership struct {
	// sent is the spec.ipam of the last request, whatever its result, and lost
	// that of the last request without an answer, which may have been stored as well.
	sent, lost *v1alpha1.IPAMSpec
	// observeFirst: spec.ipam may be somebody else's; it is not written before the
	// fleet publishes what it observed since.
	observeFirst bool
	suppressed   map[netip.Prefix]time.Time // not published before then
}

// foreign tells whether o has another spec.ipam than before, and than any that this process has
// sent since: their answers may come later, or never.
func (w *ownership) foreign(before, o *v1alpha1.NodeNetwork) bool {
	if sameIPAM(before.Spec.IPAM, o.Spec.IPAM) {
		return false
	}
	for _, own := range [...]*v1alpha1.IPAMSpec{w.sent, w.lost} {
		if own != nil && sameIPAM(*own, o.Spec.IPAM) {
			return false
		}
	}
	return true
}

// overwritten takes that somebody else changed before to o. What another operator
// took out of available is suppressed for settle: most likely it was unassigned,
// and a listing of the cloud that has it is stale. What a person took out is
// published again once the cloud was observed.
func (w *ownership) overwritten(before, o *v1alpha1.NodeNetwork, now time.Time, settle time.Duration) {
	w.observeFirst = true
	if !byOperator(o) {
		return
	}
	for text := range before.Spec.IPAM.Available {
		if _, still := o.Spec.IPAM.Available[text]; still {
			continue
		}
		if p, err := nodenetwork.Parse(text); err == nil {
			w.suppressed[p] = now.Add(settle)
		}
	}
}

// expire drops suppressions that have ended, and tells whether there were any: the cloud must
// be observed again before these addresses are published.
func (w *ownership) expire(now time.Time) bool {
	before := len(w.suppressed)
	maps.DeleteFunc(w.suppressed, func(_ netip.Prefix, until time.Time) bool { return !until.After(now) })
	if len(w.suppressed) == before {
		return false
	}
	w.observeFirst = true
	return true
}

func sameIPAM(x, y v1alpha1.IPAMSpec) bool {
	return maps.Equal(x.Available, y.Available) && slices.Equal(x.Releasing, y.Releasing) && slices.Equal(x.Unassigning, y.Unassigning)
}
