package nodenetwork

import (
	"strings"
	"testing"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/eni"
)

func small() *v1alpha1.NodeNetwork {
	o := &v1alpha1.NodeNetwork{Spec: v1alpha1.NodeNetworkSpec{InstanceID: instance, InstanceType: itype}}
	give(10, 11)(o)
	return o
}

func on(o *v1alpha1.NodeNetwork, id, thing string) {
	o.Spec.IPAM.Available[thing] = v1alpha1.AvailableAddress{Resource: id}
}

// What makes no sense is told of by its field, and spoils nothing else.
func TestBadEntriesAreLeftOut(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*v1alpha1.NodeNetwork)
		says   string // empty: silently left out
	}{
		"no address":          {func(o *v1alpha1.NodeNetwork) { on(o, eth1, "ten") }, "spec.ipam.available[ten]: expected an IPv4 address"},
		"IPv6":                {func(o *v1alpha1.NodeNetwork) { on(o, eth1, "fd00::1") }, "spec.ipam.available[fd00::1]"},
		"prefix of no EC2":    {func(o *v1alpha1.NodeNetwork) { on(o, eth1, "10.0.0.32/27") }, "aligned /28"},
		"prefix not aligned":  {func(o *v1alpha1.NodeNetwork) { on(o, eth1, "10.0.0.33/28") }, "aligned /28"},
		"everything":          {func(o *v1alpha1.NodeNetwork) { on(o, eth1, "0.0.0.0/0") }, "aligned /28"},
		"the node's own":      {func(o *v1alpha1.NodeNetwork) { on(o, eth0, "10.0.0.4") }, "the node's own address"},
		"prefix with that":    {func(o *v1alpha1.NodeNetwork) { on(o, eth0, "10.0.0.0/28") }, "the node's own address"},
		"of another subnet":   {func(o *v1alpha1.NodeNetwork) { on(o, eth1, "10.0.1.9") }, "not in 10.0.0.0/24"},
		"ENI not there yet":   {func(o *v1alpha1.NodeNetwork) { on(o, "eni-2222", "10.0.0.99") }, ""},
		"releasing nonsense":  {func(o *v1alpha1.NodeNetwork) { o.Spec.IPAM.Releasing = []string{"x"} }, `spec.ipam.releasing: "x"`},
		"releasing elsewhere": {func(o *v1alpha1.NodeNetwork) { o.Spec.IPAM.Releasing = []string{"10.9.9.9"} }, ""},
		"ENI without MAC": {func(o *v1alpha1.NodeNetwork) {
			o.Status.ENI.ENIs["eni-3"] = v1alpha1.ENI{PrimaryIPv4: "10.0.0.6", DeviceIndex: 2}
		}, "status.eni.enis[eni-3].mac"},
		"ENI at a taken index": {func(o *v1alpha1.NodeNetwork) { e := o.Status.ENI.ENIs[eth1]; o.Status.ENI.ENIs["eni-3"] = e }, "status.eni.enis[eni-3].deviceIndex: 1 is that of eni-1111"},
		"ENI without address": {func(o *v1alpha1.NodeNetwork) {
			o.Status.ENI.ENIs["eni-3"] = v1alpha1.ENI{MAC: "02:00:00:00:00:03", DeviceIndex: 3}
		}, "status.eni.enis[eni-3].primaryIPv4"},
		"ENI below index 0": {func(o *v1alpha1.NodeNetwork) {
			o.Status.ENI.ENIs["eni-3"] = v1alpha1.ENI{MAC: "02:00:00:00:00:03", DeviceIndex: -3, PrimaryIPv4: "10.0.0.6"}
		}, "status.eni.enis[eni-3].deviceIndex"},
		"ENI of a nonsense subnet": {func(o *v1alpha1.NodeNetwork) {
			o.Status.ENI.ENIs["eni-3"] = v1alpha1.ENI{MAC: "02:00:00:00:00:03", DeviceIndex: 3, PrimaryIPv4: "10.0.0.6", SubnetCIDR: "10.0.0.1/24"}
		}, "status.eni.enis[eni-3].subnetCIDR"},
	} {
		t.Run(name, func(t *testing.T) {
			o := small()
			tt.change(o)
			r := read(o)
			if got := strings.Join(r.bad, "; "); tt.says == "" && got != "" || !strings.Contains(got, tt.says) {
				t.Errorf("told of %q, want %q", got, tt.says)
			}
			if want := read(small()); !sameInventory(r.inv, want.inv) || len(r.available) != len(want.available) {
				t.Errorf("the rest is %+v", r.inv)
			}
		})
	}
}

