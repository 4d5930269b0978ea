//go:build guest

package labs

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/lab/cloud/vpc"
	"github.com/berthnet/berth/test/harness"
)

// named has NICs that ask for certain addresses of both families, or of one.
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

// alone has pods with branches of IPv6 alone, beside others of both families on the same nodes.
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

// native has pods with branches in subnets of IPv6 alone, which have no IPv4 address.
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
