package nodenetworksupplier

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"testing"
	"time"

	"k8s.io/client-go/transport"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/deploy"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/internal/source/enisource"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/sourcenode"
	"github.com/berthnet/berth/test/harness/sourcetest"
)

const (
	instance = "i-0a1b2c3d"
	itype    = "m5.large"
	eth0     = "eni-0000"
	eth1     = "eni-1111"
	nodeName = sourcenode.Name
	longest  = sourcenode.Longest
)

// Pods by number.
var key, request = sourcetest.Key, sourcetest.Request

func TestMain(m *testing.M) { os.Exit(sourcenode.Main(m, deploy.OperatorMode, child)) }

// links is a Datapath with all links.
type links struct{}

func (links) SetENI(context.Context, eni.ENI) error   { return nil }
func (links) RemoveENI(context.Context, string) error { return nil }
func (links) ChangedLinks(context.Context) (map[string]source.LinkChange, error) {
	return nil, nil
}

// machine is a node whose daemon can be stopped and started again; the test acts as operator and
// administrator.
type machine struct {
	*sourcenode.Node
	spec *v1alpha1.NodeNetworkSpec // nil: no auto-creation
	tune func(*Config)
	*enisource.Source
	stop func()
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	return &machine{Node: sourcenode.New(t), spec: &v1alpha1.NodeNetworkSpec{InstanceID: instance, InstanceType: itype}}
}

// startMachine returns a machine whose daemon has created the object, sends every report immediately, and
// makes its requests through a transport.
func startMachine(t *testing.T, through ...transport.WrapperFunc) *machine {
	t.Helper()
	m := newMachine(t)
	m.spec.ENI.PreAllocate = new(int32(256))
	for _, w := range through {
		m.Config.Wrap(w)
	}
	m.begin()
	return m
}

// begin starts the daemon, and waits for the object that it creates.
func (m *machine) begin() *v1alpha1.NodeNetwork {
	m.T.Helper()
	m.start()
	return m.appears("the object", func(*v1alpha1.NodeNetwork) bool { return true })
}

// start starts the daemon's source. It stops at the end of the test at the latest.
func (m *machine) start() {
	m.T.Helper()
	cfg := Config{
		NodeName: nodeName, Spec: m.spec, InstanceID: instance, Datapath: links{}, Cooling: time.Millisecond,
		Store: enisource.Files{Dir: m.Dir}, Logger: sourcetest.Logger(m.Log),
	}
	if m.tune != nil {
		m.tune(&cfg)
	}
	var err error
	m.Source, err = newSource(cfg, m.Config)
	harness.OK(m.T, err)
	m.stop = sourcetest.Run(m.T, m.Source)
}

// add starts a pod.
func (m *machine) add(i int) source.Lease {
	m.T.Helper()
	return sourcetest.Add(m.T, m.Source, i, longest)
}

// gets starts a pod, which must get 10.0.0.LAST.
func (m *machine) gets(i, last int) {
	m.T.Helper()
	if l := m.add(i); l.IPv4 != address(last) {
		m.T.Errorf("address of pod %d = %v, want %v", i, l.IPv4, address(last))
	}
}

// getsNothing starts a pod for which no address is available.
func (m *machine) getsNothing(i int) {
	m.T.Helper()
	if l, err := m.try(i, 300*time.Millisecond); err == nil {
		m.T.Errorf("pod %d got %v, want no address", i, l.IPv4)
	}
}

// reports waits until the daemon has reported this number of pods.
func (m *machine) reports(pods int32) *v1alpha1.NodeNetwork {
	m.T.Helper()
	return m.appears(fmt.Sprintf("%d pods are reported", pods), func(o *v1alpha1.NodeNetwork) bool { return o.Status.IPAM.UsedCount == pods })
}

func (m *machine) try(i int, within time.Duration) (source.Lease, error) {
	return sourcetest.Try(m.T, m.Source, request(i), within)
}

// until waits for a condition without an event.
func (m *machine) until(what string, ok func() bool) {
	m.T.Helper()
	m.Until(what, ok, func() string { return fmt.Sprintf("object: %+v", m.find()) })
}

// object reads the NodeNetwork.
func (m *machine) object() *v1alpha1.NodeNetwork {
	m.T.Helper()
	o := m.find()
	if o == nil {
		m.T.Fatal("the NodeNetwork does not exist")
	}
	return o
}

func (m *machine) find() *v1alpha1.NodeNetwork {
	o := &v1alpha1.NodeNetwork{}
	if !m.Get(nodeName, o) {
		return nil
	}
	return o
}

// appears waits until the object satisfies a condition.
func (m *machine) appears(what string, ok func(*v1alpha1.NodeNetwork) bool) *v1alpha1.NodeNetwork {
	m.T.Helper()
	var o *v1alpha1.NodeNetwork
	m.until(what, func() bool {
		o = m.find()
		return o != nil && ok(o)
	})
	return o
}

// operator changes the object like the operator: its status, then the rest.
func (m *machine) operator(change func(*v1alpha1.NodeNetwork)) {
	m.T.Helper()
	before, owner := m.object(), client.FieldOwner(v1alpha1.OwnerOperator)
	after := before.DeepCopy()
	change(after)
	harness.OK(m.T, m.API.Status().Patch(m.T.Context(), after.DeepCopy(), client.MergeFrom(before), owner))
	harness.OK(m.T, m.API.Patch(m.T.Context(), after, client.MergeFrom(before), owner))
}

// give makes addresses 10.0.0.FROM to TO available on eth1, in addition to existing ones.
func give(from, to int) func(*v1alpha1.NodeNetwork) {
	return func(o *v1alpha1.NodeNetwork) {
		o.Status.ENI.Limits = &v1alpha1.ENILimits{ENIs: 3, AddressesPerENI: 10, Prefixes: true}
		o.Status.ENI.ENIs = map[string]v1alpha1.ENI{
			eth0: {MAC: "02:00:00:00:00:00", DeviceIndex: 0, PrimaryIPv4: "10.0.0.4", SubnetID: "subnet-1", SubnetCIDR: "10.0.0.0/24"},
			eth1: {MAC: "02:00:00:00:00:01", DeviceIndex: 1, PrimaryIPv4: "10.0.0.5", SubnetID: "subnet-1", SubnetCIDR: "10.0.0.0/24"},
		}
		if o.Spec.IPAM.Available == nil {
			o.Spec.IPAM.Available = map[string]v1alpha1.AvailableAddress{}
		}
		for i := from; i <= to; i++ {
			o.Spec.IPAM.Available[address(i).String()] = v1alpha1.AvailableAddress{Resource: eth1}
		}
		o.Status.ENI.Available = int32(len(o.Spec.IPAM.Available))
	}
}

func address(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}) }
