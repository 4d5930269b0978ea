package nodenetwork

import (
	"encoding/json"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/mac"
)

const (
	eth0 = "eni-0000"
	eth1 = "eni-1111"
)

func small() *v1alpha1.NodeNetwork {
	o := &v1alpha1.NodeNetwork{Spec: v1alpha1.NodeNetworkSpec{InstanceID: "i-0a1b2c3d", InstanceType: "m5.large"}}
	o.Status.ENI.Limits = &v1alpha1.ENILimits{ENIs: 3, AddressesPerENI: 10, IPv6AddressesPerENI: 11, Prefixes: true}
	o.Status.ENI.ENIs = map[string]v1alpha1.ENI{
		eth0: {MAC: "02:00:00:00:00:00", DeviceIndex: 0, PrimaryIPv4: "10.0.0.4", SubnetID: "subnet-1", SubnetCIDR: "10.0.0.0/24"},
		eth1: {MAC: "02:00:00:00:00:01", DeviceIndex: 1, PrimaryIPv4: "10.0.0.5", SubnetID: "subnet-1", SubnetCIDR: "10.0.0.0/24", SubnetIPv6CIDRs: []string{"2001:db8::/64", "2001:db8:9::/64"}},
	}
	o.Spec.IPAM.Available = map[string]v1alpha1.AvailableAddress{}
	on(o, eth1, "10.0.0.10")
	on(o, eth1, "10.0.0.11")
	return o
}

func same(x, y eni.Inventory) bool {
	return x.InstanceType == y.InstanceType && x.Limits == y.Limits && slices.EqualFunc(x.ENIs, y.ENIs, eni.ENI.Equal)
}

func on(o *v1alpha1.NodeNetwork, id, address string) {
	o.Spec.IPAM.Available[address] = v1alpha1.AvailableAddress{Resource: id}
}

