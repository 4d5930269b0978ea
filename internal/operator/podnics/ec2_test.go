package podnics

import (
	"cmp"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/cloudfake"
	"github.com/berthnet/berth/internal/ec2/cloud/limits"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/nicrequest"
	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/branch"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/controllers"
	"github.com/berthnet/berth/test/harness/sourcetest"
)

// branches is a VPC of EC2, named e, beside that of a world.
type branches struct {
	*world
	ec2 *cloudfake.Cloud
}

// cooling has ports cool for another time.
type cooling struct {
	*branch.Provider
	time time.Duration
}

func (c cooling) Traits() vpcport.Traits {
	t := c.Provider.Traits()
	t.Cooling = c.time
	return t
}

// startEC2 has the Nodes node-1 and node-2, of the instances i-1 and i-2 with a trunk each. Ports cool for some time, and the
// warm pool has so many branches of each kind.
func startEC2(t *testing.T, cools time.Duration, warm int32, o Options) *branches {
	t.Helper()
	b := &branches{world: start(t, o), ec2: cloudfake.New(cloudfake.Options{})}
	b.ec2.State.AddSubnet("subnet-a", "zone-a", "10.0.0.0/20", nil)
	b.ec2.State.AddSecurityGroup("sg-web", nil)
	for i := range 2 {
		instance := fmt.Sprint("i-", i+1)
		b.ec2.State.AddInstance(instance, "m5.large", "subnet-a")
		b.ec2.State.AddENI(instance, 1, cloud.InterfaceTrunk, map[string]string{eni.TagCluster: cluster, eni.TagOwner: eni.Owner, eni.TagInstanceID: instance})
		n := controllers.Create(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("node-", i+1)}, Spec: corev1.NodeSpec{ProviderID: "aws:///zone-a/" + instance}})
		b.ready(n.Name, corev1.ConditionTrue)
		b.branchesOf(n.Name, limits.Branches("m5.large"))
	}
	spec := v1alpha1.VPCSpec{Provider: v1alpha1.ProviderEC2, Network: "vpc-0a1b2c3d", AllowedNamespaces: &v1alpha1.VPCNamespaces{Names: []string{"*"}}, EC2: &v1alpha1.EC2Spec{WarmBranches: &warm},
		NamespaceLimits: []v1alpha1.VPCNamespaceLimits{{Namespaces: v1alpha1.VPCNamespaces{Names: []string{"default"}}, SecurityGroups: []string{"sg-web"}}},
	}
	v := controllers.Create(t, &v1alpha1.VPC{ObjectMeta: metav1.ObjectMeta{Name: "e"}, Spec: spec})
	b.nets.set("e", Opened{UID: string(v.UID), Spec: spec})
	b.open("", cools)
	return b
}

// branchesOf has a Node say how many branch interfaces its pods may have.
func (b *branches) branchesOf(node string, n int) {
	b.t.Helper()
	o := controllers.Named[corev1.Node](node)
	controllers.MergeStatus(b.t, b.client(), o, `{"status":{"capacity":{%q:"%d"}}}`, v1alpha1.ResourceBranches, n)
}

// podIn makes a pod with NICs in VPC e, on a node if there is one.
func (b *branches) podIn(name, nics, node string) {
	b.t.Helper()
	p := newPod(name, nics)
	p.Annotations[v1alpha1.AnnotationVPC] = "e"
	controllers.Create(b.t, p)
	if node != "" {
		b.schedule(name, node)
	}
}

func (b *branches) enis() []cloud.ENI {
	b.t.Helper()
	list, err := b.ec2.ENIs(b.t.Context(), cloud.ENIFilter{Tags: map[string]string{eni.TagOwner: branch.Owner}})
	harness.OK(b.t, err)
	return list
}

