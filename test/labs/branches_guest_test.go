//go:build guest

package labs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/cloud/spec"
	"github.com/berthnet/berth/lab/cloud/vpc"
	"github.com/berthnet/berth/lab/network/echo"
	"github.com/berthnet/berth/lab/portcloud"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/test/harness"
)

// branchCooling is how long branches of deleted pods are kept in these tests.
const branchCooling = 3 * time.Second

// Security groups: web and front allow peers, which allows both.
const (
	web      = "sg-00000000000000001"
	peers    = "sg-00000000000000002"
	outsider = "sg-00000000000000003"
	front    = "sg-00000000000000004"
)

// zoned is another VPC object, whose NICs have separate subnets, one in each zone.
const zoned = "zoned"

// onlySix is another VPC object with IPv6-only branches, in labs with IPv6.
const onlySix = "six"

// native is another VPC object with NICs in IPv6-only subnets, in IPv6-only labs.
const native = "native"

// podsSubnets are the subnets of zoned; the first is in the nodes' zone.
var podsSubnets = []string{"subnet-0000000000000000a", "subnet-0000000000000000b"}

// branchesLab returns a VPC with two nodes in one zone.
func branchesLab() lab.Options {
	s := lab.DefaultSpec(2, "m5.large") // supports nine branches
	v := &s.VPCs[0]
	for i := range s.Instances {
		s.Instances[i].Subnet = v.Subnets[0].Name
	}
	for i, cidr := range []string{"10.0.64.0/22", "10.0.68.0/22"} {
		v.Subnets = append(v.Subnets, spec.Subnet{Name: fmt.Sprint("pods-", i), ID: podsSubnets[i], Zone: v.Subnets[i].Zone, CIDR: netip.MustParsePrefix(cidr)})
	}
	from := func(groups ...string) []spec.Rule { return []spec.Rule{{Protocol: "-1", Groups: groups}} }
	v.SecurityGroups = append(v.SecurityGroups,
		spec.SecurityGroup{Name: "web", ID: web, Ingress: from("peers")},
		spec.SecurityGroup{Name: "peers", ID: peers, Ingress: from("web", "front")},
		spec.SecurityGroup{Name: "outsider", ID: outsider},
		spec.SecurityGroup{Name: "front", ID: front, Ingress: from("peers")},
	)
	return lab.Options{
		Spec: &s, VPCPorts: true, PortCloud: portcloud.NewBranches,
		VPCs: []lab.VPC{
			{Name: lab.BranchVPC, Spec: v1alpha1.VPCSpec{EC2: &v1alpha1.EC2Spec{WarmBranches: new(int32(0))}}},
			{Name: zoned, Spec: v1alpha1.VPCSpec{DefaultSecurityGroups: []string{peers}, EC2: &v1alpha1.EC2Spec{Subnets: podsSubnets, WarmBranches: new(int32(0))}}},
		},
		OperatorArgs: []string{"--branch-cooling=" + branchCooling.String()},
	}
}

// branchCase is a test in a lab with branches. Lab and case take a minute and a half in the guest, so only make e2e
// runs them.
type branchCase struct {
	name string
	does func(*branches)
}

// TestPodsHaveBranches tests pods with branch interfaces and per-pod security groups in a VPC that enforces them,
// with the operator's own IAM policy. Branches are IPv4-only, dual-stack (some IPv6-only), or IPv6-only in an
// IPv6-only cluster.
func TestPodsHaveBranches(t *testing.T) {
	for families, cases := range map[ipfamily.Set][]branchCase{
		ipfamily.OnlyIPv4: {
			{"Groups", (*branches).groups},
			{"Defaults", (*branches).defaults},
			{"Restarts", (*branches).restarts},
			{"Moves", (*branches).moves},
			{"First", (*branches).first},
			{"Warm", (*branches).warm},
		},
		ipfamily.Dual: {
			{"Groups", (*branches).groups},
			{"Named", (*branches).named},
			{"Moves", (*branches).moves},
			{"First", (*branches).first},
			{"Alone", (*branches).alone},
			{"Warm", (*branches).warm},
		},
		ipfamily.OnlyIPv6: {
			{"Groups", (*branches).groups},
			{"First", (*branches).first},
			{"Native", (*branches).native},
		},
	} {
		t.Run(string(families), func(t *testing.T) { eachBranchCase(t, families, cases) })
	}
}

