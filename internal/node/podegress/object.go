package podegress

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/membership"
	"github.com/berthnet/berth/internal/source"
)

// What a definition of the kind Egress lets there be at most, and is not exceeded here
// whoever wrote the object.
const (
	mostDestinations = 256
	mostGateways     = 1024
)

// target is an Egress, as far as it matters to clients.
type target struct {
	name     types.NamespacedName
	uid      types.UID
	created  time.Time
	selector membership.Selector // of pods that use it without naming it

	destinations []netip.Prefix // sorted
	gateways     []gateway      // sorted by UID
	service      []netip.Addr   // of the Service, IPv4 first
	toService    bool           // tunnels lead to the Service
	affine       bool           // all connections of a client go by one gateway
	sourceAuto   bool
	originating  bool

	err      error // what of it makes no sense; the rest is used unless it is unusable
	unusable bool  // as nobody can tell where its clients' packets are to go
}

// gateway is a gateway of an Egress.
type gateway struct {
	uid    string
	addrs  []netip.Addr // one of a family, IPv4 first; at least one
	ending bool
}

// trimEgress leaves what readEgress reads.
func trimEgress(o *v1alpha1.Egress) {
	m, s := o.ObjectMeta, o.Spec
	o.ObjectMeta = metav1.ObjectMeta{Namespace: m.Namespace, Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion, CreationTimestamp: m.CreationTimestamp}
	o.Spec = v1alpha1.EgressSpec{
		Destinations: s.Destinations, TunnelTo: s.TunnelTo, SessionAffinity: s.SessionAffinity, FouSourcePortAuto: s.FouSourcePortAuto,
		Clients: s.Clients, OriginatingOnly: s.OriginatingOnly,
	}
	o.Status = v1alpha1.EgressStatus{ServiceIPs: o.Status.ServiceIPs, Gateways: o.Status.Gateways}
}

// readEgress takes from an Egress what matters. Nothing of it is believed: it may be damaged,
// or written by somebody who should not.
func readEgress(o *v1alpha1.Egress) target {
	t := target{
		name: types.NamespacedName{Namespace: o.Namespace, Name: o.Name}, uid: o.UID, created: o.CreationTimestamp.Time,
		toService: o.Spec.TunnelTo == v1alpha1.TunnelToService, affine: o.Spec.SessionAffinity != corev1.ServiceAffinityNone,
		sourceAuto: o.Spec.FouSourcePortAuto, originating: o.Spec.OriginatingOnly,
	}
	var f findings
	var err error
	if t.selector, err = membership.NewSelector(o.Namespace, o.Spec.Clients); err != nil {
		f.add("%w", err)
	}
	t.destinations = readDestinations(o.Spec.Destinations, &f)
	t.unusable = len(t.destinations) == 0 || len(o.Spec.Destinations) > mostDestinations
	t.service = readAddresses("status.serviceIPs", o.Status.ServiceIPs, &f)
	t.gateways = readGateways(o.Status.Gateways, &f)
	if err := f.err(); err != nil {
		t.err = fmt.Errorf("Egress %s: %w", t.name, err)
	}
	return t
}