// A pod's NIC is a branch of its node's trunk, made once the pod has a node and not before;
// once nobody has it, it is kept until it has cooled.
func TestBranchOfAPod(t *testing.T) {
	const cools = 3 * time.Second
	b := startEC2(t, cools, 0, Options{})
	b.podIn("web", "[{securityGroups: [sg-web]}]", "")
	b.awaitNIC("web", "eth0", "waits for a node", in(v1alpha1.PhasePending))
	b.schedule("web", "node-1")
	o := b.awaitNIC("web", "eth0", "is active", in(v1alpha1.PhaseActive))
	list := b.enis()
	if len(list) != 1 || list[0].ID != o.Status.PortID || list[0].Type != cloud.InterfaceBranch || len(list[0].Groups) != 1 || list[0].Groups[0] != "sg-web" {
		t.Fatalf("EC2 has %+v", list)
	}
	plug := o.Status.Plug
	if o.Status.Host != "i-1" || plug.Type != v1alpha1.PlugVLAN || plug.VLAN != int32(b.ec2.State.Associations()[0].VLAN) || plug.TrunkMAC == "" || plug.TrunkMAC == o.Status.MAC {
		t.Errorf("status %+v, plug %+v", o.Status, plug)
	}
	harness.OK(t, controllers.Same("ENIs that were asked for", b.calls("CreateENI"), 1))
	b.says(o, v1alpha1.NodePlugged)
	b.deletePod("web")
	b.awaitObject(o.Name, "waits for its node", in(v1alpha1.PhaseReleasing))
	said := time.Now()
	b.says(o, v1alpha1.NodeUnplugged)
	b.awaitGone(o.Name)
	if d := time.Since(said); d < cools-time.Second { // of a second the API server keeps no parts
		t.Errorf("it was deleted %v after it was unplugged, want %v", d, cools)
	}
	harness.OK(t, controllers.Same("ENIs that are left", len(b.enis()), 0))
}

func (b *branches) calls(op string) (n int) {
	for _, c := range b.ec2.Front.Calls() {
		if c.Op == op {
			n++
		}
	}
	return n
}

// What keeps a NIC from its node is said: no instance, no trunk, no room. It comes once there
// is room.
func TestNodesWithoutRoomForBranches(t *testing.T) {
	b := startEC2(t, 0, 0, Options{})
	b.podIn("odd", "", "node-a") // which is no EC2 instance's
	b.waits("odd", reasonRefused, "spec.providerID")

	var last string
	for i := range 10 { // an m5.large has nine
		last = fmt.Sprint("web-", i)
		b.podIn(last, "", "node-1")
		if i < 9 {
			b.awaitNIC(last, "eth0", "is active", in(v1alpha1.PhaseActive))
		}
	}
	b.awaitNIC(last, "eth0", "has no room", condition(v1alpha1.ConditionBound, metav1.ConditionFalse, reasonBinding, "as many branch interfaces as its type may have"))
	b.deletePod("web-0")
	b.awaitNIC(last, "eth0", "has the room of another", in(v1alpha1.PhaseActive))
}

