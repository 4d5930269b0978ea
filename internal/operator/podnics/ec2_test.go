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

// branches is a world with an additional VPC of EC2, named e.
type branches struct {
	*world
	ec2 *cloudfake.Cloud
}

// cooling is a provider whose ports cool down for another time.
type cooling struct {
	*branch.Provider
	time time.Duration
}

func (c cooling) Traits() vpcport.Traits {
	t := c.Provider.Traits()
	t.Cooling = c.time
	return t
}

// startEC2 creates the Nodes node-1 and node-2 for the instances i-1 and i-2, each with a trunk. Ports cool down for
// cools, and the warm pool has warm branches of each kind.
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

// branchesOf sets a Node's capacity of branch interfaces.
func (b *branches) branchesOf(node string, n int) {
	b.t.Helper()
	o := controllers.Named[corev1.Node](node)
	controllers.MergeStatus(b.t, b.client(), o, `{"status":{"capacity":{%q:"%d"}}}`, v1alpha1.ResourceBranches, n)
}

// podIn creates a pod with NICs in VPC e, on a node if one is given.
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

// A pod's NIC is a branch of its node's trunk, created only once the pod has a node. After the pod is gone, it is kept
// until it has cooled down.
func TestBranchOfAPod(t *testing.T) {
	const cools = 3 * time.Second
	b := startEC2(t, cools, 0, Options{})
	b.podIn("web", "[{securityGroups: [sg-web]}]", "")
	b.awaitNIC("web", "eth0", "waits for a node", in(v1alpha1.PhasePending))
	b.schedule("web", "node-1")
	o := b.awaitNIC("web", "eth0", "is active", in(v1alpha1.PhaseActive))
	list := b.enis()
	if len(list) != 1 || list[0].ID != o.Status.PortID || list[0].Type != cloud.InterfaceBranch || len(list[0].Groups) != 1 || list[0].Groups[0] != "sg-web" {
		t.Fatalf("ENIs = %+v, want one branch with group sg-web", list)
	}
	plug := o.Status.Plug
	if o.Status.Host != "i-1" || plug.Type != v1alpha1.PlugVLAN || plug.VLAN != int32(b.ec2.State.Associations()[0].VLAN) || plug.TrunkMAC == "" || plug.TrunkMAC == o.Status.MAC {
		t.Errorf("status = %+v, plug = %+v, want a VLAN on the trunk of i-1", o.Status, plug)
	}
	harness.OK(t, controllers.Same("CreateENI calls", b.calls("CreateENI"), 1))
	b.says(o, v1alpha1.NodePlugged)
	b.deletePod("web")
	b.awaitObject(o.Name, "waits for its node", in(v1alpha1.PhaseReleasing))
	said := time.Now()
	b.says(o, v1alpha1.NodeUnplugged)
	b.awaitGone(o.Name)
	if d := time.Since(said); d < cools/2 { // the times in the API have a resolution of one second
		t.Errorf("PodNIC was deleted %v after it was unplugged, want %v", d, cools)
	}
	harness.OK(t, controllers.Same("remaining ENIs", len(b.enis()), 0))
}

func (b *branches) calls(op string) (n int) {
	for _, c := range b.ec2.Front.Calls() {
		if c.Op == op {
			n++
		}
	}
	return n
}

// The status says why a NIC cannot get to its node: no instance, no trunk, or no room. The NIC follows once there is room.
func TestNodesWithoutRoomForBranches(t *testing.T) {
	b := startEC2(t, 0, 0, Options{})
	b.podIn("odd", "", "node-a") // a Node that is not an EC2 instance
	b.waits("odd", reasonRefused, "spec.providerID")

	var last string
	for i := range 10 { // an m5.large has nine branches
		last = fmt.Sprint("web-", i)
		b.podIn(last, "", "node-1")
		if i < 9 {
			b.awaitNIC(last, "eth0", "is active", in(v1alpha1.PhaseActive))
		}
	}
	b.awaitNIC(last, "eth0", "reports that the node is full", condition(v1alpha1.ConditionBound, metav1.ConditionFalse, reasonBinding, "as many branch interfaces as its type may have"))
	b.deletePod("web-0")
	b.awaitNIC(last, "eth0", "gets the place of a deleted NIC", in(v1alpha1.PhaseActive))
}

