//go:build guest

package labs

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/lab/cloud/vpc"
	"github.com/berthnet/berth/lab/network/echo"
	"github.com/berthnet/berth/lab/portcloud"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/test/harness"
)

// routed is a pod whose first interface is a branch.
type routed struct {
	*node.Pod
	on  *node.Node
	eni vpc.ENI
}

// addFirst makes a pod whose first interface, and so its address, is a branch with some security
// groups.
func (b *branches) addFirst(n *node.Node, name string, groups ...string) routed {
	b.Helper()
	p := b.add(n, name, b.vpc, fmt.Sprintf("[{name: eth0, securityGroups: [%s]}]", strings.Join(groups, ", ")))
	e := b.branchOf(p, "eth0")
	links := b.links(p)
	if got := links["eth0"]; len(links) != 1 || got.mac != e.MAC.String() || got.addrs != hosts(b.addrs(e)) || got.vlan != 0 || !slices.Equal(p.Addrs, b.addrs(e)) {
		b.Errorf("pod %s has %+v and is known by %v, and its branch has %s and %s", name, links, p.Addrs, e.MAC, b.addrs(e))
	}
	return routed{p, n, e}
}

// talk checks that two pods answer each other, and that each is seen with its own address.
func (b *branches) talk(p, q routed) {
	b.Helper()
	b.answers(p.Pod, p.eni, q.eni)
	b.answers(q.Pod, q.eni, p.eni)
}

// asks returns a question from a network namespace to a branch, such as a kubelet's probe.
func (b *branches) asks(path string, to routed) question {
	addrs := b.addrs(to.eni)
	return func(ctx context.Context, i int) error {
		_, err := echo.Ask(ctx, path, "tcp", netip.AddrPortFrom(addrs[i], echo.Port), netip.Addr{}, "hello")
		return err
	}
}

// reaches waits until a branch answers somewhere.
func (b *branches) reaches(who, path string, to routed) {
	b.Helper()
	harness.Eventually(b.T, harness.Patience, who+" gets an answer of "+to.Name, func() error {
		ctx, cancel := context.WithTimeout(b.Context(), 2*time.Second)
		defer cancel()
		return b.each(ctx, b.asks(path, to))
	})
}

// first has pods whose first interface is a branch, to which their nodes route.
func (b *branches) first() {
	near, out := b.addFirst(b.a, "near", front), b.addFirst(b.a, "outsider", outsider)
	far, plain := b.addFirst(b.b, "far", peers), harness.Add(b.T, b.a, "plain")
	b.talk(near, far)
	b.dropped(out.Pod, out.eni, near.eni)
	harness.OK(b.T, b.a.CheckPod(harness.Deadline(b.T, harness.Patience), "near"))
	harness.Settle(b.T, b.Lab)

	b.firstFromTheNode(near, plain)
	b.firstRestarts(near, far)
	b.firstStandard(near, far, plain)

	b.firstLeavesAddresses(plain, near, out, far)
	b.deleted(b.a, near.Pod, "eth0", near.eni)
	harness.RemoveAll(b.T, b.a)
	harness.RemoveAll(b.T, b.b)
	b.empty()
}

// firstFromTheNode checks that the node and an ordinary pod on it reach a branch only once its
// security groups allow them.
func (b *branches) firstFromTheNode(near routed, plain *node.Pod) {
	b.Helper()
	b.shut("the node", near.eni, b.asks(b.a.Netns, near))
	b.shut("an ordinary pod", near.eni, b.asks(plain.Netns(), near))
	for _, e := range harness.ENIs(b.Lab, b.a) {
		if e.Type != "trunk" {
			harness.OK(b.T, b.Cloud.Authorize(front, vpc.Rule{Protocol: "tcp", FromPort: echo.Port, ToPort: echo.Port, Groups: e.Groups}))
		}
	}
	b.reaches("the node", b.a.Netns, near)
	b.reaches("an ordinary pod", plain.Netns(), near)
	for _, a := range plain.Addrs { // whose groups let in the VPC
		if b.families.Has(ipfamily.Of(a)) {
			_, err := near.Ask(harness.Deadline(b.T, harness.Patience), "tcp", a, "hello")
			harness.OK(b.T, err)
		}
	}
}

// firstRestarts restarts daemon and operator under running pods.
func (b *branches) firstRestarts(near, far routed) {
	b.Helper()
	links := b.links(near.Pod)
	b.without(func() { b.talk(near, far) })
	harness.Settle(b.T, b.Lab)
	if got := b.branchOf(near.Pod, "eth0"); got.ID != near.eni.ID || got.Trunk.ID != near.eni.Trunk.ID || !maps.Equal(b.links(near.Pod), links) {
		b.Errorf("the branch was %+v and %+v, is %+v and %+v", near.eni.Trunk, links, got.Trunk, b.links(near.Pod))
	}
	harness.OK(b.T, b.a.CheckPod(harness.Deadline(b.T, harness.Patience), "near"))
	b.talk(near, far)
}