// readDestinations are the networks that make sense.
func readDestinations(list []string, f *findings) (out []netip.Prefix) {
	if len(list) > mostDestinations {
		f.add("spec.destinations has %d networks, expected %d at most", len(list), mostDestinations)
		return nil
	}
	for i, s := range list {
		p, err := netip.ParsePrefix(s)
		switch {
		case err != nil || p != p.Masked() || p.Addr().Is4In6():
			f.add("spec.destinations[%d] is %q, expected a CIDR without host bits", i, shown(s, 60))
		case !slices.Contains(out, p):
			out = append(out, p)
		}
	}
	if len(out) == 0 {
		f.add("spec.destinations has no network, expected one at least")
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	return out
}

// readGateways are the gateways that make sense. Of two with one address, the one that does
// not end has it: an address may be a new pod's while the one before still ends.
func readGateways(list []v1alpha1.EgressGateway, f *findings) (out []gateway) {
	if len(list) > mostGateways {
		f.add("status.gateways has %d gateways, expected %d at most", len(list), mostGateways)
		list = list[:mostGateways]
	}
	holder := map[netip.Addr]bool{}
	seen := map[string]bool{}
	take := func(i int, g v1alpha1.EgressGateway) {
		field := fmt.Sprintf("status.gateways[%d]", i)
		if g.UID == "" || len(g.UID) > 64 || seen[g.UID] {
			f.add("%s.uid is %q, expected a UID that no other gateway has", field, shown(g.UID, 64))
			return
		}
		seen[g.UID] = true
		addrs := readAddresses(field+".addresses", g.Addresses, f)
		addrs = slices.DeleteFunc(addrs, func(a netip.Addr) bool {
			if holder[a] {
				f.add("%s.addresses has %s, which another gateway has", field, a)
			}
			return holder[a]
		})
		for _, a := range addrs {
			holder[a] = true
		}
		if len(addrs) > 0 {
			out = append(out, gateway{g.UID, addrs, g.Ending})
		}
	}
	for _, ending := range []bool{false, true} {
		for i, g := range list {
			if g.Ending == ending {
				take(i, g)
			}
		}
	}
	slices.SortFunc(out, byUID)
	return out
}

func byUID(a, b gateway) int { return strings.Compare(a.uid, b.uid) }

// readAddresses are the addresses of a host that make sense, one of a family.
func readAddresses(field string, list []string, f *findings) (out []netip.Addr) {
	for i, s := range list {
		if i == 2 {
			f.add("%s has %d addresses, expected one of a family", field, len(list))
			break
		}
		a, err := netip.ParseAddr(s)
		switch {
		case err != nil || a.Is4In6() || a.Zone() != "" || !a.IsGlobalUnicast():
			f.add("%s[%d] is %q, expected the address of one host", field, i, shown(s, 60))
		case slices.ContainsFunc(out, func(o netip.Addr) bool { return o.Is4() == a.Is4() }):
			f.add("%s[%d] is %s, expected one address of a family", field, i, a)
		default:
			out = append(out, a)
		}
	}
	slices.SortFunc(out, netip.Addr.Compare) // of which IPv4 is the lesser
	return out
}

// same tells whether two states of an Egress are one to its clients.
func (t target) same(o target) bool {
	return t.uid == o.uid && t.toService == o.toService && t.affine == o.affine && t.sourceAuto == o.sourceAuto && t.originating == o.originating && t.unusable == o.unusable &&
		slices.Equal(t.destinations, o.destinations) && slices.Equal(t.service, o.service) && slices.EqualFunc(t.gateways, o.gateways, gateway.same)
}

func (g gateway) same(o gateway) bool {
	return g.uid == o.uid && g.ending == o.ending && slices.Equal(g.addrs, o.addrs)
}

// member is an EgressClient of this node, as far as it matters here.
type member struct {
	name    types.NamespacedName // of the pod, too
	uid     types.UID
	version string // resourceVersion
	pod     string // the pod's UID
	uses    []use  // sorted by name, each once
	// selected are those of uses that select the pod and that it does not name.
	selected map[types.NamespacedName]bool
	refused  []v1alpha1.EgressRefusal
	node     *v1alpha1.EgressClientNode // what was said last; nil: nothing
}

// use names an Egress, and not another of the same name.
type use struct {
	name types.NamespacedName
	uid  types.UID
}

func (u use) ref() v1alpha1.EgressReference {
	return v1alpha1.EgressReference{Namespace: u.name.Namespace, Name: u.name.Name, UID: string(u.uid)}
}

// readClient takes from an EgressClient what matters.
func readClient(o *v1alpha1.EgressClient) member {
	m := member{
		name: types.NamespacedName{Namespace: o.Namespace, Name: o.Name}, uid: o.UID, version: o.ResourceVersion, pod: o.Spec.PodUID,
		refused: slices.Clone(o.Spec.Refused), node: o.Status.Node.DeepCopy(),
	}
	for _, r := range o.Spec.Egresses {
		u := use{types.NamespacedName{Namespace: r.Namespace, Name: r.Name}, types.UID(r.UID)}
		named := func(o use) bool { return o.name == u.name }
		if r.Namespace != "" && r.Name != "" && r.UID != "" && !slices.ContainsFunc(m.uses, named) {
			m.uses = append(m.uses, u)
		}
	}
	slices.SortFunc(m.uses, func(a, b use) int { return strings.Compare(a.name.String(), b.name.String()) })
	for _, u := range m.uses {
		if slices.Contains(o.Spec.Selected, u.name.String()) {
			if m.selected == nil {
				m.selected = map[types.NamespacedName]bool{}
			}
			m.selected[u.name] = true
		}
	}
	return m
}

// same tells whether two states of an EgressClient want one thing of the node.
func (m member) same(o member) bool {
	return m.uid == o.uid && m.pod == o.pod && slices.Equal(m.uses, o.uses) && maps.Equal(m.selected, o.selected) && slices.Equal(m.refused, o.refused)
}

// findings are what makes no sense of an object, of which the first few are told.
type findings struct {
	first []error
	more  int
}

const mostFindings = 3

func (f *findings) add(format string, args ...any) {
	if len(f.first) == mostFindings {
		f.more++
		return
	}
	f.first = append(f.first, fmt.Errorf(format, args...))
}

// err is all of them; nil: there are none.
func (f *findings) err() error {
	if len(f.first) == 0 {
		return nil
	}
	var texts []string
	for _, e := range f.first {
		texts = append(texts, e.Error())
	}
	if f.more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", f.more))
	}
	return errors.New(strings.Join(texts, "; "))
}

// shown is a text of elsewhere as messages have it.
func shown(s string, most int) string { return source.OneLine(s, most) }