func TestReading(t *testing.T) {
	o := small()
	on(o, eth1, "10.0.0.32/28")
	on(o, eth1, "10.0.0.33") // inside the prefix
	on(o, eth0, "10.0.0.20") // though eth0 is below the first index
	o.Spec.IPAM.Releasing = []string{"10.0.0.32/28", "10.0.0.99"}
	o.Status.IPAM.Released = []string{"10.0.0.11"}
	r := read(o)
	mac := func(s string) (m eni.MAC) {
		if err := m.UnmarshalText([]byte(s)); err != nil {
			t.Fatal(err)
		}
		return m
	}
	subnet := r.inv.ENIs[0].Subnet
	want := eni.Inventory{InstanceType: itype, Limits: r.inv.Limits, ENIs: []eni.ENI{
		{ID: eth0, MAC: mac("02:00:00:00:00:00"), Primary: true, Serves: true, SubnetID: "subnet-1", Subnet: subnet, PrimaryIPv4: address(4)},
		{ID: eth1, MAC: mac("02:00:00:00:00:01"), DeviceIndex: 1, Serves: true, SubnetID: "subnet-1", Subnet: subnet, PrimaryIPv4: address(5)},
	}}
	want.ENIs[0].Addresses = append(want.ENIs[0].Addresses, address(20))
	want.ENIs[1].Addresses = append(want.ENIs[1].Addresses, address(10), address(11))
	want.ENIs[1].Prefixes = append(want.ENIs[1].Prefixes, r.releasing[0])
	if !sameInventory(r.inv, want) {
		t.Errorf("read %+v", r.inv)
	}
	if len(r.releasing) != 1 || writeThing(r.releasing[0]) != "10.0.0.32/28" || len(r.released) != 1 || len(r.bad) != 1 {
		t.Errorf("releasing %v, released %v, bad %v", r.releasing, r.released, r.bad)
	}
	if l := r.inv.Limits; l.MaxENIs != 3 || l.IPv4PerENI != 10 || !l.Prefixes {
		t.Errorf("limits %+v", l)
	}
}

func TestWatermark(t *testing.T) {
	n := func(i int32) *int32 { return &i }
	for name, tt := range map[string]struct {
		eni  v1alpha1.ENISpec
		want int
	}{
		"nothing set":   {v1alpha1.ENISpec{}, 8},
		"min alone":     {v1alpha1.ENISpec{MinAllocate: n(20)}, 8},
		"pre-allocate":  {v1alpha1.ENISpec{PreAllocate: n(3)}, 3},
		"warm IPs":      {v1alpha1.ENISpec{WarmIPTarget: n(5), WarmENITarget: n(1)}, 5},
		"warm prefixes": {v1alpha1.ENISpec{WarmPrefixTarget: n(2), PrefixDelegation: true}, 32},
		"warm ENIs":     {v1alpha1.ENISpec{WarmENITarget: n(2)}, 18},
	} {
		o := small()
		o.Spec.ENI = tt.eni
		if got := watermark(o); got != tt.want {
			t.Errorf("%s: %d, want %d", name, got, tt.want)
		}
	}
}

// Whatever the object holds, reading it neither fails nor gives an inventory
// that a restart could not load.
func FuzzRead(f *testing.F) {
	f.Add("10.0.0.9", "10.0.0.0/28", "02:00:00:00:00:01", "10.0.0.5", "10.0.0.0/24", int32(1))
	f.Add("::1", "0.0.0.0/0", "", "", "", int32(-1))
	f.Fuzz(func(t *testing.T, one, two, mac, primary, cidr string, index int32) {
		o := small()
		o.Status.ENI.ENIs["eni-3"] = v1alpha1.ENI{MAC: mac, PrimaryIPv4: primary, SubnetCIDR: cidr, DeviceIndex: index}
		on(o, "eni-3", one)
		on(o, "eni-3", two)
		o.Spec.IPAM.Releasing = []string{one, two}
		r := read(o)
		data, err := encodeInventory(r.inv)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := eni.DecodeInventory(data); err != nil {
			t.Error(err)
		}
		for p := range r.available {
			if again, err := readThing(writeThing(p)); err != nil || again != p {
				t.Errorf("%v reads back as %v, %v", p, again, err)
			}
		}
	})
}