// Where the first interface of pods may be a branch it is one if a NIC has its name, in VPCs of EC2
// alone. A pod that runs keeps the first interface that it came with.
func TestFirstInterfaceThatIsABranch(t *testing.T) {
	b := startEC2(t, 0, 0, Options{First: nicrequest.First{Name: "eth0", MayBePort: true}})
	leads := func(pod, nic string, want bool) *v1alpha1.PodNIC {
		t.Helper()
		return b.awaitNIC(pod, nic, "is active", func(o *v1alpha1.PodNIC) error {
			if o.Status.DefaultRoute != want {
				return fmt.Errorf("it has the default route: %v", o.Status.DefaultRoute)
			}
			return in(v1alpha1.PhaseActive)(o)
		})
	}
	b.podIn("web", "[{}, {name: eth0, securityGroups: [sg-web]}]", "node-1")
	leads("web", "eth0", true)
	leads("web", "eth1", false)
	b.podIn("plain", "", "node-1")
	leads("plain", "eth1", false)
	b.podnic("db", v1alpha1.PodNICSpec{VPC: "e"})
	b.podIn("db-0", "[{name: eth0, nic: db}]", "node-2")
	leads("db-0", "eth0", true)

	const noPort = "eth0 is the name of the pod's first interface, which is no port here"
	b.pod("neutron", "[{name: eth0}]")
	b.awaitEvent("neutron", "NICsRefused", noPort)
	b.podIn("route", "[{name: eth0}, {defaultRoute: true}]", "")
	b.awaitEvent("route", "NICsRefused", "is true of eth1, and the pod's first interface eth0 is a branch interface")
	b.finish("plain", corev1.PodRunning)
	b.annotate("plain", "[{}, {name: eth0}]")
	b.awaitEvent("plain", "NICsRefused", noPort)
	b.plain("bare", "node-1")
	b.finish("bare", corev1.PodRunning)
	b.nameVPC("e")
	asks := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"[{name: eth0}]"}}}`, v1alpha1.AnnotationNICs)
	harness.Eventually(t, controllers.Limit, "the API server admits NICs of a namespace that names its VPC", func() error {
		return b.client().Patch(t.Context(), podOf("bare"), client.RawPatch(types.MergePatchType, asks))
	})
	b.awaitEvent("bare", "NICsRefused", noPort)
	if b.hasEvent("web", "NICsRefused") {
		t.Error("a pod that comes is refused what it comes with")
	}
	b.annotate("web", "[{}]")
	b.awaitEvent("web", "NICsRefused", "lacks eth0, the pod's first interface, which cannot be removed")
	for pod, want := range map[string]int{"web": 2, "plain": 1, "neutron": 0, "route": 0, "bare": 0} {
		if got := b.nicsOf(pod); len(got) != want {
			t.Errorf("%s has %v, want %d", pod, got, want)
		}
	}
	if o := b.nicsOf("web")["eth0"]; o.DeletionTimestamp != nil {
		t.Error("the first interface is taken away")
	}
	b.finish("web", corev1.PodRunning)
	b.annotate("web", "[{}, {name: eth0, securityGroups: [sg-web]}, {name: eth2}]")
	leads("web", "eth2", false)
	before := leads("web", "eth0", true)
	deletePodNIC(t, b.world, before.Name)
	b.awaitNIC("web", "eth0", "is made again", another(before, in(v1alpha1.PhaseActive)))
	leads("web", "eth0", true)
}

// open opens VPC e, from now on with ports of some IP families, which cool for some time.
func (b *branches) open(families ipfamily.Set, cools time.Duration) {
	b.t.Helper()
	o, err := b.nets.Of("e")
	harness.OK(b.t, err)
	p := branch.Open(branch.Settings{Cloud: b.ec2, Cluster: cluster, VPC: cloudfake.VPC, Families: families, Settle: time.Second, Logger: sourcetest.Logger(b.t.Output())})
	o.Provider = cooling{p, cools}
	o.Network, err = p.Network(b.t.Context(), cloudfake.VPC)
	harness.OK(b.t, err)
	o.Spec.EC2 = &v1alpha1.EC2Spec{IPFamilies: string(families), WarmBranches: o.Spec.EC2.WarmBranches}
	b.nets.set("e", o)
}

// families are those of the ports of VPC e from now on.
func (b *branches) families(f ipfamily.Set) {
	b.t.Helper()
	b.open(f, 0)
}

// Patterns of addresses in subnet-a.
const (
	anIPv4 = `10\.0\.\d+\.\d+/20 of subnet-a, gateway 10\.0\.0\.1`
	anIPv6 = `2001:db8:0:a:\S*/64 of subnet-a, gateway fe80:ec2::1`
)

// has wants a NIC to be active with addresses that match patterns, one each, and returns it.
func (b *branches) has(pod, nic string, patterns ...string) *v1alpha1.PodNIC {
	b.t.Helper()
	return b.awaitNIC(pod, nic, "has its addresses", func(o *v1alpha1.PodNIC) error {
		var got []string
		for _, a := range o.Status.Addresses {
			got = append(got, fmt.Sprintf("%s of %s, gateway %s", a.CIDR, a.Subnet, a.Gateway))
		}
		if !regexp.MustCompile("^" + strings.Join(patterns, "; ") + "$").MatchString(strings.Join(got, "; ")) {
			return fmt.Errorf("it has %q, want %q", got, patterns)
		}
		return in(v1alpha1.PhaseActive)(o)
	})
}

// madeAgain deletes the port of a pod's NIC, and wants another with its addresses.
func (b *branches) madeAgain(pod string, before *v1alpha1.PodNIC) {
	b.t.Helper()
	harness.OK(b.t, b.ec2.DeleteENI(b.t.Context(), before.Status.PortID))
	after := b.awaitNIC(pod, before.Status.Interface, "has another port", anotherPort(before.Status.PortID, in(v1alpha1.PhaseActive)))
	if !slices.Equal(after.Status.Addresses, before.Status.Addresses) {
		b.t.Errorf("the NIC has %+v, had %+v", after.Status.Addresses, before.Status.Addresses)
	}
}

// waits wants the port of a pod's NIC not to be ready for a reason.
func (b *branches) waits(pod, reason string, words ...string) {
	b.t.Helper()
	b.awaitNIC(pod, "eth0", "waits", condition(v1alpha1.ConditionPortReady, metav1.ConditionFalse, reason, words...))
}

// A subnet that got its block of IPv6 after the network was looked at serves: the NIC has both addresses once that is
// looked at again.
func TestSubnetThatGetsIPv6Late(t *testing.T) {
	b := startEC2(t, 0, 0, Options{})
	b.families(ipfamily.Dual)
	b.ec2.State.SetIPv6("subnet-a", "2001:db8:0:a::/64")
	b.podIn("web", "", "node-1")
	b.waits("web", vpcport.PolicyOf(vpcport.Bug).Reason, "is not of subnet subnet-a")
	b.families(ipfamily.Dual)
	b.has("web", "eth0", anIPv4, anIPv6)
}

// A VPC that gets IPv6 gives new NICs an address of it too, as their subnet has them, and leaves those that
// there are as they are. A port that is made again has both addresses again.
func TestBranchesOfAVPCThatGetsIPv6(t *testing.T) {
	b := startEC2(t, 0, 0, Options{})
	b.ec2.State.SetIPv6("subnet-a", "2001:db8:0:a::/64")
	b.podIn("old", "", "node-1")
	old := b.has("old", "eth0", anIPv4)
	b.families(ipfamily.Dual)
	b.podIn("new", "[{}, {ip: '2001:db8:0:a::77'}, {addresses: [{ip: 10.0.0.88}, {ip: '2001:db8:0:a::88'}]}]", "node-1")
	first := b.has("new", "eth0", anIPv4, anIPv6)
	b.has("new", "eth1", anIPv4, strings.Replace(anIPv6, `\S*`, ":77", 1))
	b.has("new", "eth2", anIPv4, strings.Replace(anIPv6, `\S*`, ":88", 1))
	if now := b.has("old", "eth0", anIPv4); now.Status.PortID != old.Status.PortID || now.Status.Addresses[0] != old.Status.Addresses[0] {
		t.Errorf("the NIC of before was %+v, is %+v", old.Status, now.Status)
	}
	b.podIn("odd", "[{addresses: [{ip: 10.0.0.99}, {ip: 10.0.0.98}]}]", "")
	b.awaitEvent("odd", "NICsRefused", "is of the same family as that before")
	b.madeAgain("new", first)
}

// Addresses that somebody gives a branch are not its NIC's, and not asked for when its port is made again; one
// that is taken away is.
func TestAddressesOfOthers(t *testing.T) {
	four, six := netip.MustParseAddr("10.0.0.9"), netip.MustParseAddr("2001:db8::9")
	at := func(addrs ...netip.Addr) (list []vpcport.FixedIP) {
		for _, a := range addrs {
			list = append(list, vpcport.FixedIP{SubnetID: "subnet-a", IP: a})
		}
		return list
	}
	as := func(cidrs ...string) (list []v1alpha1.PortAddress) {
		for _, c := range cidrs {
			list = append(list, v1alpha1.PortAddress{CIDR: c, Subnet: "subnet-a"})
		}
		return list
	}
	network := vpcport.Network{Subnets: []vpcport.Subnet{{ID: "subnet-a", CIDR: netip.MustParsePrefix("10.0.0.0/20"), IPv6CIDR: netip.MustParsePrefix("2001:db8::/64")}}}
	for name, tt := range map[string]struct {
		port      string // that was recorded; empty: this one
		had       []v1alpha1.PortAddress
		has, want []vpcport.FixedIP
	}{
		"a new port":                   {"", nil, at(four, six), at(four, six)},
		"two of a family":              {"", nil, at(four, six, six.Next()), at(four, six)},
		"another before its own":       {"", as("10.0.0.9/20", "2001:db8::9/64"), at(four, six.Prev(), six), at(four, six)},
		"its own is gone":              {"", as("10.0.0.9/20", "2001:db8::9/64"), at(four, six.Next()), at(four, six.Next())},
		"a family less":                {"", as("10.0.0.9/20", "2001:db8::9/64"), at(four), at(four)},
		"a family more":                {"", as("10.0.0.9/20"), at(four, six), at(four)},
		"a family more of a new port":  {"eni-0", as("10.0.0.9/20"), at(four, six), at(four, six)},
		"IPv6 alone, and another":      {"", as("2001:db8::9/64"), at(six.Next(), six), at(six)},
		"of a block that nobody knows": {"", as("10.0.0.9/20", "2001:db8::9/64"), at(four, netip.MustParseAddr("2001:db8:1::9")), at(four)},
		"of such a block, and new":     {"", nil, at(four, netip.MustParseAddr("2001:db8:1::9")), at(four, netip.MustParseAddr("2001:db8:1::9"))},
		"of such a block alone":        {"", nil, at(netip.MustParseAddr("2001:db8:1::9")), at(netip.MustParseAddr("2001:db8:1::9"))},
		"what it had cannot be read":   {"", as("nonsense"), at(four), at(four)},
		"nothing":                      {"", as("10.0.0.9/20"), nil, nil},
	} {
		p := &vpcport.Port{ID: "eni-1", Addresses: tt.has}
		st := v1alpha1.PodNICStatus{PortID: cmp.Or(tt.port, p.ID), Addresses: tt.had}
		s := &observation{o: &v1alpha1.PodNIC{Status: st}, opened: Opened{Provider: branch.Open(branch.Settings{}), Network: network}}
		if got := s.own(p); !slices.Equal(got.Addresses, tt.want) || !slices.Equal(p.Addresses, tt.has) {
			t.Errorf("%s: %v, want %v", name, got.Addresses, tt.want)
		}
	}
}

// A port that lost all of its addresses is said to, and the NIC keeps what it had, which a port in its place is to
// have again.
func TestBranchWithoutAnAddress(t *testing.T) {
	b := startEC2(t, 0, 0, Options{})
	b.ec2.State.SetIPv6("subnet-a", "2001:db8:0:a::/64")
	b.families(ipfamily.OnlyIPv6)
	before := b.starts("web", "", "node-1")
	has := netip.MustParsePrefix(before.Status.Addresses[0].CIDR).Addr()
	harness.OK(t, b.ec2.UnassignAddresses(t.Context(), before.Status.PortID, []netip.Prefix{cloud.HostPrefix(has)}))
	b.families(ipfamily.OnlyIPv6) // by which NICs are looked at
	b.awaitNIC("web", "eth0", "says that its port has no address", func(o *v1alpha1.PodNIC) error {
		if !slices.Equal(o.Status.Addresses, before.Status.Addresses) {
			return fmt.Errorf("it has %+v", o.Status.Addresses)
		}
		return condition(v1alpha1.ConditionPortReady, metav1.ConditionFalse, vpcport.PolicyOf(vpcport.Bug).Reason, "has no address of the families of VPC e (spec.ec2.ipFamilies)")(o)
	})
	b.madeAgain("web", before)
}

// Of a VPC of IPv6 alone a NIC has an address of that, and a subnet without any says so.
func TestBranchesOfIPv6(t *testing.T) {
	b := startEC2(t, 0, 0, Options{})
	b.families(ipfamily.OnlyIPv6)
	b.podIn("early", "", "node-1")
	b.waits("early", vpcport.PolicyOf(vpcport.Invalid).Reason, "IPv6 CIDR block that the port needs")
	b.deletePod("early")
	b.ec2.State.SetIPv6("subnet-a", "2001:db8:0:a::/64")
	b.families(ipfamily.OnlyIPv6)
	b.podIn("web", "", "node-1")
	b.has("web", "eth0", anIPv6)
	b.podIn("odd", "[{ip: 10.0.0.99}]", "")
	b.waits("odd", reasonRefused, "10.0.0.99 is in no subnet of VPC e")
}

// A NIC may be in a subnet of IPv6 alone where it has no IPv4 address; in a VPC of both its status says that there
// is none such.
func TestBranchesInASubnetOfIPv6Alone(t *testing.T) {
	b := startEC2(t, 0, 0, Options{})
	b.ec2.State.SetIPv6("subnet-a", "2001:db8:0:a::/64")
	b.ec2.State.AddIPv6Subnet("subnet-6", "zone-a", "2001:db8:0:6::/64", nil)
	b.families(ipfamily.Dual)
	b.podIn("both", "[{subnet: subnet-6}]", "node-1")
	b.waits("both", reasonRefused, `VPC e has no subnet "subnet-6"`)
	b.deletePod("both")
	b.families(ipfamily.OnlyIPv6)
	b.podIn("web", "[{subnet: subnet-6}]", "node-1")
	b.madeAgain("web", b.has("web", "eth0", strings.NewReplacer("db8:0:a", "db8:0:6", "subnet-a", "subnet-6").Replace(anIPv6)))
	if list := b.enis(); len(list) != 1 || list[0].Primary.IsValid() {
		t.Errorf("EC2 has %+v", list)
	}
}

// A NIC that outlives pods keeps its address from node to node.
func TestBranchThatOutlivesPods(t *testing.T) {
	b := startEC2(t, 0, 0, Options{})
	b.podnic("db", v1alpha1.PodNICSpec{VPC: "e"})
	b.podIn("one", "[{nic: db}]", "node-1")
	first := b.awaitObject("db", "is active", in(v1alpha1.PhaseActive)).DeepCopy()
	b.deletePod("one")
	b.podIn("two", "[{nic: db}]", "node-2")
	b.awaitObject("db", "is at the other node", controllers.If(func(o *v1alpha1.PodNIC) bool { return o.Status.Host == "i-2" }))
	second := b.awaitObject("db", "is active", in(v1alpha1.PhaseActive))
	if a, b := first.Status.Addresses[0], second.Status.Addresses[0]; a != b || first.Status.PortID != second.Status.PortID {
		t.Errorf("had %+v of %s, has %+v of %s", a, first.Status.PortID, b, second.Status.PortID)
	}
	harness.OK(t, controllers.Same("ENIs that were asked for", b.calls("CreateENI"), 1))
}

// inPool are the ENIs that are marked as the pool's.
func (b *branches) inPool() (out []cloud.ENI) {
	b.t.Helper()
	for _, e := range b.enis() {
		if strings.HasPrefix(e.Tags[eni.TagNIC], vpcport.Device(cluster, "warm/")) {
			out = append(out, e)
		}
	}
	return out
}

// marks are what the ENIs of ports are marked with, by their IDs.
func (b *branches) marks() map[string]string {
	out := map[string]string{}
	for _, e := range b.enis() {
		out[e.ID] = e.Tags[eni.TagNIC]
	}
	return out
}

// awaitENI waits until an ENI has a mark; empty: until it is gone.
func (b *branches) awaitENI(id, mark string) {
	b.t.Helper()
	controllers.AwaitValue(b.t, "the mark of "+id, func() string { return b.marks()[id] }, mark)
}

// awaitPool waits until the pool has so many, and returns them.
func (b *branches) awaitPool(n int, what string) (list []cloud.ENI) {
	b.t.Helper()
	harness.Eventually(b.t, limit, what, func() error {
		if list = b.inPool(); len(list) != n {
			return fmt.Errorf("the pool has %d, want %d: %+v", len(list), n, list)
		}
		for _, e := range list {
			if e.Type != cloud.InterfaceBranch {
				return fmt.Errorf("%s is no branch yet", e.ID)
			}
		}
		return nil
	})
	return list
}

// starts makes a pod on a node, and waits until its NIC is active.
func (b *branches) starts(pod, nics, node string) *v1alpha1.PodNIC {
	b.t.Helper()
	b.podIn(pod, nics, node)
	return b.awaitNIC(pod, "eth0", "is active", in(v1alpha1.PhaseActive))
}

// away has EC2 answer nothing, until what is returned is called.
func (b *branches) away() (back func()) {
	b.ec2.Front.Inject(cloudfake.Fault{Err: cloudfake.Err(cloud.Transient, "")})
	return b.ec2.Front.ClearFaults
}

const inWeb = "[{securityGroups: [sg-web]}]"

// The next pod of a node does not wait for EC2, which may be away: a branch is there that is like
// its last one's. It becomes the pod's for good, and another takes its place.
func TestWarmBranch(t *testing.T) {
	b := startEC2(t, time.Second, 1, Options{})
	b.starts("web-0", inWeb, "node-1")
	warm := b.awaitPool(1, "one more is made")[0]
	back := b.away()
	o := b.starts("web-1", inWeb, "node-1")
	if o.Status.PortID != warm.ID || o.Status.Addresses[0].CIDR != fmt.Sprintf("%s/20", warm.Primary) || o.Status.Host != "i-1" || o.Status.Plug == nil {
		t.Errorf("the pod has %+v, want %s with %s", o.Status, warm.ID, warm.Primary)
	}
	back()
	b.awaitENI(o.Status.PortID, vpcport.Device(cluster, string(o.UID)))
	next := b.awaitPool(1, "another is made")[0]
	if next.ID == warm.ID {
		t.Errorf("%s is in the pool still", warm.ID)
	}
	b.deletePod("web-1")
	b.awaitGone(o.Name)
	harness.OK(t, controllers.Same("ENIs, web-0's and a warm one", len(b.enis()), 2))

	// Others do not get it: in other groups, on another node, with an address of their own.
	for pod, nics := range map[string]string{"plain": "", "picky": "[{securityGroups: [sg-web], ip: 10.0.9.9}]"} {
		if o := b.starts(pod, nics, "node-1"); o.Status.PortID == next.ID {
			t.Errorf("%s has %s", pod, next.ID)
		}
	}
	if o := b.starts("other", inWeb, "node-2"); o.Status.PortID == next.ID {
		t.Errorf("a pod of another node has %s", next.ID)
	}
	b.awaitPool(3, "each node and set of groups has one")
}

// Another operator finds what the one before made, and gives none to a NIC that another has, also
// where EC2 does not know of that.
func TestWarmBranchesOfAnOperatorBefore(t *testing.T) {
	b := startEC2(t, time.Second, 2, Options{})
	b.starts("web-0", inWeb, "node-1")
	b.awaitPool(2, "two more are made")
	b.ec2.Front.Inject(cloudfake.Fault{Op: "Tag", Err: cloudfake.Err(cloud.Transient, "")})
	first := b.starts("web-1", inWeb, "node-1")
	b.end()
	creates := b.calls("CreateENI")
	b.run(Options{WarmKeep: time.Hour})
	harness.Eventually(t, limit, "the other is found", func() error {
		if n := b.c.nics.pool.Ready()["e"]; n == 0 && b.calls("CreateENI") == creates {
			return fmt.Errorf("%d are ready", n)
		}
		return nil
	})
	second := b.starts("web-2", inWeb, "node-1")
	if second.Status.PortID == first.Status.PortID {
		t.Errorf("web-1 and web-2 have %s", first.Status.PortID)
	}
	b.ec2.Front.ClearFaults()
	third := b.starts("web-3", inWeb, "node-1")
	if id := third.Status.PortID; id == first.Status.PortID || id == second.Status.PortID {
		t.Errorf("web-3 has %s, as another", id)
	}
	b.awaitPool(2, "two are ready again")
}

// A branch that an operator which was replaced still records of another PodNIC stays with the NIC that
// had it, whether EC2 knows of that or not, and the other gets one of its own; also when that one ends.
func TestWarmBranchThatTwoRecord(t *testing.T) {
	for name, known := range map[string]bool{"known": true, "not known yet": false} {
		t.Run(name, func(t *testing.T) { twoRecord(t, known) })
	}
}

func twoRecord(t *testing.T, known bool) {
	b := startEC2(t, 0, 1, Options{})
	b.starts("web-0", inWeb, "node-1")
	b.awaitPool(1, "one more is made")
	if !known {
		b.ec2.Front.Inject(cloudfake.Fault{Op: "Tag", Err: cloudfake.Err(cloud.Transient, "")})
	}
	owner := b.starts("web-1", inWeb, "node-1")
	id := owner.Status.PortID
	b.says(owner, v1alpha1.NodePlugged)
	if known {
		b.awaitENI(id, vpcport.Device(cluster, string(owner.UID)))
	}
	replaced := harness.KubeClientFor(t, operatorConfig(t)) // with whose rights the other operator wrote
	for _, pod := range []string{"web-2", "web-3"} {
		b.podIn(pod, inWeb, "")
		o := b.awaitNIC(pod, "eth0", "is there", in(v1alpha1.PhasePending))
		controllers.MergeStatus(t, replaced, o, `{"status":{"portID":%q}}`, id)
	}
	gone := b.nicsOf("web-3")["eth0"]
	b.deletePod("web-3")
	b.awaitGone(gone.Name)
	b.ec2.Front.ClearFaults()
	b.awaitENI(id, vpcport.Device(cluster, string(owner.UID)))
	b.schedule("web-2", "node-1")
	other := b.awaitNIC("web-2", "eth0", "has another", anotherPort(id, in(v1alpha1.PhaseActive)))
	b.deletePod("web-2")
	b.awaitGone(other.Name)
	if o := b.nicsOf("web-1")["eth0"]; o.Status.PortID != id || in(v1alpha1.PhaseActive)(o) != nil {
		t.Errorf("web-1 has %+v, had %s", o.Status, id)
	}
	if _, is := b.marks()[id]; !is {
		t.Errorf("%s is gone: %+v", id, b.enis())
	}
}

// A port that is recorded of two is left to the one that needs it more, whoever asks.
func TestPrecedes(t *testing.T) {
	at := metav1.Now()
	nic := func(uid string, edit func(*v1alpha1.PodNIC)) *v1alpha1.PodNIC {
		o := &v1alpha1.PodNIC{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid), CreationTimestamp: at}}
		edit(o)
		return o
	}
	inOrder := []*v1alpha1.PodNIC{
		nic("d", func(o *v1alpha1.PodNIC) {
			o.DeletionTimestamp = &at
			o.Status.Node = &v1alpha1.PodNICNode{State: v1alpha1.NodePlugged, PortID: "p"}
		}),
		nic("c", func(o *v1alpha1.PodNIC) { o.CreationTimestamp = metav1.NewTime(at.Add(-time.Hour)) }),
		nic("a", func(o *v1alpha1.PodNIC) {
			o.Status.Node = &v1alpha1.PodNICNode{State: v1alpha1.NodePlugged, PortID: "another"}
		}),
		nic("b", func(o *v1alpha1.PodNIC) {
			o.Status.Node = &v1alpha1.PodNICNode{State: v1alpha1.NodeUnplugged, PortID: "p"}
		}),
		nic("0", func(o *v1alpha1.PodNIC) {
			o.DeletionTimestamp, o.CreationTimestamp = &at, metav1.NewTime(at.Add(-2*time.Hour))
		}),
	}
	for i, a := range inOrder {
		for k, b := range inOrder {
			if got := precedes(a, b, "p"); got != (i < k) {
				t.Errorf("%s before %s: %v", a.UID, b.UID, got)
			}
		}
	}
}

// What somebody changed is given to nobody; what nobody needs goes; and pods come first where a
// node has no room.
func TestWarmBranchesThatAreNotKept(t *testing.T) {
	b := startEC2(t, 0, 1, Options{WarmIdle: time.Second, WarmKeep: time.Second})
	b.ec2.State.AddSecurityGroup("sg-open", nil)
	o := b.starts("web-0", inWeb, "node-1")
	changed := b.awaitPool(1, "one more is made")[0]
	harness.OK(t, b.ec2.SetGroups(t.Context(), changed.ID, []string{"sg-open"}))
	b.awaitENI(changed.ID, "")
	b.awaitPool(1, "another takes its place")
	harness.OK(t, b.ec2.DeleteENI(t.Context(), b.inPool()[0].ID))
	b.awaitPool(1, "another takes the place of one that was deleted")

	// An m5.large has room for nine.
	for i := range 8 {
		b.starts(fmt.Sprint("more-", i), "", "node-1")
	}
	b.awaitPool(0, "there is no room")
	b.deletePod("more-0")
	b.awaitPool(1, "there is room again")

	for i := range 8 {
		if i > 0 {
			b.deletePod(fmt.Sprint("more-", i))
		}
	}
	b.deletePod("web-0")
	b.awaitGone(o.Name)
	b.awaitPool(0, "nobody needs them")
	harness.OK(t, controllers.Same("ENIs that are left", len(b.enis()), 0))
}

// The pool gives its addresses to pods that lack them.
func TestWarmBranchesInAFullSubnet(t *testing.T) {
	b := startEC2(t, 0, 2, Options{})
	b.ec2.State.SetFree("subnet-a", 4)
	b.starts("web-0", inWeb, "node-1")
	b.awaitPool(2, "two more are made")
	b.starts("plain-0", "", "node-1") // in another group: the last address
	b.starts("plain-1", "", "node-1")
	b.awaitPool(0, "pods have the addresses")
}

// A port that is marked as of the pool of a VPC object that is no more is collected.
func TestWarmBranchesOfNobody(t *testing.T) {
	b := startEC2(t, 0, 1, Options{})
	b.starts("web-0", inWeb, "node-1")
	warm := b.awaitPool(1, "one more is made")[0]
	left, err := b.ec2.CreateENI(t.Context(), cloud.CreateENI{
		SubnetID: "subnet-a", Groups: []string{"sg-web"}, Description: "berth/warm/gone",
		Tags: map[string]string{eni.TagCluster: cluster, eni.TagOwner: "berth-nic", eni.TagNIC: vpcport.WarmDevice(cluster, "no-such-uid", "1")},
	})
	harness.OK(t, err)
	b.awaitENI(left.ID, "")
	harness.OK(t, controllers.Same("the warm ENI", b.awaitPool(1, "the other stays")[0].ID, warm.ID))
}
