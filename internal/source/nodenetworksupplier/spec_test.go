package nodenetworksupplier

import (
	"context"
	"testing"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/config"
	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/check"
)

// Settings become the object's spec in their dialect, and the API accepts it.
func TestSpecOfSettings(t *testing.T) {
	allowAll(t)
	n := func(i int32) *int32 { return &i }
	id := cloud.Identity{InstanceID: instance, InstanceType: itype, VPCID: "vpc-0a1b", Zone: "eu-west-1a"}
	for name, tt := range map[string]struct {
		args []string
		want v1alpha1.ENISpec
	}{
		"nothing set": {},
		"watermarks": {
			[]string{"--min-allocate=16", "--pre-allocate=0", "--max-above-watermark=4", "--max-allocate=50", "--first-interface-index=2", "--max-eni=3", "--max-pods=110"},
			v1alpha1.ENISpec{
				MinAllocate: n(16), PreAllocate: n(0), MaxAboveWatermark: n(4), MaxAllocate: n(50), FirstInterfaceIndex: n(2), MaxENIs: n(3), MaxPods: n(110),
			},
		},
		"warm targets": {
			[]string{"--warm-eni-target=0", "--warm-ip-target=5", "--minimum-ip-target=10", "--warm-prefix-target=1", "--enable-prefix-delegation"},
			v1alpha1.ENISpec{WarmENITarget: n(0), WarmIPTarget: n(5), MinimumIPTarget: n(10), WarmPrefixTarget: n(1), PrefixDelegation: new(true)},
		},
		"subnets": {
			[]string{"--subnets=subnet-0a,subnet-0b", "--security-groups=sg-0c"},
			v1alpha1.ENISpec{SubnetIDs: []string{"subnet-0a", "subnet-0b"}, SecurityGroups: []string{"sg-0c"}},
		},
		"both families": {[]string{"--ip-families=dual"}, v1alpha1.ENISpec{IPFamilies: "dual"}},
		"IPv6":          {[]string{"--ip-families=ipv6"}, v1alpha1.ENISpec{IPFamilies: "ipv6"}},
		"subnet tags": {
			[]string{"--subnet-tags=for=pods"},
			v1alpha1.ENISpec{SubnetTags: map[string]string{"for": "pods"}},
		},
		"group tags": {
			[]string{"--security-group-tags=for=pods,team=a"},
			v1alpha1.ENISpec{SecurityGroupTags: map[string]string{"for": "pods", "team": "a"}},
		},
		"own addresses, ENIs that stay, a trunk": {
			[]string{"--use-primary-address", "--delete-on-termination=false", "--trunk-eni"},
			v1alpha1.ENISpec{UsePrimaryAddress: new(true), DeleteOnTermination: new(false), Trunk: new(true)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			flags := pflag.NewFlagSet("berthd", pflag.ContinueOnError)
			l := config.NewLoader(flags)
			check.OK(t, flags.Parse(append(tt.args, "--ipam=eni-operator", "--auto-create-node-network")))
			c := check.Must(l.Load(nil))(t)
			m.spec = SpecOf(&c, id)
			got := m.begin().Spec
			tt.want.VPCID, tt.want.AvailabilityZone = id.VPCID, id.Zone
			check.Same(t, got, v1alpha1.NodeNetworkSpec{InstanceID: instance, InstanceType: itype, ENI: tt.want})
		})
	}
}

// allowAll lists everything as allowed for daemons, until the test ends.
func allowAll(t *testing.T) {
	t.Helper()
	list := &corev1.ConfigMap{}
	api := harness.KubeClient(t)
	harness.OK(t, api.Get(t.Context(), client.ObjectKey{Namespace: "kube-system", Name: "berthd-allowed"}, list))
	before := list.DeepCopy()
	for _, key := range []string{"securityGroups", "securityGroupTags", "subnetIDs", "subnetTags"} {
		list.Data[key] = "*"
	}
	list.Data["settings"] = "firstInterfaceIndex=0,deleteOnTermination=false,usePrimaryAddress=true,trunk=true"
	after := list.DeepCopy()
	harness.OK(t, api.Patch(t.Context(), list, client.MergeFrom(before)))
	t.Cleanup(func() { harness.OK(t, api.Patch(context.Background(), before.DeepCopy(), client.MergeFrom(after))) })
}

// What the API refuses is reported in its words.
func TestSpecThatTheAPIRefuses(t *testing.T) {
	m := newMachine(t)
	m.spec.ENI.SubnetIDs = []string{"subnet-0A"}
	m.start()
	m.readySays("eni.subnetIDs must be subnet IDs")
}

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
		check.Equal(t, reported(o), tt.want, "%s", name)
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
		check.Equal(t, watermark(o), tt.want, "%s", name)
	}
}
