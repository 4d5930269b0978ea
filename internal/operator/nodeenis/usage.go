package nodeenis

import (
	"context"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/ec2/eni/plan"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/nicrequest"
	"github.com/berthnet/berth/internal/nodenetwork"
	"github.com/berthnet/berth/internal/operator/objects"
	"github.com/berthnet/berth/internal/operator/queue"
	"github.com/berthnet/berth/internal/operator/watched"
)

// Usage implements fleet.Node.
func (n *node) Usage() eni.Usage {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.usage()
}

// usage returns how pods use the published addresses. n.mu is held; it reads the cache.
func (n *node) usage() eni.Usage {
	return eni.Usage{ENIs: n.state.counter().byENI(), MissingLinks: n.state.obj.Status.IPAM.MissingLinks, Waiting: n.waiting()}
}

// waiting returns how many pods wait for an address. n.mu is held; it reads the cache.
func (n *node) waiting() int {
	is := &n.state.obj.Status.IPAM
	return max(int(is.Waiting), n.c.waitingPods(n.name, is.Used))
}

// families returns the address families of pods: those in the fleet's settings, or before there are
// settings, those of the object.
func (s *state) families() ipfamily.Set {
	if s.config.set {
		return s.config.settings.Policy.Families
	}
	families, _ := nodenetwork.Families(s.obj) // an invalid value is reported by Settings
	return families
}

// counter counts the addresses that an object publishes.
type counter struct {
	obj       *v1alpha1.NodeNetwork
	fleet     *fleetState
	handshake *handshake
	families  ipfamily.Set
}

func (s *state) counter() counter { return counter{s.obj, &s.fleet, &s.handshake, s.families()} }

// byENI counts an object's addresses by ENI, in pods. All addresses in status.ipam.used count as used,
// including cooling ones: Cilium counts len(status.ipam.used). Addresses being released are neither used
// nor free, and an ENI's primary address is never released.
func (c counter) byENI() map[string]eni.ENIUsage {
	out := map[string]eni.ENIUsage{}
	used, inUse := usedOf(c.obj)
	for id, n := range used {
		out[id] = eni.ENIUsage{Used: slices.Max(n[:])}
	}
	free := amounts{}
	for p, id := range nodenetwork.Available(c.obj) {
		if !inUse[p] && !c.handshake.handedOrMarked(c.obj, p) && !c.fleet.primaries[p] {
			free.add(id, p)
		}
	}
	room := c.room(used)
	for _, id := range slices.Concat(slices.Collect(maps.Keys(free)), slices.Collect(maps.Keys(room))) {
		e := out[id]
		e.Free, e.Assignable = free[id], max(0, room[id])
		out[id] = e
	}
	return out
}

// room returns for how many more pods each ENI has published addresses that are not being released. It is
// negative if pods have addresses that were taken out of available.
func (c counter) room(used map[string]counts) map[string]int {
	stay := amounts{}
	for p, id := range nodenetwork.Available(c.obj) {
		if !c.handshake.handedOrMarked(c.obj, p) {
			stay.add(id, p)
		}
	}
	out := make(map[string]int, len(stay))
	for _, id := range slices.Concat(slices.Collect(maps.Keys(used)), slices.Collect(maps.Keys(stay))) {
		out[id] = spare(c.families, stay[id], used[id])
	}
	return out
}

func (c counter) free() (sum int) {
	used, _ := usedOf(c.obj)
	for _, room := range c.room(used) {
		sum += room
	}
	return sum
}

// available returns for how many pods addresses are published.
func (c counter) available() int {
	all := amounts{}
	for p, id := range nodenetwork.Available(c.obj) {
		all.add(id, p)
	}
	return all.pods(c.families)
}

// excess returns how many pods' worth of addresses exceed the policy's demand, and loss how many would be
// lost with the candidates. Addresses being released do not count.
func (c counter) excess(u eni.Usage, policy ipam.Policy) (excess, loss int) {
	all, kept, busy := amounts{}, amounts{}, ipam.Usage{Waiting: u.Waiting}
	for p, id := range c.fleet.unmarked(c.obj) {
		if c.handshake.handedOrMarked(c.obj, p) {
			continue
		}
		all.add(id, p)
		if !c.handshake.candidates[p] {
			kept.add(id, p)
		}
	}
	for _, e := range u.ENIs {
		busy.Used += e.Used
	}
	total := all.pods(policy.Families)
	return total - plan.Demand(c.fleet.inv.Limits, policy, busy).Keep, total - kept.pods(policy.Families)
}

// counts are numbers of addresses by family.
type counts [ipfamily.Number]int

// usedOf counts the addresses that pods use, or used recently, by ENI, and returns them with the prefixes
// that contain them. The ENI of an available address is taken from the object's spec, whatever the
// daemon reports.
func usedOf(o *v1alpha1.NodeNetwork) (byENI map[string]counts, inUse map[netip.Prefix]bool) {
	byENI, inUse = map[string]counts{}, make(map[netip.Prefix]bool, len(o.Status.IPAM.Used))
	for text, use := range o.Status.IPAM.Used {
		a, err := netip.ParseAddr(text)
		if err != nil {
			continue
		}
		id := use.Resource
		for _, p := range [...]netip.Prefix{cloud.HostPrefix(a), cloud.PrefixAround(a)} {
			inUse[p] = true
			if at := nodenetwork.ENIOf(o, p); at != "" {
				id = at
			}
		}
		c := byENI[id]
		c[ipfamily.Of(a)]++
		byENI[id] = c
	}
	return byENI, inUse
}