// An invalid entry is reported with its field, and affects no other.
func TestBadEntriesAreLeftOut(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*v1alpha1.NodeNetwork)
		says   string // empty: silently left out
	}{
		"no address":           {func(o *v1alpha1.NodeNetwork) { on(o, eth1, "ten") }, "spec.ipam.available[ten]: expected an IPv4 or IPv6 address"},
		"IPv6 of another size": {func(o *v1alpha1.NodeNetwork) { on(o, eth1, "2001:db8::/64") }, "/80 of IPv6"},
		"IPv6 not aligned":     {func(o *v1alpha1.NodeNetwork) { on(o, eth1, "2001:db8::1/80") }, "/80 of IPv6"},
		"IPv6 as IPv4 is long": {func(o *v1alpha1.NodeNetwork) { on(o, eth1, "2001:d80::/28") }, "/80 of IPv6"},
		"IPv4 as IPv6":         {func(o *v1alpha1.NodeNetwork) { on(o, eth1, "::ffff:10.0.0.12") }, "expected an IPv4 or IPv6 address"},
		"another spelling":     {func(o *v1alpha1.NodeNetwork) { on(o, eth1, "2001:DB8::A") }, "spec.ipam.available[2001:DB8::A]: expected it in its shortest form, 2001:db8::a"},
		"with a zone":          {func(o *v1alpha1.NodeNetwork) { on(o, eth1, "2001:db8::a%eth0") }, "expected it in its shortest form, 2001:db8::a"},
		"IPv6 of eth0":         {func(o *v1alpha1.NodeNetwork) { on(o, eth0, "2001:db8::a") }, "single IPv6 addresses of eth0 are the node's own"},
		"IPv6 elsewhere":       {func(o *v1alpha1.NodeNetwork) { on(o, eth1, "2001:db8:1::a") }, "not in 2001:db8::/64 or 2001:db8:9::/64, the subnet of eni-1111"},
		"/80 elsewhere":        {func(o *v1alpha1.NodeNetwork) { on(o, eth1, "2001:db8:1::/80") }, "not in 2001:db8::/64 or"},
		"families":             {func(o *v1alpha1.NodeNetwork) { o.Spec.ENI.IPFamilies = "both" }, `spec.eni.ipFamilies: "both": expected ipv4, ipv6 or dual`},
		"prefix of no EC2":     {func(o *v1alpha1.NodeNetwork) { on(o, eth1, "10.0.0.32/27") }, "aligned /28"},
		"prefix not aligned":   {func(o *v1alpha1.NodeNetwork) { on(o, eth1, "10.0.0.33/28") }, "aligned /28"},
		"everything":           {func(o *v1alpha1.NodeNetwork) { on(o, eth1, "0.0.0.0/0") }, "aligned /28"},
		"the node's own":       {func(o *v1alpha1.NodeNetwork) { on(o, eth0, "10.0.0.4") }, "the node's own address"},
		"prefix with that":     {func(o *v1alpha1.NodeNetwork) { on(o, eth0, "10.0.0.0/28") }, "the node's own address"},
		"of another subnet":    {func(o *v1alpha1.NodeNetwork) { on(o, eth1, "10.0.1.9") }, "not in 10.0.0.0/24"},
		"ENI not there yet":    {func(o *v1alpha1.NodeNetwork) { on(o, "eni-2222", "10.0.0.99") }, ""},
		"releasing nonsense":   {func(o *v1alpha1.NodeNetwork) { o.Spec.IPAM.Releasing = []string{"x"} }, `spec.ipam.releasing: "x"`},
		"unassigning nonsense": {func(o *v1alpha1.NodeNetwork) { o.Spec.IPAM.Unassigning = []string{"x"} }, `spec.ipam.unassigning: "x"`},
		"releasing elsewhere":  {func(o *v1alpha1.NodeNetwork) { o.Spec.IPAM.Releasing = []string{"10.9.9.9"} }, ""},
		"ENI without MAC": {func(o *v1alpha1.NodeNetwork) {
			o.Status.ENI.ENIs["eni-3"] = v1alpha1.ENI{PrimaryIPv4: "10.0.0.6", DeviceIndex: 2}
		}, "status.eni.enis[eni-3].mac"},
		"ENI at a taken index": {func(o *v1alpha1.NodeNetwork) { e := o.Status.ENI.ENIs[eth1]; o.Status.ENI.ENIs["eni-3"] = e }, "status.eni.enis[eni-3].deviceIndex: 1 is that of eni-1111"},
		"ENI without address": {func(o *v1alpha1.NodeNetwork) {
			o.Status.ENI.ENIs["eni-3"] = v1alpha1.ENI{MAC: "02:00:00:00:00:03", DeviceIndex: 3}
		}, "status.eni.enis[eni-3].primaryIPv4"},
		"ENI without address in a subnet with IPv4": {func(o *v1alpha1.NodeNetwork) {
			o.Status.ENI.ENIs["eni-3"] = v1alpha1.ENI{MAC: "02:00:00:00:00:03", DeviceIndex: 3, SubnetCIDR: "10.0.0.0/24", SubnetIPv6CIDRs: []string{"2001:db8::/64"}}
		}, "status.eni.enis[eni-3].primaryIPv4"},
		"ENI below index 0": {func(o *v1alpha1.NodeNetwork) {
			o.Status.ENI.ENIs["eni-3"] = v1alpha1.ENI{MAC: "02:00:00:00:00:03", DeviceIndex: -3, PrimaryIPv4: "10.0.0.6"}
		}, "status.eni.enis[eni-3].deviceIndex"},
		"ENI of a nonsense IPv6 block": {func(o *v1alpha1.NodeNetwork) {
			o.Status.ENI.ENIs["eni-3"] = v1alpha1.ENI{MAC: "02:00:00:00:00:03", DeviceIndex: 3, PrimaryIPv4: "10.0.0.6", SubnetIPv6CIDRs: []string{"10.0.1.0/24"}}
		}, "status.eni.enis[eni-3].subnetIPv6CIDRs"},
		"ENI of a nonsense subnet": {func(o *v1alpha1.NodeNetwork) {
			o.Status.ENI.ENIs["eni-3"] = v1alpha1.ENI{MAC: "02:00:00:00:00:03", DeviceIndex: 3, PrimaryIPv4: "10.0.0.6", SubnetCIDR: "10.0.0.1/24"}
		}, "status.eni.enis[eni-3].subnetCIDR"},
	} {
		t.Run(name, func(t *testing.T) {
			o := small()
			tt.change(o)
			r := Read(o)
			if got := strings.Join(r.Bad, "; "); tt.says == "" && got != "" || !strings.Contains(got, tt.says) {
				t.Errorf("reported %q, want %q", got, tt.says)
			}
			if want := Read(small()); !same(r.Inventory, want.Inventory) || len(r.Available) != len(want.Available) {
				t.Errorf("the rest is %+v", r.Inventory)
			}
		})
	}
}