// eachBranchCase runs cases one after the other in one lab, and checks that the operator lacked no permission.
func eachBranchCase(t *testing.T, families ipfamily.Set, cases []branchCase) {
	t.Helper()
	var b *branches
	for _, s := range cases {
		ok := t.Run(s.name, func(one *testing.T) {
			harness.Rotate(one)
			if b == nil {
				b = raiseBranches(t, families)
			}
			s.does(b.on(one))
		})
		if !ok {
			return // the next case starts from the state of this one
		}
	}
	if b != nil {
		t.Run("Permissions", func(t *testing.T) { b.on(t).permissions() })
	}
}

func raiseBranches(t *testing.T, families ipfamily.Set) *branches {
	t.Helper()
	harness.StartKube(t)
	harness.KubeClean(t) // labs of other packages have nodes with the same names
	o := branchesLab()
	if o.IPFamilies = families; families == ipfamily.Dual {
		o.VPCs = append(o.VPCs, lab.VPC{Name: onlySix, Spec: v1alpha1.VPCSpec{EC2: &v1alpha1.EC2Spec{IPFamilies: string(ipfamily.OnlyIPv6), WarmBranches: new(int32(0))}}})
	}
	if families == ipfamily.OnlyIPv6 {
		var ids []string
		for _, n := range withNatives(t, o.Spec) {
			ids = append(ids, n.ID)
		}
		o.VPCs = append(o.VPCs, lab.VPC{Name: native, Spec: v1alpha1.VPCSpec{EC2: &v1alpha1.EC2Spec{Subnets: ids, WarmBranches: new(int32(0))}}})
	}
	l := harness.RaiseQuick(t, lab.OperatorMode, o)
	return &branches{T: t, Lab: l, a: l.Nodes()[0], b: l.Nodes()[1], families: families, vpc: lab.BranchVPC}
}

// branches is a lab with branches.
type branches struct {
	*testing.T
	*lab.Lab
	a, b     *node.Node
	vpc      string       // VPC object named by the pods of a case
	families ipfamily.Set // families of its branches
}

// addrs returns the addresses of a branch that its pod has. The order of families is the same for all branches.
func (b *branches) addrs(e vpc.ENI) (list []netip.Addr) {
	if b.families.Has(ipfamily.IPv4) {
		list = append(list, e.Primary)
	}
	if b.families.Has(ipfamily.IPv6) {
		if len(e.IPv6) != 1 {
			b.Fatalf("IPv6 addresses of branch %s = %v, want one", e.ID, e.IPv6)
		}
		list = append(list, e.IPv6[0])
	}
	return list
}

// cidrs returns the addresses of a branch as an additional interface has them.
func (b *branches) cidrs(e vpc.ENI) string {
	subnet, _ := b.Snapshot().Subnet(e.SubnetID)
	var list []string
	for _, a := range b.addrs(e) {
		bits := subnet.CIDR.Bits()
		if a.Is6() {
			bits = subnet.IPv6.Bits()
		}
		list = append(list, netip.PrefixFrom(a, bits).String())
	}
	return strings.Join(list, " ")
}

func (b *branches) on(t *testing.T) *branches {
	c := *b
	c.T = t
	return &c
}

// pod returns the options of a pod with NICs in a VPC.
func (b *branches) pod(vpc, nics string) node.PodOptions {
	return node.PodOptions{Annotations: map[string]string{v1alpha1.AnnotationVPC: vpc, v1alpha1.AnnotationNICs: nics}}
}

// add adds a pod with NICs.
func (b *branches) add(n *node.Node, name, vpc, nics string) *node.Pod {
	b.Helper()
	p, err := n.AddPod(harness.Deadline(b.T, harness.Patience), name, b.pod(vpc, nics))
	harness.OK(b.T, err)
	return p
}