// If the first interface of pods may be a branch, it is one if a NIC has its name, in VPCs of EC2 only. A running pod keeps
// the first interface that it started with.
func TestBranchAsFirstInterface(t *testing.T) {
	b := startEC2(t, 0, 0, Options{First: nicrequest.First{Name: "eth0", MayBePort: true}})
	leads := func(pod, nic string, want bool) *v1alpha1.PodNIC {
		t.Helper()
		return b.awaitNIC(pod, nic, "is active", func(o *v1alpha1.PodNIC) error {
			if o.Status.DefaultRoute != want {
				return fmt.Errorf("status.defaultRoute = %v", o.Status.DefaultRoute)
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
	harness.Eventually(t, controllers.Limit, "annotation admitted", func() error {
		return b.client().Patch(t.Context(), podOf("bare"), client.RawPatch(types.MergePatchType, asks))
	})
	b.awaitEvent("bare", "NICsRefused", noPort)
	if b.hasEvent("web", "NICsRefused") {
		t.Error("pod web has an Event NICsRefused for NICs that it was created with")
	}
	b.annotate("web", "[{}]")
	b.awaitEvent("web", "NICsRefused", "lacks eth0, the pod's first interface, which cannot be removed")
	for pod, want := range map[string]int{"web": 2, "plain": 1, "neutron": 0, "route": 0, "bare": 0} {
		if got := b.nicsOf(pod); len(got) != want {
			t.Errorf("pod %s has NICs %v, want %d", pod, got, want)
		}
	}
	if o := b.nicsOf("web")["eth0"]; o.DeletionTimestamp != nil {
		t.Error("the first interface of a running pod is being deleted")
	}
	b.finish("web", corev1.PodRunning)
	b.annotate("web", "[{}, {name: eth0, securityGroups: [sg-web]}, {name: eth2}]")
	leads("web", "eth2", false)
	before := leads("web", "eth0", true)
	deletePodNIC(t, b.world, before.Name)
	b.awaitNIC("web", "eth0", "is recreated", another(before, in(v1alpha1.PhaseActive)))
	leads("web", "eth0", true)
}

// open reopens VPC e, with ports of these IP families that cool down for cools.
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

// families sets the IP families of new ports in VPC e.
func (b *branches) families(f ipfamily.Set) {
	b.t.Helper()
	b.open(f, 0)
}

// Patterns for addresses in subnet-a.
const (
	anIPv4 = `10\.0\.\d+\.\d+/20 of subnet-a, gateway 10\.0\.0\.1`
	anIPv6 = `2001:db8:0:a:\S*/64 of subnet-a, gateway fe80:ec2::1`
)

// has waits until a NIC is active with addresses that match these patterns, and returns it.
func (b *branches) has(pod, nic string, patterns ...string) *v1alpha1.PodNIC {
	b.t.Helper()
	return b.awaitNIC(pod, nic, "has its addresses", func(o *v1alpha1.PodNIC) error {
		var got []string
		for _, a := range o.Status.Addresses {
			got = append(got, fmt.Sprintf("%s of %s, gateway %s", a.CIDR, a.Subnet, a.Gateway))
		}
		if !regexp.MustCompile("^" + strings.Join(patterns, "; ") + "$").MatchString(strings.Join(got, "; ")) {
			return fmt.Errorf("addresses = %q, want %q", got, patterns)
		}
		return in(v1alpha1.PhaseActive)(o)
	})
}

// madeAgain deletes the port of a pod's NIC, and waits for another one with the same addresses.
func (b *branches) madeAgain(pod string, before *v1alpha1.PodNIC) {
	b.t.Helper()
	harness.OK(b.t, b.ec2.DeleteENI(b.t.Context(), before.Status.PortID))
	after := b.awaitNIC(pod, before.Status.Interface, "has another port", anotherPort(before.Status.PortID, in(v1alpha1.PhaseActive)))
	if !slices.Equal(after.Status.Addresses, before.Status.Addresses) {
		b.t.Errorf("addresses = %+v, want the previous ones, %+v", after.Status.Addresses, before.Status.Addresses)
	}
}

// waits blocks until a NIC's port is not ready for a reason.
func (b *branches) waits(pod, reason string, words ...string) {
	b.t.Helper()
	b.awaitNIC(pod, "eth0", "waits", condition(v1alpha1.ConditionPortReady, metav1.ConditionFalse, reason, words...))
}

// A subnet that got an IPv6 CIDR after the network was read is usable: the NIC gets both addresses once the network is read
// again.
func TestSubnetGetsIPv6(t *testing.T) {
	b := startEC2(t, 0, 0, Options{})
	b.families(ipfamily.Dual)
	b.ec2.State.SetIPv6("subnet-a", "2001:db8:0:a::/64")
	b.podIn("web", "", "node-1")
	b.waits("web", vpcport.PolicyOf(vpcport.Bug).Reason, "is not of subnet subnet-a")
	b.families(ipfamily.Dual)
	b.has("web", "eth0", anIPv4, anIPv6)
}

// If a VPC gets IPv6, new NICs also get an IPv6 address if their subnet has IPv6. Existing NICs stay as they are. A recreated
// port has both addresses again.
func TestVPCGetsIPv6(t *testing.T) {
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
		t.Errorf("existing NIC changed from %+v to %+v", old.Status, now.Status)
	}
	b.podIn("odd", "[{addresses: [{ip: 10.0.0.99}, {ip: 10.0.0.98}]}]", "")
	b.awaitEvent("odd", "NICsRefused", "is of the same family as that before")
	b.madeAgain("new", first)
}

// Addresses that somebody adds to a branch do not become its NIC's, and are not requested when the port is recreated. An
// address that was removed is requested again.
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
		port      string // recorded port; "" means this one
		had       []v1alpha1.PortAddress
		has, want []vpcport.FixedIP
	}{
		"new port":                                      {"", nil, at(four, six), at(four, six)},
		"two addresses of a family":                     {"", nil, at(four, six, six.Next()), at(four, six)},
		"foreign address before the own one":            {"", as("10.0.0.9/20", "2001:db8::9/64"), at(four, six.Prev(), six), at(four, six)},
		"own address replaced":                          {"", as("10.0.0.9/20", "2001:db8::9/64"), at(four, six.Next()), at(four, six.Next())},
		"family removed":                                {"", as("10.0.0.9/20", "2001:db8::9/64"), at(four), at(four)},
		"family added":                                  {"", as("10.0.0.9/20"), at(four, six), at(four)},
		"family added with a new port":                  {"eni-0", as("10.0.0.9/20"), at(four, six), at(four, six)},
		"foreign IPv6 address on an IPv6-only port":     {"", as("2001:db8::9/64"), at(six.Next(), six), at(six)},
		"own address of unknown CIDR":                   {"", as("10.0.0.9/20", "2001:db8::9/64"), at(four, netip.MustParseAddr("2001:db8:1::9")), at(four)},
		"new port with address of unknown CIDR":         {"", nil, at(four, netip.MustParseAddr("2001:db8:1::9")), at(four, netip.MustParseAddr("2001:db8:1::9"))},
		"new port with only an address of unknown CIDR": {"", nil, at(netip.MustParseAddr("2001:db8:1::9")), at(netip.MustParseAddr("2001:db8:1::9"))},
		"invalid recorded address":                      {"", as("nonsense"), at(four), at(four)},
		"no addresses":                                  {"", as("10.0.0.9/20"), nil, nil},
	} {
		p := &vpcport.Port{ID: "eni-1", Addresses: tt.has}
		st := v1alpha1.PodNICStatus{PortID: cmp.Or(tt.port, p.ID), Addresses: tt.had}
		s := &observation{o: &v1alpha1.PodNIC{Status: st}, opened: Opened{Provider: branch.Open(branch.Settings{}), Network: network}}
		if got := s.own(p); !slices.Equal(got.Addresses, tt.want) || !slices.Equal(p.Addresses, tt.has) {
			t.Errorf("%s: own() = %v, want %v", name, got.Addresses, tt.want)
		}
	}
}

// If a port lost all of its addresses, the NIC reports that and keeps its recorded addresses, which a replacement port is to
// have again.
func TestBranchWithoutAnAddress(t *testing.T) {
	b := startEC2(t, 0, 0, Options{})
	b.ec2.State.SetIPv6("subnet-a", "2001:db8:0:a::/64")
	b.families(ipfamily.OnlyIPv6)
	before := b.starts("web", "", "node-1")
	has := netip.MustParsePrefix(before.Status.Addresses[0].CIDR).Addr()
	harness.OK(t, b.ec2.UnassignAddresses(t.Context(), before.Status.PortID, []netip.Prefix{cloud.HostPrefix(has)}))
	b.families(ipfamily.OnlyIPv6) // makes NICs be observed again
	b.awaitNIC("web", "eth0", "reports that its port has no address", func(o *v1alpha1.PodNIC) error {
		if !slices.Equal(o.Status.Addresses, before.Status.Addresses) {
			return fmt.Errorf("addresses = %+v, want the recorded ones", o.Status.Addresses)
		}
		return condition(v1alpha1.ConditionPortReady, metav1.ConditionFalse, vpcport.PolicyOf(vpcport.Bug).Reason, "has no address of the families of VPC e (spec.ec2.ipFamilies)")(o)
	})
	b.madeAgain("web", before)
}

// In an IPv6-only VPC a NIC gets an IPv6 address, and a subnet without IPv6 is reported.
func TestIPv6OnlyBranches(t *testing.T) {
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

// A NIC may be in an IPv6-only subnet if it needs no IPv4 address. In a dual-stack VPC, its status says that there is no such
// subnet.
func TestBranchesInIPv6OnlySubnet(t *testing.T) {
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
		t.Errorf("ENIs = %+v, want one without an IPv4 address", list)
	}
}

// A NIC that outlives pods keeps its address when it moves to another node.
func TestBranchOutlivesPods(t *testing.T) {
	b := startEC2(t, 0, 0, Options{})
	b.podnic("db", v1alpha1.PodNICSpec{VPC: "e"})
	b.podIn("one", "[{nic: db}]", "node-1")
	first := b.awaitObject("db", "is active", in(v1alpha1.PhaseActive)).DeepCopy()
	b.deletePod("one")
	b.podIn("two", "[{nic: db}]", "node-2")
	b.awaitObject("db", "is bound to the other node", controllers.If(func(o *v1alpha1.PodNIC) bool { return o.Status.Host == "i-2" }))
	second := b.awaitObject("db", "is active", in(v1alpha1.PhaseActive))
	if a, b := first.Status.Addresses[0], second.Status.Addresses[0]; a != b || first.Status.PortID != second.Status.PortID {
		t.Errorf("address %+v of port %s changed to %+v of port %s", a, first.Status.PortID, b, second.Status.PortID)
	}
	harness.OK(t, controllers.Same("CreateENI calls", b.calls("CreateENI"), 1))
}

// inPool returns the ENIs that are marked as warm.
func (b *branches) inPool() (out []cloud.ENI) {
	b.t.Helper()
	for _, e := range b.enis() {
		if strings.HasPrefix(e.Tags[eni.TagNIC], vpcport.Device(cluster, "warm/")) {
			out = append(out, e)
		}
	}
	return out
}

// marks returns the marks of all ports' ENIs by ID.
func (b *branches) marks() map[string]string {
	out := map[string]string{}
	for _, e := range b.enis() {
		out[e.ID] = e.Tags[eni.TagNIC]
	}
	return out
}

// awaitENI waits until an ENI has this mark, or is gone if the mark is "".
func (b *branches) awaitENI(id, mark string) {
	b.t.Helper()
	controllers.AwaitValue(b.t, "mark of "+id, func() string { return b.marks()[id] }, mark)
}

// awaitPool waits until the pool has n ENIs, and returns them.
func (b *branches) awaitPool(n int, what string) (list []cloud.ENI) {
	b.t.Helper()
	harness.Eventually(b.t, limit, what, func() error {
		if list = b.inPool(); len(list) != n {
			return fmt.Errorf("pool has %d ENIs, want %d: %+v", len(list), n, list)
		}
		for _, e := range list {
			if e.Type != cloud.InterfaceBranch {
				return fmt.Errorf("ENI %s is not associated as a branch yet", e.ID)
			}
		}
		return nil
	})
	return list
}

// starts creates a pod on a node, and waits until its NIC is active.
func (b *branches) starts(pod, nics, node string) *v1alpha1.PodNIC {
	b.t.Helper()
	b.podIn(pod, nics, node)
	return b.awaitNIC(pod, "eth0", "is active", in(v1alpha1.PhaseActive))
}

// away makes EC2 unavailable until the returned function is called.
func (b *branches) away() (back func()) {
	b.ec2.Front.Inject(cloudfake.Fault{Err: cloudfake.Err(cloud.Transient, "")})
	return b.ec2.Front.ClearFaults
}

const inWeb = "[{securityGroups: [sg-web]}]"

// The next pod of a node does not wait for EC2, which may be unavailable: it gets a warm branch like the last pod's. The
// branch is marked as the pod's, and another one is created for the pool.
func TestWarmBranch(t *testing.T) {
	b := startEC2(t, time.Second, 1, Options{})
	b.starts("web-0", inWeb, "node-1")
	warm := b.awaitPool(1, "a warm branch is created")[0]
	back := b.away()
	o := b.starts("web-1", inWeb, "node-1")
	if o.Status.PortID != warm.ID || o.Status.Addresses[0].CIDR != fmt.Sprintf("%s/20", warm.Primary) || o.Status.Host != "i-1" || o.Status.Plug == nil {
		t.Errorf("status = %+v, want warm branch %s with address %s", o.Status, warm.ID, warm.Primary)
	}
	back()
	b.awaitENI(o.Status.PortID, vpcport.Device(cluster, string(o.UID)))
	next := b.awaitPool(1, "another warm branch is created")[0]
	if next.ID == warm.ID {
		t.Errorf("ENI %s is still in the pool", warm.ID)
	}
	b.deletePod("web-1")
	b.awaitGone(o.Name)
	harness.OK(t, controllers.Same("ENIs: that of web-0 and a warm one", len(b.enis()), 2))

	// Pods with other groups, on another node or with a fixed address do not get it.
	for pod, nics := range map[string]string{"plain": "", "picky": "[{securityGroups: [sg-web], ip: 10.0.9.9}]"} {
		if o := b.starts(pod, nics, "node-1"); o.Status.PortID == next.ID {
			t.Errorf("pod %s got warm branch %s, which does not fit", pod, next.ID)
		}
	}
	if o := b.starts("other", inWeb, "node-2"); o.Status.PortID == next.ID {
		t.Errorf("pod on another node got warm branch %s", next.ID)
	}
	b.awaitPool(3, "one warm branch per node and set of groups")
}

// A new operator finds the warm branches of its predecessor, and gives no NIC a branch that another one has, even if EC2 does
// not know that.
func TestWarmBranchesOfPreviousOperator(t *testing.T) {
	b := startEC2(t, time.Second, 2, Options{})
	b.starts("web-0", inWeb, "node-1")
	b.awaitPool(2, "two warm branches are created")
	b.ec2.Front.Inject(cloudfake.Fault{Op: "Tag", Err: cloudfake.Err(cloud.Transient, "")})
	first := b.starts("web-1", inWeb, "node-1")
	b.end()
	creates := b.calls("CreateENI")
	b.run(Options{WarmKeep: time.Hour})
	harness.Eventually(t, limit, "remaining warm branch found", func() error {
		if n := b.c.nics.pool.Ready()["e"]; n == 0 && b.calls("CreateENI") == creates {
			return fmt.Errorf("%d warm branches are ready", n)
		}
		return nil
	})
	second := b.starts("web-2", inWeb, "node-1")
	if second.Status.PortID == first.Status.PortID {
		t.Errorf("web-1 and web-2 have the same branch %s", first.Status.PortID)
	}
	b.ec2.Front.ClearFaults()
	third := b.starts("web-3", inWeb, "node-1")
	if id := third.Status.PortID; id == first.Status.PortID || id == second.Status.PortID {
		t.Errorf("web-3 has branch %s, which another pod has", id)
	}
	b.awaitPool(2, "two warm branches are ready again")
}

// If a replaced operator still records a branch for another PodNIC, the branch stays with the NIC that had it, whether or not
// EC2 knows that. The other NIC gets its own branch. The deletion of the other NIC does not delete the branch either.
func TestWarmBranchRecordedTwice(t *testing.T) {
	for name, known := range map[string]bool{"known": true, "mark not written yet": false} {
		t.Run(name, func(t *testing.T) { twoRecord(t, known) })
	}
}

func twoRecord(t *testing.T, known bool) {
	b := startEC2(t, 0, 1, Options{})
	b.starts("web-0", inWeb, "node-1")
	b.awaitPool(1, "a warm branch is created")
	if !known {
		b.ec2.Front.Inject(cloudfake.Fault{Op: "Tag", Err: cloudfake.Err(cloud.Transient, "")})
	}
	owner := b.starts("web-1", inWeb, "node-1")
	id := owner.Status.PortID
	b.says(owner, v1alpha1.NodePlugged)
	if known {
		b.awaitENI(id, vpcport.Device(cluster, string(owner.UID)))
	}
	replaced := harness.KubeClientFor(t, operatorConfig(t)) // writes with the rights of the other operator
	for _, pod := range []string{"web-2", "web-3"} {
		b.podIn(pod, inWeb, "")
		o := b.awaitNIC(pod, "eth0", "exists", in(v1alpha1.PhasePending))
		controllers.MergeStatus(t, replaced, o, `{"status":{"portID":%q}}`, id)
	}
	gone := b.nicsOf("web-3")["eth0"]
	b.deletePod("web-3")
	b.awaitGone(gone.Name)
	b.ec2.Front.ClearFaults()
	b.awaitENI(id, vpcport.Device(cluster, string(owner.UID)))
	b.schedule("web-2", "node-1")
	other := b.awaitNIC("web-2", "eth0", "has another branch", anotherPort(id, in(v1alpha1.PhaseActive)))
	b.deletePod("web-2")
	b.awaitGone(other.Name)
	if o := b.nicsOf("web-1")["eth0"]; o.Status.PortID != id || in(v1alpha1.PhaseActive)(o) != nil {
		t.Errorf("web-1 = %+v, want branch %s", o.Status, id)
	}
	if _, is := b.marks()[id]; !is {
		t.Errorf("branch %s is gone; ENIs are %+v", id, b.enis())
	}
}

// If a port is recorded in two PodNICs, the one that needs it more keeps it, whoever is reconciled first.
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
				t.Errorf("precedes(%s, %s) = %v", a.UID, b.UID, got)
			}
		}
	}
}