// An address in unassigning is withheld whether or not it is in releasing, so that no daemon gets it
// again. An ENI in unassigning is no address, and not invalid.
func TestReadingOfMarks(t *testing.T) {
	o := small()
	o.Spec.IPAM.Unassigning = []string{"10.0.0.11", "10.9.9.9", eth1, "eni-9"}
	r := Read(o)
	if len(r.Releasing) != 1 || Format(r.Releasing[0]) != "10.0.0.11" || len(r.Unassigning) != 1 || len(r.Bad) != 0 {
		t.Errorf("releasing %v, unassigning %v, bad %v", r.Releasing, r.Unassigning, r.Bad)
	}
}

func TestReading(t *testing.T) {
	o := small()
	on(o, eth1, "10.0.0.32/28")
	on(o, eth1, "10.0.0.33")           // inside the prefix
	on(o, eth0, "10.0.0.20")           // though eth0 is below the first index
	on(o, eth0, "2001:db8:0:0:7::/80") // of eth0, whose subnet's blocks are not known
	for _, address := range []string{"2001:db8::b", "2001:db8::a", "2001:db8:9:0:1::/80", "2001:db8:9:0:1::5"} {
		on(o, eth1, address)
	}
	o.Spec.ENI.IPFamilies = "dual"
	o.Spec.IPAM.Releasing = []string{"10.0.0.32/28", "10.0.0.99", "2001:db8::a"}
	o.Status.IPAM.Released = []string{"10.0.0.11"}
	r := Read(o)
	hw := func(s string) (a mac.Addr) {
		if err := a.UnmarshalText([]byte(s)); err != nil {
			t.Fatal(err)
		}
		return a
	}
	subnet := r.Inventory.ENIs[0].Subnet
	want := eni.Inventory{InstanceType: "m5.large", Limits: r.Inventory.Limits, ENIs: []eni.ENI{
		{ID: eth0, MAC: hw("02:00:00:00:00:00"), Primary: true, Serves: true, SubnetID: "subnet-1", Subnet: subnet, PrimaryIPv4: netip.MustParseAddr("10.0.0.4")},
		{ID: eth1, MAC: hw("02:00:00:00:00:01"), DeviceIndex: 1, Serves: true, SubnetID: "subnet-1", Subnet: subnet, PrimaryIPv4: netip.MustParseAddr("10.0.0.5")},
	}}
	want.ENIs[0].IPv6Prefixes = []netip.Prefix{netip.MustParsePrefix("2001:db8:0:0:7::/80")}
	want.ENIs[1].SubnetIPv6 = []netip.Prefix{netip.MustParsePrefix("2001:db8::/64"), netip.MustParsePrefix("2001:db8:9::/64")}
	want.ENIs[1].IPv6 = []netip.Addr{netip.MustParseAddr("2001:db8::a"), netip.MustParseAddr("2001:db8::b")}
	want.ENIs[1].IPv6Prefixes = []netip.Prefix{netip.MustParsePrefix("2001:db8:9:0:1::/80")}
	want.ENIs[0].Addresses = append(want.ENIs[0].Addresses, netip.MustParseAddr("10.0.0.20"))
	want.ENIs[1].Addresses = append(want.ENIs[1].Addresses, netip.MustParseAddr("10.0.0.10"), netip.MustParseAddr("10.0.0.11"))
	want.ENIs[1].Prefixes = append(want.ENIs[1].Prefixes, r.Releasing[0])
	if !same(r.Inventory, want) || r.Inventory.Families != ipfamily.Dual {
		t.Errorf("read %+v", r.Inventory)
	}
	if len(r.Releasing) != 2 || Format(r.Releasing[0]) != "10.0.0.32/28" || Format(r.Releasing[1]) != "2001:db8::a" || len(r.Released) != 1 || len(r.Bad) != 2 {
		t.Errorf("releasing %v, released %v, bad %v", r.Releasing, r.Released, r.Bad)
	}
	if l := r.Inventory.Limits; l.MaxENIs != 3 || l.IPv4PerENI != 10 || l.IPv6PerENI != 11 || !l.Prefixes {
		t.Errorf("limits %+v", l)
	}
}