// withGroups returns the annotation for one NIC with these security groups.
func withGroups(groups ...string) string {
	return fmt.Sprintf("[{name: eth1, securityGroups: [%s]}]", strings.Join(groups, ", "))
}

// branch returns the branch of a pod's eth1 once its PodNIC is Active, and checks that the pod and EC2 agree on it.
func (b *branches) branch(p *node.Pod) vpc.ENI {
	b.Helper()
	e := b.branchOf(p, "eth1")
	own := b.cidrs(e)
	if got := b.links(p)["eth1"]; got.mac != e.MAC.String() || got.addrs != own || got.vlan != e.Trunk.VLAN {
		b.Errorf("eth1 of %s = %+v, want the MAC, addresses and VLAN of its branch, %s, %s and %d", p.Name, got, e.MAC, own, e.Trunk.VLAN)
	}
	return e
}

// branchOf returns the branch of a pod's interface, and checks that the PodNIC is Active and agrees with EC2.
func (b *branches) branchOf(p *node.Pod, link string) vpc.ENI {
	b.Helper()
	n := harness.PodNIC(b.T, b.Lab, p, link)
	e, ok := b.Snapshot().ENI(n.Status.PortID)
	if !ok || e.Trunk == nil {
		b.Fatalf("EC2 returns %+v for the branch %q of %s, want a branch", e, n.Status.PortID, p.Name)
	}
	trunk, _ := b.Snapshot().ENI(e.Trunk.TrunkID)
	plug := n.Status.Plug
	if n.Status.Phase != v1alpha1.PhaseActive || plug == nil || plug.Type != v1alpha1.PlugVLAN || int(plug.VLAN) != e.Trunk.VLAN || plug.TrunkMAC != trunk.MAC.String() {
		b.Fatalf("PodNIC of %s is %s with plug %+v, does not match EC2's %+v on %s", p.Name, n.Status.Phase, plug, e.Trunk, trunk.MAC)
	}
	return e
}

// podLink is an interface of a pod.
type podLink struct {
	index      int
	mac, addrs string
	vlan       int // 0 if not a VLAN
}

// links returns the interfaces of a pod that are up, except lo, by name.
func (b *branches) links(p *node.Pod) map[string]podLink {
	b.Helper()
	all := map[string]podLink{}
	harness.OK(b.T, ns.Netlink(p.Netns(), func(h *netlink.Handle) error {
		links, err := h.LinkList()
		for _, l := range links {
			a := l.Attrs()
			if a.Name == "lo" || a.Flags&net.FlagUp == 0 { // such as tunl0, which the kernel creates in every namespace
				continue
			}
			is := podLink{index: a.Index, mac: a.HardwareAddr.String()}
			if v, ok := l.(*netlink.Vlan); ok {
				is.vlan = v.VlanId
			}
			addrs, err := h.AddrList(l, netlink.FAMILY_ALL)
			if err != nil {
				return fmt.Errorf("list the addresses of %s: %w", a.Name, err)
			}
			var list []string
			for _, addr := range addrs {
				if !addr.IP.IsLinkLocalUnicast() { // includes node-local IPv4 addresses
					list = append(list, addr.IPNet.String())
				}
			}
			is.addrs = strings.Join(list, " ")
			all[a.Name] = is
		}
		return err
	}))
	return all
}

// question sends a request to the i-th address of a branch (branches.addrs).
type question func(ctx context.Context, number int) error

// ask returns a question from one pod's branch to another, which must see the first branch's address.
func (b *branches) ask(from *node.Pod, own, to vpc.ENI) question {
	mine, others := b.addrs(own), b.addrs(to)
	return func(ctx context.Context, i int) error {
		r, err := echo.Ask(ctx, from.Netns(), "tcp", netip.AddrPortFrom(others[i], echo.Port), mine[i], "hello")
		if err == nil && r.You != mine[i] {
			err = fmt.Errorf("%s sees the source address %s, want %s", others[i], r.You, mine[i])
		}
		return err
	}
}

