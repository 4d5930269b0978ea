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

// Limits of the kind's definition (api/v1alpha1), which are enforced here regardless of the object's author.
const (
	mostDestinations = 256
	mostGateways     = 1024
)

// egress holds the fields of an Egress that matter to its clients.
type egress struct {
	name     types.NamespacedName
	uid      types.UID
	created  time.Time
	selector membership.Selector // selects pods that use the Egress without naming it

	destinations []netip.Prefix // sorted
	gateways     []gateway      // sorted by UID
	service      []netip.Addr   // addresses of the Service, IPv4 first
	toService    bool           // tunnels lead to the Service
	affine       bool           // all connections of a client use one gateway
	sourceAuto   bool
	originating  bool
	coilClients  bool // pods may name it with Coil's annotation

	err      error // error of invalid fields, which are ignored
	unusable bool  // the destination of its clients' packets is unknown
}

// gateway is a gateway of an Egress.
type gateway struct {
	uid    string
	addrs  []netip.Addr // at least one, at most one per family, IPv4 first
	ending bool
}

// trimEgress removes the fields that readEgress does not read.
func trimEgress(o *v1alpha1.Egress) {
	m, s := o.ObjectMeta, o.Spec
	o.ObjectMeta = metav1.ObjectMeta{Namespace: m.Namespace, Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion, CreationTimestamp: m.CreationTimestamp}
	if membership.HasCoilClients(m.Annotations) {
		o.Annotations = map[string]string{v1alpha1.AnnotationCoilClients: "true"}
	}
	o.Spec = v1alpha1.EgressSpec{
		Destinations: s.Destinations, TunnelTo: s.TunnelTo, SessionAffinity: s.SessionAffinity, FouSourcePortAuto: s.FouSourcePortAuto,
		Clients: s.Clients, OriginatingOnly: s.OriginatingOnly,
	}
	o.Status = v1alpha1.EgressStatus{ServiceIPs: o.Status.ServiceIPs, Gateways: o.Status.Gateways}
}

// readEgress validates an Egress and keeps the relevant fields. The object may be damaged, or written by somebody without
// the right to do so.
func readEgress(o *v1alpha1.Egress) egress {
	t := egress{
		name: types.NamespacedName{Namespace: o.Namespace, Name: o.Name}, uid: o.UID, created: o.CreationTimestamp.Time,
		toService: o.Spec.TunnelTo == v1alpha1.TunnelToService, affine: o.Spec.SessionAffinity != corev1.ServiceAffinityNone,
		sourceAuto: o.Spec.FouSourcePortAuto, originating: o.Spec.OriginatingOnly, coilClients: membership.HasCoilClients(o.Annotations),
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

// readDestinations returns the valid networks.
func readDestinations(list []string, f *findings) (out []netip.Prefix) {
	if len(list) > mostDestinations {
		f.add("spec.destinations has %d networks, expected at most %d", len(list), mostDestinations)
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
		f.add("spec.destinations has no network, expected at least one")
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	return out
}

// readGateways returns the valid gateways. If two have the same address, the one that is not ending keeps it: an address may
// belong to a new pod while the previous pod is still ending.
func readGateways(list []v1alpha1.EgressGateway, f *findings) (out []gateway) {
	if len(list) > mostGateways {
		f.add("status.gateways has %d gateways, expected at most %d", len(list), mostGateways)
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

// readAddresses returns the valid addresses of a host, at most one per family.
func readAddresses(field string, list []string, f *findings) (out []netip.Addr) {
	for i, s := range list {
		if i == 2 {
			f.add("%s has %d addresses, expected one of each family", field, len(list))
			break
		}
		a, err := netip.ParseAddr(s)
		switch {
		case err != nil || a.Is4In6() || a.Zone() != "" || !a.IsGlobalUnicast():
			f.add("%s[%d] is %q, expected the address of one host", field, i, shown(s, 60))
		case slices.ContainsFunc(out, func(o netip.Addr) bool { return o.Is4() == a.Is4() }):
			f.add("%s[%d] is %s, expected one address of each family", field, i, a)
		default:
			out = append(out, a)
		}
	}
	slices.SortFunc(out, netip.Addr.Compare) // IPv4 first
	return out
}

// same reports whether two states of an Egress are equivalent for its clients.
func (t egress) same(o egress) bool {
	return t.uid == o.uid && t.toService == o.toService && t.affine == o.affine && t.sourceAuto == o.sourceAuto && t.originating == o.originating && t.unusable == o.unusable &&
		slices.Equal(t.destinations, o.destinations) && slices.Equal(t.service, o.service) && slices.EqualFunc(t.gateways, o.gateways, gateway.same)
}

func (g gateway) same(o gateway) bool {
	return g.uid == o.uid && g.ending == o.ending && slices.Equal(g.addrs, o.addrs)
}

// egressClient holds the relevant fields of an EgressClient of this node.
type egressClient struct {
	name    types.NamespacedName // also the name of the pod
	uid     types.UID
	version string // resourceVersion
	pod     string // the pod's UID
	uses    []use  // sorted by name, without duplicates
	// selected are the Egresses of uses that select the pod without being named by it.
	selected map[types.NamespacedName]bool
	refused  []v1alpha1.EgressRefusal
	node     *v1alpha1.EgressClientNode // status.node, which this node reported
}

// use identifies an Egress, as opposed to an earlier one with the same name.
type use struct {
	name types.NamespacedName
	uid  types.UID
}

func (u use) ref() v1alpha1.EgressReference {
	return v1alpha1.EgressReference{Namespace: u.name.Namespace, Name: u.name.Name, UID: string(u.uid)}
}

// readClient returns the relevant fields of an EgressClient.
func readClient(o *v1alpha1.EgressClient) egressClient {
	m := egressClient{
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

// same reports whether two states of an EgressClient require the same of the node.
func (m egressClient) same(o egressClient) bool {
	return m.uid == o.uid && m.pod == o.pod && slices.Equal(m.uses, o.uses) && maps.Equal(m.selected, o.selected) && slices.Equal(m.refused, o.refused)
}

// findings collects the errors of an object, of which it keeps the first few.
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

// err returns the findings as one error, or nil.
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

// shown returns untrusted text in a form that is safe in messages.
func shown(s string, most int) string { return source.OneLine(s, most) }