// Invalid entries are not available.
func TestAvailable(t *testing.T) {
	o := small()
	on(o, eth0, "10.0.0.32/28")
	on(o, eth1, "ten")
	got := maps.Collect(Available(o))
	want := map[netip.Prefix]string{
		netip.MustParsePrefix("10.0.0.10/32"): eth1, netip.MustParsePrefix("10.0.0.11/32"): eth1, netip.MustParsePrefix("10.0.0.32/28"): eth0,
	}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if !HasAvailable(o, eth0) || HasAvailable(o, "eni-9") {
		t.Error("eth0 has an available address, and eni-9 has none")
	}
	older := small()
	o.ResourceVersion, older.ResourceVersion = "10", "9"
	if !Newer(o, older) || Newer(older, o) || Newer(o, o) {
		t.Error("10 is newer than 9, and nothing else is newer")
	}
}

// Whatever the object holds, reading it neither fails nor gives an inventory
// that a restart could not load.
func FuzzRead(f *testing.F) {
	f.Add("10.0.0.9", "10.0.0.0/28", "02:00:00:00:00:01", "10.0.0.5", "10.0.0.0/24", "", int32(2))
	f.Add("2001:db8::9", "2001:db8::/80", "02:00:00:00:00:01", "10.0.0.5", "10.0.0.0/24", "2001:db8::/64", int32(2))
	f.Add("2001:db8:0::9", "2001:db8::9", "02:00:00:00:00:01", "10.0.0.5", "", "", int32(2))
	f.Add("::ffff:10.0.0.9", "10.0.0.9", "02:00:00:00:00:01", "10.0.0.5", "", "::ffff:10.0.0.0/120", int32(2))
	f.Add("::1", "0.0.0.0/0", "", "", "", "::/0", int32(-1))
	f.Fuzz(func(t *testing.T, one, two, mac, primary, cidr, ipv6 string, index int32) {
		o := small()
		o.Status.ENI.ENIs["eni-3"] = v1alpha1.ENI{MAC: mac, PrimaryIPv4: primary, SubnetCIDR: cidr, SubnetIPv6CIDRs: slices.DeleteFunc([]string{ipv6}, func(s string) bool { return s == "" }), DeviceIndex: index}
		on(o, "eni-3", one)
		on(o, "eni-3", two)
		o.Spec.IPAM.Releasing = []string{one, two}
		r := Read(o)
		data, err := json.Marshal(r.Inventory)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := eni.DecodeInventory(data); err != nil {
			t.Error(err)
		}
		for p := range r.Available {
			if again, err := Parse(Format(p)); err != nil || again != p {
				t.Errorf("%v reads back as %v, %v", p, again, err)
			}
		}
	})
}

// An ENI in an IPv6-only subnet has no IPv4 address, its own or a pod's.
func TestENIOfIPv6Alone(t *testing.T) {
	o := small()
	o.Status.ENI.ENIs[eth1] = v1alpha1.ENI{MAC: "02:00:00:00:00:01", DeviceIndex: 1, SubnetID: "subnet-6", SubnetIPv6CIDRs: []string{"2001:db8::/64"}}
	on(o, eth1, "2001:db8::a")
	r := Read(o)
	e := r.Inventory.ENIs[1]
	if e.ID != eth1 || e.PrimaryIPv4.IsValid() || e.Subnet.IsValid() || len(e.IPv6) != 1 || len(e.Addresses) > 0 || len(r.Available) != 1 {
		t.Errorf("the ENI is %+v, available are %v", e, r.Available)
	}
	if want := eth1 + " has no IPv4 addresses: its subnet is IPv6-only"; len(r.Bad) != 2 || !strings.Contains(r.Bad[0], want) {
		t.Errorf("reported %q, want twice %q", r.Bad, want)
	}
}

// A request has exactly the fields that are given, empty ones too, and the resource version that it was
// decided on.
func TestApplyBody(t *testing.T) {
	o := &v1alpha1.NodeNetwork{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u", ResourceVersion: "7", Labels: map[string]string{"a": "b"}}}
	got, err := ApplyBody(o, nil, map[string][]string{"released": {}})
	const want = `{"kind":"NodeNetwork","apiVersion":"berth.dev/v1alpha1","metadata":{"name":"n","uid":"u","resourceVersion":"7"},"status":{"released":[]}}`
	if err != nil || string(got) != want {
		t.Errorf("got  %s, %v\nwant %s", got, err, want)
	}
}

func TestInstanceOf(t *testing.T) {
	for providerID, want := range map[string]string{"aws:///zone-a/i-0aa": "i-0aa", "k3s://x": "", "": ""} {
		if got := InstanceOf(providerID); got != want {
			t.Errorf("%s: %q, want %q", providerID, got, want)
		}
	}
}