// firstStandard switches the node to mode standard: the security groups of new pods apply only to what
// crosses the VPC.
func (b *branches) firstStandard(near, far routed, plain *node.Pod) {
	b.Helper()
	stranger := b.addFirst(b.b, "stranger", outsider)
	b.dropped(stranger.Pod, stranger.eni, far.eni)
	harness.Restart(b.T, b.b, "--pod-security-group-enforcing-mode=standard")
	local, beside := b.addFirst(b.b, "local", outsider), harness.Add(b.T, b.b, "beside")
	b.dropped(stranger.Pod, stranger.eni, far.eni) // who were made before
	before := b.drops(local.eni)
	b.reaches("a pod of its node", beside.Netns(), local)
	b.reaches("its node", b.b.Netns, local)
	if got := b.drops(local.eni); got != before {
		b.Errorf("the VPC dropped %d packets from the pod's own node", got-before)
	}
	_, err := local.Ask(harness.Deadline(b.T, harness.Patience), "tcp", beside.Addr(), "hello")
	harness.OK(b.T, err)
	b.shut("a pod of another node", local.eni, b.asks(plain.Netns(), local))
	b.dropped(near.Pod, near.eni, local.eni)
	b.dropped(far.Pod, far.eni, local.eni) // on the same node, in mode strict
	b.talk(near, far)
	for _, p := range []string{"far", "local"} {
		harness.OK(b.T, b.b.CheckPod(harness.Deadline(b.T, harness.Patience), p))
	}
	harness.Settle(b.T, b.Lab)
	harness.Restart(b.T, b.b) // with the default mode, in which the pod stays as it is
	harness.Settle(b.T, b.Lab)
	b.reaches("a pod of its node", beside.Netns(), local)
}

// firstLeavesAddresses checks that pods whose first interface is a branch use none of the node's
// addresses for pods, and that an ordinary pod does.
func (b *branches) firstLeavesAddresses(plain *node.Pod, pods ...routed) {
	b.Helper()
	networks, err := b.Kube.NodeNetworks(b.Context())
	harness.OK(b.T, err)
	used := func(a netip.Addr) bool {
		return slices.ContainsFunc(networks, func(n v1alpha1.NodeNetwork) bool { _, is := n.Status.IPAM.Used[a.String()]; return is })
	}
	for _, p := range pods {
		if slices.ContainsFunc(b.addrs(p.eni), used) {
			b.Errorf("a NodeNetwork has an address of %s as used", p.Name)
		}
	}
	if !used(plain.Addr()) {
		b.Errorf("no NodeNetwork has %s, of an ordinary pod, as used", plain.Addr())
	}
}

// warm starts a pod with a warm branch while EC2 is away. The pool is emptied once it is disabled.
func (b *branches) warm() {
	b.keepReady(1)
	near, far := b.addFirst(b.a, "near", front), b.addFirst(b.b, "far", peers)
	ready := b.inPool("a branch is ready for the next pod", b.a.Name, front)
	b.Cloud.API.Outage(true)
	next := b.add(b.a, "next", b.vpc, fmt.Sprintf("[{name: eth0, securityGroups: [%s]}]", front))
	for _, a := range next.Addrs {
		if !slices.ContainsFunc(ready.Addresses, func(r portcloud.Address) bool { return r.IP == a }) {
			b.Errorf("the pod has %s, want that of %+v", next.Addrs, ready)
		}
	}
	b.talk(routed{next, b.a, b.branchOf(next, "eth0")}, far)
	b.Cloud.API.Outage(false)
	b.inPool("another takes its place", b.a.Name, front, ready.ID)
	harness.Settle(b.T, b.Lab)
	b.deleted(b.a, next, "eth0", b.branchOf(next, "eth0"))
	b.deleted(b.a, near.Pod, "eth0", near.eni)
	b.keepReady(0)
	harness.RemoveAll(b.T, b.b)
	b.empty()
}

// keepReady sets how many warm branches are kept for each set of security groups on each node.
func (b *branches) keepReady(n int) {
	b.Helper()
	o := &v1alpha1.VPC{}
	o.Name = b.vpc
	body := fmt.Appendf(nil, `{"spec":{"ec2":{"warmBranches":%d}}}`, n)
	harness.OK(b.T, b.Kube.Client.Patch(b.Context(), o, client.RawPatch(types.MergePatchType, body)))
}

