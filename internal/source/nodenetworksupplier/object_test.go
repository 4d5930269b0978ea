package nodenetworksupplier

import (
	"context"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/config"
	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/check"
)

// put creates an object as a person would.
func (m *machine) put(id string) *v1alpha1.NodeNetwork {
	m.T.Helper()
	o := objectOf(id)
	m.Create(o)
	return o
}

func objectOf(id string) *v1alpha1.NodeNetwork {
	three := int32(3)
	return &v1alpha1.NodeNetwork{
		ObjectMeta: metav1.ObjectMeta{Name: nodeName},
		Spec:       v1alpha1.NodeNetworkSpec{InstanceID: id, InstanceType: itype, ENI: v1alpha1.ENISpec{PreAllocate: &three}},
	}
}

// ofNoUse returns the operator's status of an object whose instance is not the Node's.
func ofNoUse(o *v1alpha1.NodeNetwork) {
	o.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionDegraded, Status: "True", Reason: "AnotherInstance", LastTransitionTime: metav1.Now()}}
}

func (m *machine) putNode(providerID string) *corev1.Node {
	m.T.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}, Spec: corev1.NodeSpec{ProviderID: providerID}}
	m.Create(n)
	return n
}

// readySays waits until the node is not ready and says why.
func (m *machine) readySays(what string) {
	m.T.Helper()
	m.until("Ready says "+what, func() bool {
		err := m.Ready()
		return err != nil && strings.Contains(err.Error(), what)
	})
}

func TestObjectIsOwnedByTheNode(t *testing.T) {
	m := newMachine(t)
	n := m.putNode("aws:///zone-a/" + instance)
	m.start()
	o := m.appears("the object", func(*v1alpha1.NodeNetwork) bool { return true })
	if len(o.OwnerReferences) != 1 || o.OwnerReferences[0].UID != n.UID || o.OwnerReferences[0].Kind != "Node" {
		t.Errorf("owner references: %+v", o.OwnerReferences)
	}
}

func TestAnObjectOfAPersonStaysAsItIs(t *testing.T) {
	m := newMachine(t)
	before := m.put(instance)
	m.start()
	o := m.appears("the daemon reports", func(o *v1alpha1.NodeNetwork) bool { return o.Status.IPAM.InstanceID == instance })
	if o.UID != before.UID || o.Generation != before.Generation || *o.Spec.ENI.PreAllocate != 3 {
		t.Errorf("the spec was changed: %+v", o.Spec)
	}
}

func TestWaitsForTheObject(t *testing.T) {
	m := newMachine(t)
	m.spec = nil
	m.start()
	m.readySays("create it, or let berthd do so by --auto-create-node-network")
	m.put(instance)
	m.readySays("operator has not reported")
	m.operator(give(10, 10))
	m.add(1)
}

func TestStaleObjectIsNotServed(t *testing.T) {
	m := newMachine(t)
	m.spec = nil
	m.put("i-0ddd")
	m.operator(give(10, 12))
	m.start()
	m.readySays("is of instance i-0ddd")
	m.until("the log says so, once", func() bool { return m.Log.Count("is of instance i-0ddd") == 1 })
	if _, err := m.try(1, 1); err == nil {
		t.Error("a pod got another instance's address")
	}
}

func TestStaleObjectIsReplaced(t *testing.T) {
	m := newMachine(t)
	old := m.put("i-0ddd")
	m.operator(give(10, 12))
	m.start()
	m.readySays("only if the operator's condition Degraded says that the instance belongs to another node or is gone")
	m.operator(ofNoUse)
	o := m.appears("an object of this instance", func(o *v1alpha1.NodeNetwork) bool { return o.Spec.InstanceID == instance })
	if o.UID == old.UID || len(o.Spec.IPAM.Available) > 0 {
		t.Errorf("the object was changed, not replaced: %+v", o)
	}
	m.operator(give(20, 20))
	m.gets(1, 20)
}

// According to the Node, the name is still the other instance's.
func TestStaleObjectOfALiveNodeStays(t *testing.T) {
	m := newMachine(t)
	m.putNode("aws:///zone-a/i-0ddd")
	old := m.put("i-0ddd")
	m.start()
	m.readySays("is the node's name another's?")
	check.Equal(t, m.object().UID, old.UID, "the UID of the object")
}

// The object is deleted while pods run: they go on, free addresses are served, and the new object gets
// all of them.
func TestObjectIsDeleted(t *testing.T) {
	m := startMachine(t)
	o := m.object()
	m.operator(give(10, 11))
	m.add(1)
	harness.OK(t, m.API.Delete(t.Context(), o))
	m.appears("a new object", func(n *v1alpha1.NodeNetwork) bool { return n.UID != o.UID && n.Status.IPAM.UsedCount == 1 })
	m.add(2)
	m.operator(give(10, 12))
	m.add(3)
	check.Equal(t, m.Log.Count("not available to this node any more"), 0, "addresses called lost that were not")
}

// Two daemons with the same name do not replace each other's object all the time.
func TestReplacedObjectIsNotReplacedAgain(t *testing.T) {
	m := newMachine(t)
	m.put("i-0ddd")
	m.operator(ofNoUse)
	m.start()
	o := m.appears("an object of this instance", func(o *v1alpha1.NodeNetwork) bool { return o.Spec.InstanceID == instance })
	harness.OK(t, m.API.Delete(t.Context(), o))
	m.until("it gives way to the other daemon's object", func() bool {
		if m.API.Create(t.Context(), objectOf("i-0ddd")) != nil {
			if o := m.find(); o != nil && o.Spec.InstanceID == instance {
				_ = m.API.Delete(t.Context(), o)
				_ = m.API.Create(t.Context(), objectOf("i-0ddd")) // at once: this daemon makes one as soon as it hears
			}
		}
		err := m.Ready()
		return err != nil && strings.Contains(err.Error(), "do two nodes have the same name?")
	})
}

// If the daemon's settings ask for something that is not on the administrator's list, the message has
// field, value and list.
func TestObjectThatIsNotAllowed(t *testing.T) {
	m := newMachine(t)
	m.spec.ENI.SecurityGroups = []string{"sg-0a"}
	m.start()
	const why = "spec.eni.securityGroups has sg-0a, which securityGroups of the ConfigMap kube-system/berthd-allowed does not list"
	m.readySays(why)
	if err := m.Ready(); err == nil || strings.Contains(err.Error(), "apply deploy/chart") {
		t.Errorf("the message names a remedy that does not help: %v", err)
	}
}

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
