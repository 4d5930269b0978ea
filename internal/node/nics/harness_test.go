package nics

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/deploy"
	"github.com/berthnet/berth/internal/kernel/plug/ovsdb"
	"github.com/berthnet/berth/internal/kernel/plug/plugfake"
	"github.com/berthnet/berth/internal/kubeapi"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/sourcenode"
	"github.com/berthnet/berth/test/harness/sourcetest"
)

const (
	nodeID    = sourcenode.Name
	namespace = sourcetest.Namespace
)

func TestMain(m *testing.M) {
	os.Exit(sourcenode.Main(m, deploy.PortMode, func(struct{}) error { return errors.New("no child is started here") }))
}

// fakeSwitch is an Open vSwitch that can be away.
type fakeSwitch struct {
	mu  sync.Mutex // guards err
	err error
}

func (s *fakeSwitch) Bridge(context.Context, string) (*ovsdb.Bridge, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &ovsdb.Bridge{}, s.err
}

// changedPort is the first port that another program changed by what fakeSwitch says; then any may have been.
var changedPort = portID(1, 0)

func (s *fakeSwitch) Watch(ctx context.Context, changed func([]ovsdb.Change)) {
	changed([]ovsdb.Change{{PortID: changedPort}})
	changed([]ovsdb.Change{{}})
	<-ctx.Done()
}

// machine is a node whose daemon's NICs can be stopped and started again, and the
// operator's hand.
type machine struct {
	*sourcenode.Node
	*NICs
	operator client.Client
	plugs    *plugfake.Node
	vswitch  *fakeSwitch
	tune     func(*Config)
	stop     func()

	mu       sync.Mutex                   // guards below
	recorded map[string]attachment.Record // by port
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	m := &machine{
		Node: sourcenode.New(t), operator: harness.KubeClientFor(t, sourcenode.Config(t, "berth-operator", nodeID)), plugs: plugfake.NewNode(), vswitch: &fakeSwitch{}, tune: func(*Config) {}, recorded: map[string]attachment.Record{},
	}
	m.namespace(namespace, "blue")
	return m
}

// start starts NICs. They end with the test at the latest.
func (m *machine) start() {
	m.T.Helper()
	api, err := kubeapi.New(m.Config)
	harness.OK(m.T, err)
	cfg := Config{
		NodeName: nodeID, Plugger: m.plugs.Open(nil), Switch: m.vswitch, Bridges: []string{"br-int"}, FirstIsPort: true,
		Recorded: m.has, Logger: sourcetest.Logger(m.Log),
	}
	m.tune(&cfg)
	m.NICs, err = newNICs(cfg, api)
	harness.OK(m.T, err)
	m.stop = sourcetest.Run(m.T, m.NICs)
}

func (m *machine) has(port string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, ok := m.recorded[port]
	return ok
}

// record keeps a record as the daemon's store does; forget drops it.
func (m *machine) record(rec attachment.Record) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, n := range rec.NICs {
		m.recorded[n.Port] = rec
	}
}

func (m *machine) forget(rec attachment.Record) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, n := range rec.NICs {
		delete(m.recorded, n.Port)
	}
}

// namespace makes a namespace, or annotates it.
func (m *machine) namespace(name, vpc string) {
	m.T.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	_ = m.API.Create(m.T.Context(), ns) // there already, from an earlier test
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, v1alpha1.AnnotationVPC, vpc)
	harness.OK(m.T, m.API.Patch(m.T.Context(), ns, client.RawPatch(types.MergePatchType, []byte(patch))))
}

// plugged are the ports that are plugged, sorted.
func (m *machine) plugged() []string { return slices.Sorted(maps.Keys(m.plugs.Plugged())) }

// portID is that of interface k of pod i.
func portID(i, k int) string { return fmt.Sprintf("%08x-76f7-46d4-9d11-%012x", i<<8|k, i) }