// inPool waits for a warm branch with a group on a node, except some, and returns it. There may be
// others for pods of the last ten minutes.
func (b *branches) inPool(what, on, group string, but ...string) (ready portcloud.Port) {
	b.Helper()
	harness.Eventually(b.T, harness.Patience, what, func() error {
		ports, err := b.Ports.Ports(b.Context())
		if err != nil {
			return err
		}
		i := slices.IndexFunc(ports, func(p portcloud.Port) bool {
			_, warm := p.WarmFor()
			return warm && p.Host == on && !slices.Contains(but, p.ID) && slices.Equal(p.Groups, []string{group})
		})
		if i < 0 {
			return fmt.Errorf("none of %+v is", ports)
		}
		ready = ports[i]
		return nil
	})
	return ready
}

// named has NICs that ask for addresses of both families, or of one.
func (b *branches) named() {
	subnet, _ := b.Snapshot().Subnet(podsSubnets[0])
	last := subnet.IPv6.Addr().As16()
	last[15] = 77
	four, six := netip.MustParseAddr("10.0.64.77"), netip.AddrFrom16(last)
	for nics, want := range map[string][]netip.Addr{
		fmt.Sprintf("[{name: eth1, addresses: [{ip: %s}, {ip: '%s'}]}]", four, six):    {four, six},
		fmt.Sprintf("[{name: eth1, ip: '%s'}]", six.Next()):                            {six.Next()},
		fmt.Sprintf("[{name: eth1, subnet: %s, ip: %s}]", podsSubnets[0], four.Next()): {four.Next()},
	} {
		e := b.branch(b.add(b.b, "named", b.vpc, nics))
		for _, a := range want {
			if !slices.Contains(b.addrs(e), a) || e.SubnetID != podsSubnets[0] {
				b.Errorf("%s: the branch has %v in %s", nics, b.addrs(e), e.SubnetID)
			}
		}
		harness.Remove(b.T, b.b, "named")
	}
	b.empty()
}

// alone has pods with IPv6-only branches beside dual-stack ones on the same nodes.
func (b *branches) alone() {
	both := *b
	b.vpc, b.families = onlySix, ipfamily.OnlyIPv6
	near, far := b.addFirst(b.a, "near", front), b.addFirst(b.b, "far", peers)
	out, other := b.addFirst(b.a, "outsider", outsider), both.addFirst(b.a, "both", peers)
	b.talk(near, far)
	b.dropped(out.Pod, out.eni, near.eni)
	b.answers(other.Pod, other.eni, near.eni) // by what both have
	further := b.add(b.b, "further", b.vpc, withGroups(peers))
	b.answers(further, b.branch(further), near.eni)
	harness.Settle(b.T, b.Lab)
	b.without(func() { b.talk(near, far) })
	harness.Restart(b.T, b.b, "--pod-security-group-enforcing-mode="+string(plug.Standard))
	local, beside := b.addFirst(b.b, "local", outsider), harness.Add(b.T, b.b, "beside")
	b.reaches("its node", b.b.Netns, local)
	b.reaches("a pod of its node", beside.Netns(), local)
	b.shut("a pod of another node", local.eni, b.ask(near.Pod, near.eni, local.eni))
	for _, p := range []string{"far", "local", "further"} {
		harness.OK(b.T, b.b.CheckPod(harness.Deadline(b.T, harness.Patience), p))
	}
	harness.Settle(b.T, b.Lab)
	harness.Restart(b.T, b.b)
	harness.RemoveAll(b.T, b.a)
	harness.RemoveAll(b.T, b.b)
	b.empty()
}

// native has pods with branches in IPv6-only subnets, which have no IPv4 address.
func (b *branches) native() {
	out := b.addFirst(b.a, "outsider", outsider)
	b.vpc = native
	near, far := b.addFirst(b.a, "near", front), b.addFirst(b.b, "far", peers)
	further := b.add(b.b, "further", b.vpc, withGroups(peers))
	for _, e := range []vpc.ENI{near.eni, far.eni, b.branch(further)} {
		if e.Primary.IsValid() || !nativeBlock.Contains(e.IPv6[0]) {
			b.Errorf("a branch has %s and %v, want an address of %s alone", e.Primary, e.IPv6, nativeBlock)
		}
	}
	b.talk(near, far)
	b.dropped(out.Pod, out.eni, near.eni)
	b.answers(further, b.branch(further), near.eni)
	harness.Settle(b.T, b.Lab)
	b.without(func() { b.talk(near, far) })
	harness.Restart(b.T, b.b)
	for _, p := range []string{"far", "further"} {
		harness.OK(b.T, b.b.CheckPod(harness.Deadline(b.T, harness.Patience), p))
	}
	harness.Settle(b.T, b.Lab)
	harness.RemoveAll(b.T, b.a)
	harness.RemoveAll(b.T, b.b)
	b.empty()
}