// each sends a question in all families.
func (b *branches) each(ctx context.Context, ask question) error {
	for i := range b.families.Families() {
		if err := ask(ctx, i); err != nil {
			return err
		}
	}
	return nil
}

// answers waits until one pod's branch gets a reply from another's.
func (b *branches) answers(from *node.Pod, own, to vpc.ENI) {
	b.Helper()
	harness.Eventually(b.T, harness.Patience, from.Name+" gets a reply from "+to.Primary.String(), func() error {
		ctx, cancel := context.WithTimeout(b.Context(), 10*time.Second)
		defer cancel()
		return b.each(ctx, b.ask(from, own, to))
	})
}

// dropped checks that the VPC drops a question at its destination branch.
func (b *branches) dropped(from *node.Pod, own, to vpc.ENI) {
	b.Helper()
	b.shut(from.Name, to, b.ask(from, own, to))
}

// shut checks that the VPC drops questions to a branch in each family because of its security groups, and counts the
// drops there.
func (b *branches) shut(who string, at vpc.ENI, ask question) {
	b.Helper()
	for i, a := range b.addrs(at) {
		before := b.drops(at)
		harness.Eventually(b.T, harness.Patience, "the VPC drops packets from "+who+" to "+a.String(), func() error {
			ctx, cancel := context.WithTimeout(b.Context(), shortly)
			defer cancel()
			err := ask(ctx, i)
			if err == nil {
				b.Errorf("%s reaches %s", who, a)
			}
			if b.drops(at) == before {
				return fmt.Errorf("no packet was dropped; result of the question: %w", err)
			}
			return nil
		})
	}
}

// shortly is how long to wait for a reply that must not arrive. A shorter time only weakens the test.
const shortly = 500 * time.Millisecond

// drops returns how many packets the VPC has dropped at an ENI because of its security groups.
func (b *branches) drops(at vpc.ENI) uint64 {
	b.Helper()
	all, err := b.Fabric.Drops()
	harness.OK(b.T, err)
	return all[at.ID]["ingress"]
}

// groups tests pods with and without per-pod security groups, and changing rules.
func (b *branches) groups() {
	near := b.add(b.a, "near", b.vpc, withGroups(web))
	far, out := b.add(b.b, "far", b.vpc, withGroups(peers)), b.add(b.b, "outsider", b.vpc, withGroups(outsider))
	plain, other := harness.Add(b.T, b.a, "plain"), harness.Add(b.T, b.b, "plain-too")
	eni, enis := b.branch(near), map[*node.Pod]vpc.ENI{far: b.branch(far), out: b.branch(out)}
	if !slices.Equal(eni.Groups, []string{web}) {
		b.Errorf("security groups of the branch = %v, want only %s", eni.Groups, web)
	}
	if got := slices.Sorted(maps.Keys(b.links(near))); !slices.Equal(got, []string{"eth0", "eth1"}) || !strings.HasPrefix(b.links(near)["eth0"].addrs, hosts(near.Addrs)) {
		b.Errorf("links of the pod = %v, eth0 = %+v, addresses = %s, want eth0 with these addresses and eth1", got, b.links(near)["eth0"], near.Addrs)
	}
	if got := slices.Sorted(maps.Keys(b.links(plain))); !slices.Equal(got, []string{"eth0"}) {
		b.Errorf("links of a pod without NICs = %v, want eth0", got)
	}
	b.answers(near, eni, enis[far])
	b.answers(far, enis[far], eni)
	b.dropped(out, enis[out], eni)
	_, err := plain.Ask(harness.Deadline(b.T, harness.Patience), "tcp", other.Addr(), "hello")
	harness.OK(b.T, err)
	_, err = near.Ask(harness.Deadline(b.T, harness.Patience), "tcp", plain.Addr(), "hello")
	harness.OK(b.T, err)
	harness.OK(b.T, b.a.CheckPod(harness.Deadline(b.T, harness.Patience), "near"))
	harness.Settle(b.T, b.Lab)

	harness.OK(b.T, b.Cloud.Authorize(web, vpc.Rule{Protocol: "tcp", FromPort: echo.Port, ToPort: echo.Port, Groups: []string{outsider}}))
	b.answers(out, enis[out], eni)
	b.deleted(b.a, near, "eth1", eni)
	harness.RemoveAll(b.T, b.a)
	harness.RemoveAll(b.T, b.b)
	b.empty()
}