// spare returns for how many more pods the addresses on one ENI suffice, given those in use. It is
// negative if more are in use than the ENI has.
func spare(s ipfamily.Set, a cloud.Amount, used counts) int {
	n := math.MaxInt
	for _, f := range s.Families() {
		n = min(n, plan.CountOf(f, a)-used[f])
	}
	return n
}

// amounts are the amounts of addresses by ENI ID.
type amounts map[string]cloud.Amount

// add adds a prefix, or an address as a full-length prefix, to an ENI.
func (a amounts) add(id string, p netip.Prefix) {
	a[id] = a[id].Plus(cloud.AmountOf([]netip.Prefix{p}))
}

// pods returns for how many pods the amounts suffice. All addresses of a pod are on the same ENI.
func (a amounts) pods(s ipfamily.Set) (sum int) {
	for _, n := range a {
		sum += plan.Pods(s, n)
	}
	return sum
}

// uses reports whether a pod has, or had recently, an address or one in a prefix.
func uses(o *v1alpha1.NodeNetwork, p netip.Prefix) bool {
	if p.IsSingleIP() {
		_, ok := o.Status.IPAM.Used[p.Addr().String()]
		return ok
	}
	for text := range o.Status.IPAM.Used {
		if a, err := netip.ParseAddr(text); err == nil && p.Contains(a) {
			return true
		}
	}
	return false
}

// usesENI reports whether a pod has, or had recently, an address of an ENI, including one that is no
// longer available.
func usesENI(o *v1alpha1.NodeNetwork, id string) bool {
	for _, use := range o.Status.IPAM.Used {
		if use.Resource == id {
			return true
		}
	}
	return false
}

// reportedUIDs returns the UIDs of the pods that have an address.
func reportedUIDs(used map[string]v1alpha1.UsedAddress) map[types.UID]bool {
	out := make(map[types.UID]bool, len(used))
	for _, u := range used {
		if u.UID != "" && !u.Cooling {
			out[types.UID(u.UID)] = true
		}
	}
	return out
}

// demand tracks since when more pods wait on a node than it has free addresses.
type demand struct {
	since     time.Time // zero if there are enough
	available int       // number of addresses published at that time
}

// update applies the current counts. If demand ended because addresses were published, and not because pods
// were deleted, it returns when the demand began.
func (d *demand) update(waiting, free, available int, now time.Time) (served time.Time) {
	switch {
	case waiting > free:
		if d.since.IsZero() {
			*d = demand{now, available}
		}
	case !d.since.IsZero():
		if available > d.available {
			served = d.since
		}
		d.since = time.Time{}
	}
	return served
}

// trackDemand updates demand, and reports its duration if it was served.
func (n *node) trackDemand() {
	now := n.c.now()
	n.mu.Lock()
	since := n.state.demand.update(n.waiting(), n.state.counter().free(), len(n.state.obj.Spec.IPAM.Available), now)
	n.mu.Unlock()
	if !since.IsZero() && n.c.o.DemandServed != nil {
		n.c.o.DemandServed(now.Sub(since))
	}
}

// podsByNode is the index field for the pods of a node. The cache has at least the pods that wait for an
// address.
const podsByNode = "node"

// waitingPods counts a node's waiting pods that are not in used. It reads the cache.
func (c *Controller) waitingPods(node string, used map[string]v1alpha1.UsedAddress) (n int) {
	pods, err := objects.List[corev1.PodList](context.Background(), c.client, client.MatchingFields{podsByNode: node})
	if err != nil || len(pods.Items) == 0 {
		return 0
	}
	have := reportedUIDs(used)
	for i := range pods.Items {
		if p := &pods.Items[i]; watched.Waits(p) && p.DeletionTimestamp == nil && !have[p.UID] && !hasFirst(p) {
			n++
		}
	}
	return n
}

// hasFirst reports whether, according to its annotations, a pod's first interface is one of its NICs.
// Such a pod takes no address.
func hasFirst(p *corev1.Pod) bool {
	text := p.Annotations[v1alpha1.AnnotationNICs]
	if !strings.Contains(text, nicrequest.FirstInterface) {
		return false // fast path for nearly all pods: the list need not be parsed
	}
	entries, _ := nicrequest.Parse(text)
	return slices.ContainsFunc(entries, func(e nicrequest.Entry) bool { return e.Name == nicrequest.FirstInterface })
}

// podChanged notifies a node of each pod that starts or stops waiting. A pod that got its address changes,
// or is deleted from a filtered watch. Other pods, which the cache may have as well, are ignored.
func (c *Controller) podChanged(_ context.Context, before, after client.Object, _ queue.Adder) {
	for _, o := range []client.Object{after, before} {
		if p, ok := o.(*corev1.Pod); ok && watched.Waits(p) {
			c.waitingChanged(p.Spec.NodeName)
			return
		}
	}
}