// podNIC is how the operator leaves a PodNIC of interface k of pod i.
func podNIC(i, k int, phase v1alpha1.PodNICPhase) *v1alpha1.PodNIC {
	pod := sourcetest.Request(i).Pod
	ref := &v1alpha1.PodReference{Name: pod.Name, UID: pod.UID}
	name := fmt.Sprintf("eth%d", k)
	o := &v1alpha1.PodNIC{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("%s-%s", pod.Name, name), Labels: map[string]string{v1alpha1.LabelPodUID: pod.UID}},
		Spec:       v1alpha1.PodNICSpec{VPC: "blue", Pod: ref, Interface: name},
		Status: v1alpha1.PodNICStatus{
			Phase: phase, Pod: ref, Interface: name, NodeName: nodeID, PortID: portID(i, k), Made: true, Host: "host-1",
			MAC: fmt.Sprintf("fa:16:3e:00:%02x:%02x", k, i), MTU: 1442,
			Addresses: []v1alpha1.PortAddress{{CIDR: fmt.Sprintf("192.168.%d.%d/24", k, 10+i), Subnet: "s", Gateway: fmt.Sprintf("192.168.%d.1", k)}},
			Plug:      &v1alpha1.PortPlug{Type: v1alpha1.PlugOVS, Bridge: "br-int", OVN: true},
		},
	}
	return o
}

// make makes a PodNIC with its status.
func (m *machine) make(o *v1alpha1.PodNIC) {
	m.T.Helper()
	status := o.Status
	harness.OK(m.T, m.operator.Create(m.T.Context(), o))
	m.say(o.Name, func(s *v1alpha1.PodNICStatus) { *s = status })
}

// say writes a PodNIC's status as the operator, but for what the node said.
func (m *machine) say(name string, change func(*v1alpha1.PodNICStatus)) {
	m.T.Helper()
	o := m.nic(name)
	change(&o.Status)
	body, err := json.Marshal(map[string]any{"status": o.Status})
	harness.OK(m.T, err)
	harness.OK(m.T, m.operator.Status().Patch(m.T.Context(), o, client.RawPatch(types.MergePatchType, body)))
}

func (m *machine) nic(name string) *v1alpha1.PodNIC {
	m.T.Helper()
	o := &v1alpha1.PodNIC{}
	harness.OK(m.T, m.API.Get(m.T.Context(), client.ObjectKey{Namespace: namespace, Name: name}, o))
	return o
}

// says waits until a PodNIC says this of the node.
func (m *machine) says(name string, state v1alpha1.NodeNICState) *v1alpha1.PodNICNode {
	m.T.Helper()
	var got *v1alpha1.PodNICNode
	m.Until(fmt.Sprintf("PodNIC %s says %q", name, state), func() bool {
		o := &v1alpha1.PodNIC{}
		if m.API.Get(m.T.Context(), client.ObjectKey{Namespace: namespace, Name: name}, o) != nil {
			return false
		}
		got = o.Status.Node
		return got != nil && got.State == state
	}, func() string { return fmt.Sprintf("it says %+v", got) })
	return got
}

// requestWith is the request of a pod with annotations.
func requestWith(i int, annotations map[string]string) attachment.Request {
	req := sourcetest.Request(i)
	req.Options.Annotations = annotations
	return req
}

// record of an attachment with NICs.
func recordOf(i int, nics ...attachment.NIC) attachment.Record {
	req := sourcetest.Request(i)
	return attachment.Record{
		Key: req.Key, Pod: req.Pod, NICs: nics, Netns: attachment.Netns{Path: "/run/netns/" + req.Pod.Name}, HostLink: fmt.Sprintf("bth%012d", i),
		State: attachment.Pending, Since: time.Now(), InstanceID: "node-1", BootID: "boot",
	}
}

// add is an ADD.
func (m *machine) add(req attachment.Request, i int) attachment.Record {
	m.T.Helper()
	ctx, cancel := context.WithTimeout(m.T.Context(), sourcenode.Longest)
	defer cancel()
	nics, err := m.Acquire(ctx, req)
	if err != nil {
		m.T.Fatalf("pod %d: %v", i, err)
	}
	rec := recordOf(i, nics...)
	m.record(rec)
	for k, n := range rec.NICs {
		rec.NICs[k], err = m.Plug(ctx, rec, n)
		harness.OK(m.T, err)
	}
	harness.OK(m.T, m.Await(ctx, rec))
	rec.State = attachment.Ready
	m.record(rec)
	m.Plugged(rec)
	return rec
}

// del is a DEL.
func (m *machine) del(rec attachment.Record) {
	m.T.Helper()
	for _, n := range rec.NICs {
		harness.OK(m.T, m.Unplug(m.T.Context(), rec, n))
	}
	m.Unplugged(rec)
	m.forget(rec)
}