// hosts formats the addresses of a pod to which its node routes.
func hosts(addrs []netip.Addr) string {
	var list []string
	for _, a := range addrs {
		list = append(list, netip.PrefixFrom(a, a.BitLen()).String())
	}
	return strings.Join(list, " ")
}

// deleted removes a pod: its branch is unplugged immediately, and deleted after the cooling period.
func (b *branches) deleted(n *node.Node, p *node.Pod, link string, eni vpc.ENI) {
	b.Helper()
	nic := harness.PodNIC(b.T, b.Lab, p, link)
	began := time.Now()
	harness.Remove(b.T, n, p.Name)
	harness.Eventually(b.T, harness.Patience, "PodNIC "+nic.Name+" is unplugged or deleted", func() error {
		o := &v1alpha1.PodNIC{}
		err := b.Kube.Client.Get(b.Context(), client.ObjectKeyFromObject(nic), o)
		if err == nil && (o.Status.Node == nil || o.Status.Node.State != v1alpha1.NodeUnplugged) {
			return fmt.Errorf("node status of the PodNIC = %+v", o.Status.Node)
		}
		return client.IgnoreNotFound(err)
	})
	var after time.Duration
	harness.Eventually(b.T, harness.Patience, "branch "+eni.ID+" is deleted", func() error {
		for _, c := range b.Cloud.API.CallLog() {
			if c.Action == "DeleteNetworkInterface" && c.Code == "" && slices.Contains(c.Params["NetworkInterfaceId"], eni.ID) {
				after = c.Time.Sub(began)
				return nil
			}
		}
		return errors.New("no call to EC2 deleted the branch")
	})
	if after < branchCooling-time.Second { // the API server stores times in whole seconds
		b.Errorf("branch was deleted %v after its pod, want %v", after, branchCooling)
	}
}

// empty waits until no branch is left and the lab is consistent.
func (b *branches) empty() {
	b.Helper()
	harness.Eventually(b.T, harness.Patience, "no port is left", func() error {
		ports, err := b.Ports.Ports(b.Context())
		ports = slices.DeleteFunc(ports, func(p portcloud.Port) bool { return p.Owner == "" })
		if err == nil && len(ports) > 0 {
			err = fmt.Errorf("%d ports are left, such as %+v", len(ports), ports[0])
		}
		return err
	})
	harness.Settle(b.T, b.Lab)
}

// defaults tests NICs without options: they get groups and subnet of their VPC object, or the trunk's subnet.
func (b *branches) defaults() {
	plain := b.branch(b.add(b.a, "plain", lab.BranchVPC, "[{name: eth1}]"))
	trunk, _ := b.Snapshot().ENI(plain.Trunk.TrunkID)
	if !slices.Equal(plain.Groups, []string{b.VPCs[0].Open}) || plain.SubnetID != trunk.SubnetID {
		b.Errorf("security groups of the branch = %v in %s, want %s in %s", plain.Groups, plain.SubnetID, b.VPCs[0].Open, trunk.SubnetID)
	}
	other := b.branch(b.add(b.b, "zoned", zoned, "[{name: eth1}]"))
	if !slices.Equal(other.Groups, []string{peers}) || other.SubnetID != podsSubnets[0] {
		b.Errorf("security groups of the branch = %v in %s, want %s in %s", other.Groups, other.SubnetID, peers, podsSubnets[0])
	}
	named := b.branch(b.add(b.b, "named", lab.BranchVPC, fmt.Sprintf("[{name: eth1, subnet: %s, ip: 10.0.64.77}]", podsSubnets[0])))
	if named.Primary != netip.MustParseAddr("10.0.64.77") || named.SubnetID != podsSubnets[0] {
		b.Errorf("address of the branch = %s in %s, want the requested one", named.Primary, named.SubnetID)
	}
	harness.Settle(b.T, b.Lab)
	harness.RemoveAll(b.T, b.a)
	harness.RemoveAll(b.T, b.b)
}

