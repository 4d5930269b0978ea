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

// usage is how pods use what was published. n.mu is held; it reads the cache.
func (n *node) usage() eni.Usage {
	is := &n.state.obj.Status.IPAM
	return eni.Usage{
		ENIs: n.state.counter().byENI(), MissingLinks: is.MissingLinks,
		Waiting: max(int(is.Waiting), n.c.waitingPods(n.name, is.Used)),
	}
}

// families are those of which pods get addresses: those that the fleet works by, or
// before it does those of the object.
func (s *state) families() ipfamily.Set {
	if s.config.set {
		return s.config.settings.Policy.Families
	}
	families, _ := nodenetwork.Families(s.obj) // Settings reports an invalid one
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

// byENI counts an object's addresses by ENI, in pods. All that are in
// status.ipam.used are used, also those that cool: Cilium counts
// len(status.ipam.used). What is being released is neither used nor free, and an
// ENI's own address is never released.
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

// room is for how many more pods each ENI has published addresses that are not being
// released. It is negative where pods have addresses that were taken out of available.
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

// available is for how many pods addresses are published.
func (c counter) available() int {
	all := amounts{}
	for p, id := range nodenetwork.Available(c.obj) {
		all.add(id, p)
	}
	return all.pods(c.families)
}

// excess is for how many fewer pods the policy would have addresses, and loss for how many fewer
// there would be addresses without the candidates. What is being released does not count.
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

// usedOf counts the addresses that pods use, or used lately, by ENI, and lists them with the
// prefixes around them. The ENI of an available address is that of the object's spec, whatever
// the daemon says.
func usedOf(o *v1alpha1.NodeNetwork) (byENI map[string]counts, inUse map[netip.Prefix]bool) {
	byENI, inUse = map[string]counts{}, map[netip.Prefix]bool{}
	for text, use := range o.Status.IPAM.Used {
		a, err := netip.ParseAddr(text)
		if err != nil {
			continue
		}
		id := use.Resource
		for _, p := range [...]netip.Prefix{cloud.HostPrefix(a), cloud.PrefixAround(a)} {
			inUse[p] = true
			if at := resourceOf(o, p); at != "" {
				id = at
			}
		}
		c := byENI[id]
		c[ipfamily.Of(a)]++
		byENI[id] = c
	}
	return byENI, inUse
}

// spare is for how many more pods an amount on one ENI is enough, of which some addresses are
// used. It is negative if more are used than the amount is.
func spare(s ipfamily.Set, a cloud.Amount, used counts) int {
	n := math.MaxInt
	for _, f := range s.Families() {
		n = min(n, plan.CountOf(f, a)-used[f])
	}
	return n
}

// amounts are what ENIs have, by their IDs.
type amounts map[string]cloud.Amount

// add adds an address, as a prefix of full length, or a prefix to an ENI's.
func (a amounts) add(id string, p netip.Prefix) {
	a[id] = a[id].Plus(cloud.AmountOf([]netip.Prefix{p}))
}

// pods is for how many pods the amounts are enough. A pod has all its addresses of one ENI.
func (a amounts) pods(s ipfamily.Set) (sum int) {
	for _, n := range a {
		sum += plan.Pods(s, n)
	}
	return sum
}

// uses reports whether a pod has, or had lately, an address or one in a prefix.
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

// usesENI reports whether a pod has, or had lately, an address of an ENI, also one
// that is not available any more.
func usesENI(o *v1alpha1.NodeNetwork, id string) bool {
	for _, use := range o.Status.IPAM.Used {
		if use.Resource == id {
			return true
		}
	}
	return false
}

// reportedUIDs are the pods that have an address.
func reportedUIDs(used map[string]v1alpha1.UsedAddress) map[types.UID]bool {
	out := make(map[types.UID]bool, len(used))
	for _, u := range used {
		if u.UID != "" && !u.Cooling {
			out[types.UID(u.UID)] = true
		}
	}
	return out
}

// demand is since when more pods wait on a node than it has free addresses.
type demand struct {
	since     time.Time // zero: no more than there are
	available int       // how many addresses were published then
}

// update takes the counts of now. If demand has ended because addresses were published, and not
// because pods went, it returns when the demand began.
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

// trackDemand updates demand, and reports how long it lasted if it was served.
func (n *node) trackDemand() {
	now := n.c.now()
	n.mu.Lock()
	since := n.state.demand.update(n.usage().Waiting, n.state.counter().free(), len(n.state.obj.Spec.IPAM.Available), now)
	n.mu.Unlock()
	if !since.IsZero() && n.c.o.DemandServed != nil {
		n.c.o.DemandServed(now.Sub(since))
	}
}

// podsByNode is the field by which the cache finds the pods of a node. The cache has at least
// those that wait for an address.
const podsByNode = "node"

// waitingPods counts a node's pods that wait and are not in used. It reads the cache.
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

// hasFirst reports whether a pod's first interface is one of its NICs, by its annotations: then the
// pod takes no address.
func hasFirst(p *corev1.Pod) bool {
	text := p.Annotations[v1alpha1.AnnotationNICs]
	if !strings.Contains(text, nicrequest.FirstInterface) {
		return false // nearly all pods: the list need not be parsed
	}
	entries, _ := nicrequest.Parse(text)
	return slices.ContainsFunc(entries, func(e nicrequest.Entry) bool { return e.Name == nicrequest.FirstInterface })
}

// podChanged tells a node of each pod that comes to wait, or does so no more: one that
// got its address changes, or is deleted from what is watched. Other pods, which the cache may
// have too, do not matter.
func (c *Controller) podChanged(_ context.Context, before, after client.Object, _ queue.Adder) {
	for _, o := range []client.Object{after, before} {
		if p, ok := o.(*corev1.Pod); ok && watched.Waits(p) {
			c.waitingChanged(p.Spec.NodeName)
			return
		}
	}
}