// A warm branch that somebody changed is given to no pod, branches that nobody needs are deleted, and pods have priority if a
// node has no room.
func TestChangedWarmBranchesAreDeleted(t *testing.T) {
	b := startEC2(t, 0, 1, Options{WarmIdle: time.Second, WarmKeep: time.Second})
	b.ec2.State.AddSecurityGroup("sg-open", nil)
	o := b.starts("web-0", inWeb, "node-1")
	changed := b.awaitPool(1, "a warm branch is created")[0]
	harness.OK(t, b.ec2.SetGroups(t.Context(), changed.ID, []string{"sg-open"}))
	b.awaitENI(changed.ID, "")
	b.awaitPool(1, "the changed branch is replaced")
	harness.OK(t, b.ec2.DeleteENI(t.Context(), b.inPool()[0].ID))
	b.awaitPool(1, "a deleted branch is replaced")

	// An m5.large has room for nine.
	for i := range 8 {
		b.starts(fmt.Sprint("more-", i), "", "node-1")
	}
	b.awaitPool(0, "no warm branch on a full node")
	b.deletePod("more-0")
	b.awaitPool(1, "a warm branch once there is room")

	for i := range 8 {
		if i > 0 {
			b.deletePod(fmt.Sprint("more-", i))
		}
	}
	b.deletePod("web-0")
	b.awaitGone(o.Name)
	b.awaitPool(0, "no warm branches without demand")
	harness.OK(t, controllers.Same("remaining ENIs", len(b.enis()), 0))
}

