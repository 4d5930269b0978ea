package nodeenis

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/nodenetwork"
)

const (
	// newsEvery is the minimum interval between writes of a node's status that are not urgent: counts
	// and messages of conditions.
	newsEvery = time.Second
	// timeEvery is the same if only the time of the next attempt changed.
	timeEvery = 5 * time.Second
)

// desiredState is the desired content of the operator's fields.
type desiredState struct {
	ipam       v1alpha1.IPAMSpec
	eni        v1alpha1.ENIStatus
	conditions []metav1.Condition
}

// scope is how much of the desired state to write.
type scope int

const (
	urgent     scope = iota // only what the daemon uses
	everything              // also what only users look at
)

// request is the next request to the API server.
type request int

const (
	nothing request = iota
	writeSpec
	writeStatus
	writeNews // of the status, for users only
)

// desired returns the desired state as of now, and the next request on the way to it. Without such a request, or for one
// that has no conditions, the conditions may be missing: they cost as much as the rest.
func (s *state) desired(of scope, now time.Time) (desiredState, request) {
	want := s.desiredFields()
	if of == everything {
		want.conditions = s.conditions(now)
	}
	q := s.next(want, of, now)
	if q == writeStatus && of == urgent {
		want.conditions = s.conditions(now)
	}
	return want, q
}

// desiredFields returns the desired state without the conditions.
func (s *state) desiredFields() (want desiredState) {
	if s.fleet.inv == nil || s.ownership.observeFirst { // keep what is published
		want.eni = s.obj.Status.ENI
		if want.eni.ENIs == nil {
			want.eni.ENIs = map[string]v1alpha1.ENI{}
		}
		return want
	}
	unmarked := s.fleet.unmarked(s.obj)
	want.ipam, want.eni = s.desiredIPAM(unmarked), statusOf(s.fleet.inv)
	for _, at := range s.obj.Spec.IPAM.Available { // keep the ENIs of published addresses in the status
		if e, ok := s.obj.Status.ENI.ENIs[at.Resource]; ok && want.eni.ENIs[at.Resource].MAC == "" {
			want.eni.ENIs[at.Resource] = e
		}
	}
	available := amounts{}
	for p, id := range unmarked {
		available.add(id, p)
	}
	want.eni.Available = int32(available.pods(s.families()))
	want.eni.Needed, want.eni.Outdated = int32(s.fleet.status.Needed), int32(s.fleet.status.Outdated)
	want.eni.Trunk = s.obj.Status.ENI.Trunk
	if s.fleet.status.Confirmed {
		want.eni.Trunk = trunkOf(s.fleet.status.Trunk)
	}
	s.config.describe(&want.eni)
	return want
}