// restarts kills and starts operator and daemon while pods run.
func (b *branches) restarts() {
	near, far := b.add(b.a, "near", lab.BranchVPC, withGroups(web)), b.add(b.b, "far", lab.BranchVPC, withGroups(peers))
	here, there, links, others := b.branch(near), b.branch(far), b.links(near), b.links(far)
	b.without(func() { b.answers(near, here, there) })           // traffic depends on neither
	late := b.add(b.a, "late", lab.BranchVPC, withGroups(peers)) // works again with both
	harness.Settle(b.T, b.Lab)
	if got := b.branch(near); got.ID != here.ID || got.Trunk.ID != here.Trunk.ID || !maps.Equal(b.links(near), links) {
		b.Errorf("branch and links changed from %+v and %+v to %+v and %+v", here.Trunk, links, got.Trunk, b.links(near))
	}
	if got := b.links(far); !maps.Equal(got, others) {
		b.Errorf("links of a pod on the other node changed from %+v to %+v", others, got)
	}
	harness.OK(b.T, b.a.CheckPod(harness.Deadline(b.T, harness.Patience), "near"))
	b.answers(late, b.branch(late), here)
	b.answers(far, there, here)
	harness.RemoveAll(b.T, b.a)
	harness.RemoveAll(b.T, b.b)
}

// without runs do while neither the operator nor the daemon of the first node runs.
func (b *branches) without(do func()) {
	b.Helper()
	o := b.Operators()[0]
	harness.OK(b.T, o.Kill())
	harness.OK(b.T, b.a.Kill())
	do()
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "berth-operator"}}
	harness.OK(b.T, b.Kube.Client.Delete(b.Context(), lease)) // a long Lease of an operator that has ended
	harness.OK(b.T, o.Start())
	harness.OK(b.T, b.a.Start())
	harness.OK(b.T, o.WaitReady(harness.Deadline(b.T, harness.Patience)))
	harness.Ready(b.T, b.a)
}

// moves tests a PodNIC that outlives its pods and moves from node to node with its address.
func (b *branches) moves() {
	db := &v1alpha1.PodNIC{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "db"}, Spec: v1alpha1.PodNICSpec{VPC: b.vpc, SecurityGroups: []string{web}}}
	harness.OK(b.T, b.Kube.Client.Create(b.Context(), db))
	peer := b.add(b.a, "peer", b.vpc, withGroups(peers))
	asks := b.branch(peer)
	var first vpc.ENI
	for i, n := range []*node.Node{b.a, b.b, b.a} {
		p := b.add(n, "db", b.vpc, "[{name: eth1, nic: db}]")
		e := b.branch(p)
		if i == 0 {
			first = e
		}
		trunk, _ := b.Snapshot().ENI(e.Trunk.TrunkID)
		if e.ID != first.ID || !slices.Equal(b.addrs(e), b.addrs(first)) || trunk.Attachment.InstanceID != n.InstanceID {
			b.Errorf("on %s the NIC is %s with %v on %s, want %s with %v on this node", n.Name, e.ID, b.addrs(e), trunk.Attachment.InstanceID, first.ID, b.addrs(first))
		}
		b.answers(peer, asks, e)
		harness.Remove(b.T, n, "db")
	}
	harness.RemoveAll(b.T, b.a)
	harness.OK(b.T, b.Kube.Client.Delete(b.Context(), db))
}

// permissions checks that EC2 refused the operator no call.
func (b *branches) permissions() {
	for _, c := range b.Cloud.API.CallLog() {
		if c.Code == "UnauthorizedOperation" {
			b.Errorf("call %s with %v was denied", c.Action, c.Params)
		}
	}
}