// The pool gives up its addresses for pods that need them.
func TestWarmBranchesInAFullSubnet(t *testing.T) {
	b := startEC2(t, 0, 2, Options{})
	b.ec2.State.SetFree("subnet-a", 4)
	b.starts("web-0", inWeb, "node-1")
	b.awaitPool(2, "two warm branches are created")
	b.starts("plain-0", "", "node-1") // with another group; takes the last address
	b.starts("plain-1", "", "node-1")
	b.awaitPool(0, "warm branches deleted for pods")
}

// A warm port of a deleted VPC object is collected.
func TestWarmBranchesOfDeletedVPC(t *testing.T) {
	b := startEC2(t, 0, 1, Options{})
	b.starts("web-0", inWeb, "node-1")
	warm := b.awaitPool(1, "a warm branch is created")[0]
	left, err := b.ec2.CreateENI(t.Context(), cloud.CreateENI{
		SubnetID: "subnet-a", Groups: []string{"sg-web"}, Description: "berth/warm/gone",
		Tags: map[string]string{eni.TagCluster: cluster, eni.TagOwner: "berth-nic", eni.TagNIC: vpcport.WarmDevice(cluster, "no-such-uid", "1")},
	})
	harness.OK(t, err)
	b.awaitENI(left.ID, "")
	harness.OK(t, controllers.Same("warm ENI of the existing VPC", b.awaitPool(1, "only the existing VPC's warm ENI is left")[0].ID, warm.ID))
}
