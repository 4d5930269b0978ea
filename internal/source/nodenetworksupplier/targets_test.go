package nodenetworksupplier

import (
	"testing"

	"github.com/berthnet/berth/api/v1alpha1"
)

func small() *v1alpha1.NodeNetwork {
	o := &v1alpha1.NodeNetwork{Spec: v1alpha1.NodeNetworkSpec{InstanceID: instance, InstanceType: itype}}
	give(10, 11)(o)
	return o
}

func TestReported(t *testing.T) {
	enis := map[string]v1alpha1.ENI{"eni-1": {}}
	some := map[string]v1alpha1.AvailableAddress{"10.0.0.1": {Resource: "eni-1"}}
	for name, tt := range map[string]struct {
		available map[string]v1alpha1.AvailableAddress
		enis      v1alpha1.ENIStatus
		want      bool
	}{
		"nothing yet":                  {},
		"no address":                   {enis: v1alpha1.ENIStatus{ENIs: enis}, want: true},
		"addresses that are not named": {enis: v1alpha1.ENIStatus{ENIs: enis, Available: 1}},
		"addresses":                    {available: some, enis: v1alpha1.ENIStatus{ENIs: enis, Available: 1}, want: true},
		"addresses only":               {available: some, want: true},
	} {
		o := &v1alpha1.NodeNetwork{}
		o.Spec.IPAM.Available, o.Status.ENI = tt.available, tt.enis
		if got := reported(o); got != tt.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

func TestWatermark(t *testing.T) {
	n := func(i int32) *int32 { return &i }
	for name, tt := range map[string]struct {
		eni  v1alpha1.ENISpec
		ipv6 int32 // single addresses that an ENI may have; 0: prefixes
		want int
	}{
		"nothing set":                 {v1alpha1.ENISpec{}, 0, 8},
		"min alone":                   {v1alpha1.ENISpec{MinAllocate: n(20)}, 0, 8},
		"pre-allocate":                {v1alpha1.ENISpec{PreAllocate: n(3)}, 0, 3},
		"warm IPs":                    {v1alpha1.ENISpec{WarmIPTarget: n(5), WarmENITarget: n(1)}, 0, 5},
		"warm prefixes":               {v1alpha1.ENISpec{WarmPrefixTarget: n(2), PrefixDelegation: new(true)}, 0, 32},
		"warm ENIs":                   {v1alpha1.ENISpec{WarmENITarget: n(2)}, 0, 18},
		"dual, warm ENIs":             {v1alpha1.ENISpec{IPFamilies: "dual", WarmENITarget: n(2)}, 0, 18},
		"dual, single addresses":      {v1alpha1.ENISpec{IPFamilies: "dual", WarmENITarget: n(2)}, 4, 8},
		"dual, fewer of IPv4":         {v1alpha1.ENISpec{IPFamilies: "dual", WarmENITarget: n(2)}, 15, 18},
		"IPv6, warm prefixes":         {v1alpha1.ENISpec{IPFamilies: "ipv6", WarmPrefixTarget: n(2)}, 0, 32},
		"IPv6, warm ENIs":             {v1alpha1.ENISpec{IPFamilies: "ipv6", WarmENITarget: n(1)}, 0, 16},
		"IPv6, single, and warm ENIs": {v1alpha1.ENISpec{IPFamilies: "ipv6", WarmENITarget: n(1), WarmPrefixTarget: n(5)}, 4, 4},
	} {
		o := small()
		o.Spec.ENI = tt.eni
		o.Status.ENI.Limits = &v1alpha1.ENILimits{ENIs: 3, AddressesPerENI: 10, IPv6AddressesPerENI: tt.ipv6, Prefixes: tt.ipv6 == 0}
		if got := watermark(o); got != tt.want {
			t.Errorf("%s: %d, want %d", name, got, tt.want)
		}
	}
}