// desiredIPAM returns the desired spec.ipam for the unmarked addresses, without suppressed ones.
func (s *state) desiredIPAM(unmarked map[netip.Prefix]string) v1alpha1.IPAMSpec {
	spec := v1alpha1.IPAMSpec{Available: make(map[string]v1alpha1.AvailableAddress, len(unmarked)), Releasing: []string{}, Unassigning: []string{}}
	var releasing, unassigning []netip.Prefix
	h := &s.handshake
	for p, id := range unmarked {
		if _, ok := s.ownership.suppressed[p]; ok {
			continue
		}
		spec.Available[nodenetwork.Format(p)] = v1alpha1.AvailableAddress{Resource: id}
		if h.candidates[p] || h.handedOrMarked(s.obj, p) {
			releasing = append(releasing, p)
		}
		if h.mayMark(s.obj, p) {
			unassigning = append(unassigning, p)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(h.detaching)) {
		if !mayMarkENI(s.obj, id) { // keep the ENI as it is
			kept, marked := retain(&spec, s.obj, id)
			releasing, unassigning = append(releasing, kept...), append(unassigning, marked...)
		}
	}
	spec.Releasing, spec.Unassigning = texts(releasing), append(texts(unassigning), h.enisToMark(s.obj, s.fleet.inv)...)
	return spec
}

// statusOf returns status.eni without its counts of addresses.
func statusOf(inv *eni.Inventory) v1alpha1.ENIStatus {
	s := v1alpha1.ENIStatus{ENIs: make(map[string]v1alpha1.ENI, len(inv.ENIs))}
	for i := range inv.ENIs {
		e := &inv.ENIs[i]
		out := v1alpha1.ENI{MAC: e.MAC.String(), DeviceIndex: int32(e.DeviceIndex), SubnetID: e.SubnetID, SecurityGroups: e.Groups}
		if e.PrimaryIPv4.IsValid() {
			out.PrimaryIPv4 = e.PrimaryIPv4.String()
		}
		if e.Subnet.IsValid() {
			out.SubnetCIDR = e.Subnet.String()
		}
		for _, p := range e.SubnetIPv6 {
			out.SubnetIPv6CIDRs = append(out.SubnetIPv6CIDRs, p.String())
		}
		slices.Sort(out.SubnetIPv6CIDRs)
		s.ENIs[e.ID] = out
		if e.Serves {
			s.Count++
		}
	}
	if l := inv.Limits; l.MaxENIs > 0 {
		s.Limits = &v1alpha1.ENILimits{ENIs: int32(l.MaxENIs), AddressesPerENI: int32(l.IPv4PerENI), IPv6AddressesPerENI: int32(l.IPv6PerENI), Prefixes: l.Prefixes}
	}
	return s
}

// trunkOf returns status.eni.trunk.
func trunkOf(t *eni.Trunk) *v1alpha1.TrunkENI {
	if t == nil {
		return nil
	}
	return &v1alpha1.TrunkENI{ID: t.ID, MAC: t.MAC.String(), DeviceIndex: int32(t.DeviceIndex), Reason: t.Reason, Message: t.Message}
}

// next returns the next request on the way from the object to the desired state. If there is none now,
// it sets the time of the next one. An ENI is in the status before its addresses are published, and for
// as long as any of them is.
func (s *state) next(want desiredState, of scope, now time.Time) request {
	have := &s.obj.Status.ENI
	if s.fleet.inv != nil && !s.ownership.observeFirst {
		switch {
		case !hasENIs(have.ENIs, want.eni.ENIs):
			return writeStatus
		case !sameIPAM(s.obj.Spec.IPAM, want.ipam):
			return writeSpec
		case len(have.ENIs) != len(want.eni.ENIs):
			return writeStatus
		case !sameTrunk(have.Trunk, want.eni.Trunk): // branch pods are scheduled by it
			return writeStatus
		}
	}
	if of == urgent {
		return nothing
	}
	s.writes.newsAt, s.writes.news = s.newsAt(want, now)
	if s.writes.newsAt.IsZero() || s.writes.newsAt.After(now) {
		return nothing
	}
	return writeNews
}

// hasENIs reports whether have contains all of want unchanged.
func hasENIs(have, want map[string]v1alpha1.ENI) bool {
	for id, e := range want {
		if h, ok := have[id]; !ok || !sameENI(h, e) {
			return false
		}
	}
	return true
}

func sameENI(x, y v1alpha1.ENI) bool {
	groups := slices.Equal(x.SecurityGroups, y.SecurityGroups)
	return groups && x.MAC == y.MAC && x.DeviceIndex == y.DeviceIndex && x.PrimaryIPv4 == y.PrimaryIPv4 &&
		x.SubnetID == y.SubnetID && x.SubnetCIDR == y.SubnetCIDR && slices.Equal(x.SubnetIPv6CIDRs, y.SubnetIPv6CIDRs)
}

// newsAt returns when the status must be written, and which limit applies, or zero if it is up to date. A write that waits for
// its turn among all nodes is due then.
func (s *state) newsAt(want desiredState, now time.Time) (time.Time, news) {
	pause := time.Duration(0)
	if len(s.obj.Status.Conditions) > len(want.conditions)+s.writes.foreign { // an earlier operator's, which nobody maintains
		return later(now, s.writes.turns[ofConditions]), ofConditions
	}
	for _, c := range want.conditions {
		h := meta.FindStatusCondition(s.obj.Status.Conditions, c.Type)
		switch {
		case h == nil || h.Status != c.Status || h.Reason != c.Reason:
			return later(now, s.writes.turns[ofConditions]), ofConditions
		case untimed(h.Message) != untimed(c.Message):
			pause = newsEvery
		case h.Message != c.Message && pause == 0:
			pause = timeEvery
		}
	}
	if !sameCounts(&s.obj.Status.ENI, &want.eni) {
		pause = newsEvery
	}
	if pause == 0 {
		s.writes.expire(now)
		return time.Time{}, routine
	}
	return later(s.writes.statusAt.Add(pause), s.writes.turns[routine]), routine
}

func later(x, y time.Time) time.Time {
	if x.Before(y) {
		return y
	}
	return x
}

func sameCounts(x, y *v1alpha1.ENIStatus) bool {
	limits := x.Limits == nil && y.Limits == nil || x.Limits != nil && y.Limits != nil && *x.Limits == *y.Limits
	template := x.Template == y.Template && x.Outdated == y.Outdated && equality.Semantic.DeepEqual(x.Settings, y.Settings)
	trunk := x.Trunk == nil && y.Trunk == nil || x.Trunk != nil && y.Trunk != nil && *x.Trunk == *y.Trunk
	return limits && template && trunk && x.Count == y.Count && x.Available == y.Available && x.Needed == y.Needed && maps.EqualFunc(x.ENIs, y.ENIs, sameENI)
}

// sameTrunk reports whether two trunks are the same for the branch interfaces that a Node has.
func sameTrunk(x, y *v1alpha1.TrunkENI) bool {
	return (x == nil) == (y == nil) && (x == nil || x.ID == y.ID && x.Reason == y.Reason)
}

// untimed returns a condition's message without the time of the next attempt.
func untimed(message string) string {
	text, _, _ := strings.Cut(message, nextTry)
	return text
}
