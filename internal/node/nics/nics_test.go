package nics

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/sourcetest"
)

// expires waits for NICs in vain, and returns what an ADD says then.
func (m *machine) expires(req attachment.Request, reason string) (message string) {
	m.T.Helper()
	var why *source.Exhausted
	m.Until("an ADD fails by "+reason, func() bool {
		ctx, cancel := context.WithTimeout(m.T.Context(), 100*time.Millisecond)
		defer cancel()
		nics, err := m.Acquire(ctx, req)
		var ok bool
		if why, ok = errors.AsType[*source.Exhausted](err); !ok {
			m.T.Fatalf("%v, %v; want %s", nics, err, reason)
		}
		return why.Reason == reason
	}, func() string { return fmt.Sprintf("it failed by %+v", why) })
	return why.Message
}

// begin has an ADD wait for NICs, and returns its outcome once it is called.
func (m *machine) begin(req attachment.Request) (outcome func() ([]attachment.NIC, error)) {
	var nics []attachment.NIC
	var err error
	done := make(chan struct{})
	ctx, cancel := context.WithCancel(m.T.Context())
	m.T.Cleanup(cancel)
	go func() {
		defer close(done)
		nics, err = m.Acquire(ctx, req)
	}()
	return func() ([]attachment.NIC, error) {
		<-done
		return nics, err
	}
}

// A pod gets its NICs once their ports are bound; they are reported while they are plugged and once they are not.
func TestLifeOfNICs(t *testing.T) {
	m := newMachine(t)
	m.start()
	two := `[{subnet: a}, {subnet: b}]`
	add := m.begin(requestWith(1, map[string]string{v1alpha1.AnnotationNICs: two}))
	m.make(podNIC(1, 0, v1alpha1.PhaseBound))
	m.waitsFor(1, "NIC eth1")
	m.make(podNIC(1, 1, v1alpha1.PhasePending))
	m.waitsFor(1, "phase Pending")
	m.say("pod1-eth1", func(s *v1alpha1.PodNICStatus) { s.Phase = v1alpha1.PhaseBound })
	nics, err := add()
	harness.OK(t, err)
	if len(nics) != 2 || nics[0].IfName != "eth0" || !nics[0].DefaultRoute || nics[1].DefaultRoute || nics[1].Port != portID(1, 1) {
		t.Errorf("got %+v", nics)
	}
	if m.Why(sourcetest.Key(1)) != nil {
		t.Error("nobody waits any more")
	}

	rec := m.add(requestWith(1, map[string]string{v1alpha1.AnnotationNICs: two}), 1)
	other := m.begin(requestWith(2, nil)) // of the namespace's VPC, by the default
	m.make(podNIC(2, 0, v1alpha1.PhaseActive))
	if nics, err := other(); err != nil || len(nics) != 1 || nics[0].Port != portID(2, 0) {
		t.Errorf("pod 2 got %+v, %v", nics, err)
	}
	second := m.add(requestWith(2, nil), 2)

	for k, n := range rec.NICs {
		got := m.says(fmt.Sprintf("pod1-eth%d", k), v1alpha1.NodePlugged)
		got.Since = metav1.Time{}
		want := v1alpha1.PodNICNode{State: v1alpha1.NodePlugged, PortID: n.Port, ContainerID: "c1", HostInterface: "tap" + n.Port[:11]}
		if diff := cmp.Diff(want, *got); diff != "" {
			t.Error(diff)
		}
	}
	m.says("pod2-eth0", v1alpha1.NodePlugged)
	m.del(rec)
	for k := range rec.NICs {
		if got := m.says(fmt.Sprintf("pod1-eth%d", k), v1alpha1.NodeUnplugged); got.ContainerID != "" || got.PortID != portID(1, k) {
			t.Errorf("%+v", got)
		}
	}
	if got := m.plugged(); !slices.Equal(got, []string{portID(2, 0)}) {
		t.Errorf("plugged are %v", got)
	}
	// The record goes after the NICs were reported as unplugged, at any time.
	harness.OK(t, m.Unplug(t.Context(), second, second.NICs[0]))
	m.Unplugged(second)
	m.says("pod2-eth0", v1alpha1.NodeUnplugged)
	m.forget(second)
}

// waitsFor waits until the ADD of pod i waits for what a text says.
func (m *machine) waitsFor(i int, text string) {
	m.T.Helper()
	var why *source.Exhausted
	m.Until("pod waits for "+text, func() bool {
		why = m.Why(sourcetest.Key(i))
		return why != nil && strings.Contains(why.Message, text)
	}, func() string { return fmt.Sprintf("it waits for %+v", why) })
}

// The error of an ADD that waited in vain names what the PodNIC lacks.
func TestWaitingADDNamesWhatIsMissing(t *testing.T) {
	m := newMachine(t)
	m.start()
	req := requestWith(1, nil)
	m.expires(req, "no-podnic")
	m.make(podNIC(1, 0, v1alpha1.PhasePending))
	m.say("pod1-eth0", func(s *v1alpha1.PodNICStatus) {
		s.PortID, s.Host = "", ""
		s.Conditions = []metav1.Condition{{
			Type: v1alpha1.ConditionPortReady, Status: metav1.ConditionFalse, Reason: "SubnetFull", Message: "no more addresses in subnet s", LastTransitionTime: metav1.Now(),
		}}
	})
	if why := m.expires(req, "subnet-full"); !strings.Contains(why, "no more addresses in subnet s") {
		t.Error(why)
	}
	m.say("pod1-eth0", func(s *v1alpha1.PodNICStatus) {
		s.PortID, s.Host, s.Phase = portID(1, 0), "host-1", v1alpha1.PhaseCreated
		s.Conditions = []metav1.Condition{{
			Type: v1alpha1.ConditionBound, Status: metav1.ConditionFalse, Reason: "BindingFailed", Message: "no agent alive on host-1", LastTransitionTime: metav1.Now(),
		}}
	})
	why := m.expires(req, "binding-failed")
	for _, want := range []string{portID(1, 0), "host-1", "Created", "no agent alive on host-1"} {
		if !strings.Contains(why, want) {
			t.Errorf("%q lacks %q", why, want)
		}
	}
	// Deleted while an ADD waits: it waits on for the next of the name.
	add := m.begin(req)
	m.waitsFor(1, "no agent alive")
	harness.OK(t, m.operator.Delete(t.Context(), m.nic("pod1-eth0")))
	m.waitsFor(1, "has not created a PodNIC")
	m.make(podNIC(1, 0, v1alpha1.PhaseBound))
	if _, err := add(); err != nil {
		t.Error(err)
	}
	// Those of another pod of the name, and of another namespace, are not the pod's.
	stranger := req
	stranger.Pod.UID = "uid-of-before"
	m.expires(stranger, "no-podnic")
	elsewhere := req
	elsewhere.Pod.Namespace = "elsewhere"
	m.expires(elsewhere, "starting")
	m.namespace("elsewhere", "blue")
	why = m.expires(elsewhere, "no-podnic")
	for _, want := range []string{"NIC eth0 in VPC blue", "kubectl -n elsewhere describe pod " + elsewhere.Pod.Name} {
		if !strings.Contains(why, want) {
			t.Errorf("%q lacks %q", why, want)
		}
	}
}

// The error of an invalid PodNIC names the field, in a condition too. Once it is corrected it is plugged.
func TestInvalidPodNICIsReported(t *testing.T) {
	m := newMachine(t)
	m.start()
	lies := podNIC(1, 0, v1alpha1.PhaseBound)
	lies.Status.Plug.Bridge = "br-ex"
	m.make(lies)
	why := m.expires(requestWith(1, nil), "podnic-invalid")
	if _, err := m.Acquire(t.Context(), requestWith(1, nil)); !errors.Is(err, plug.ErrInvalid) {
		t.Error(err)
	}
	if !strings.Contains(why, `status.plug.bridge is "br-ex", expected one of br-int`) {
		t.Error(why)
	}
	m.Until("it is reported", func() bool {
		for _, c := range m.snapshot().Conditions {
			if c.Type == conditionPodNICs && !c.Healthy && strings.Contains(c.Message, "br-ex") {
				return true
			}
		}
		return false
	}, func() string { return "" })
	m.say("pod1-eth0", func(s *v1alpha1.PodNICStatus) { s.Plug.Bridge = "br-int" })
	m.Until("it can be plugged", func() bool {
		_, err := m.Acquire(t.Context(), requestWith(1, nil))
		return err == nil
	}, func() string { return "" })
}

// While the API server is away, NICs are plugged and unplugged, and reported when it is back.
func TestWithoutAPIServer(t *testing.T) {
	m := newMachine(t)
	m.start()
	m.make(podNIC(1, 0, v1alpha1.PhaseBound))
	m.make(podNIC(2, 0, v1alpha1.PhaseBound))
	first := m.add(requestWith(1, nil), 1)
	m.says("pod1-eth0", v1alpha1.NodePlugged)
	m.Until("both are known", func() bool {
		_, err := m.Acquire(t.Context(), requestWith(2, nil))
		return err == nil
	}, func() string { return "" })
	back := harness.WithoutAPIServer(t)
	second := m.add(requestWith(2, nil), 2)
	m.del(first)
	m.expires(requestWith(3, nil), "unreachable")
	back()
	m.says("pod1-eth0", v1alpha1.NodeUnplugged)
	m.says("pod2-eth0", v1alpha1.NodePlugged)
	m.make(podNIC(3, 0, v1alpha1.PhaseBound))
	m.del(m.add(requestWith(3, nil), 3))
	m.del(second)
}

// After a restart, a daemon reports what is plugged and what went meanwhile.
func TestRestart(t *testing.T) {
	m := newMachine(t)
	m.start()
	for i := 1; i <= 3; i++ {
		m.make(podNIC(i, 0, v1alpha1.PhaseBound))
	}
	stays, goes, half := m.add(requestWith(1, nil), 1), m.add(requestWith(2, nil), 2), m.add(requestWith(3, nil), 3)
	for i := 1; i <= 3; i++ {
		m.says(fmt.Sprintf("pod%d-eth0", i), v1alpha1.NodePlugged)
	}
	m.stop()
	m.forget(goes) // its record went, and nobody heard of it
	half.State = attachment.Releasing
	m.record(half)
	m.plugs.LeaveHalfMade("tapdeadbeef-00")

	m.start()
	began := false
	harness.OK(t, m.Sweep(t.Context(), func(hostLink, port string) bool {
		if hostLink == "" {
			return began
		}
		return m.has(port)
	}))
	m.Plugged(stays)
	if got := m.plugged(); !slices.Equal(got, []string{portID(1, 0), portID(3, 0)}) || len(m.plugs.HalfMade()) > 0 {
		t.Errorf("the sweep left %v, %v", got, m.plugs.HalfMade())
	}
	m.says("pod2-eth0", v1alpha1.NodeUnplugged)
	if got := m.nic("pod3-eth0").Status.Node; got.State != v1alpha1.NodePlugged {
		t.Errorf("one whose DEL is in progress is reported as %+v", got)
	}
	m.del(half)
	m.says("pod3-eth0", v1alpha1.NodeUnplugged)
	if got := m.nic("pod1-eth0").Status.Node; got.State != v1alpha1.NodePlugged {
		t.Errorf("one that stayed is reported as %+v", got)
	}
	if links, err := m.Plugs(t.Context()); err != nil || !slices.Equal(links, []string{stays.HostLink}) {
		t.Errorf("plugs of %v, %v", links, err)
	}
	harness.OK(t, m.Sweep(t.Context(), func(string, string) bool { return false }))
	if got := m.plugged(); len(got) > 0 {
		t.Errorf("a sweep that keeps nothing left %v", got)
	}
}

// A port that was created again replaces the one before once it is bound, and is then reported as plugged.
func TestRecreatedPortIsDesired(t *testing.T) {
	m := newMachine(t)
	m.start()
	m.make(podNIC(1, 0, v1alpha1.PhaseBound))
	rec := m.add(requestWith(1, nil), 1)
	m.says("pod1-eth0", v1alpha1.NodePlugged)
	if nics, ok := m.Desired(rec); ok {
		t.Errorf("nothing was replaced, and it should have %+v", nics)
	}
	for len(m.DesiredChanged()) > 0 {
		<-m.DesiredChanged()
	}
	again := portID(77, 7)
	m.say("pod1-eth0", func(s *v1alpha1.PodNICStatus) { s.Phase, s.PortID, s.Host = v1alpha1.PhaseCreated, again, "" })
	m.say("pod1-eth0", func(s *v1alpha1.PodNICStatus) { s.Phase, s.Host = v1alpha1.PhaseBound, "host-1" })
	var nics []attachment.NIC
	ok := false
	m.Until("it is wanted", func() bool { nics, ok = m.Desired(rec); return ok }, func() string { return fmt.Sprintf("%+v", nics) })
	if !ok || len(nics) != 1 || nics[0].Port != again || !nics[0].DefaultRoute {
		t.Fatalf("%v, %+v", ok, nics)
	}
	harness.OK(t, m.Unplug(t.Context(), rec, rec.NICs[0]))
	m.forget(rec)
	rec.NICs = nics
	m.record(rec)
	var err error
	rec.NICs[0], err = m.Plug(t.Context(), rec, nics[0])
	harness.OK(t, err)
	rec.NICs[0].State = attachment.Plugged
	m.Plugged(rec)
	told := func() *v1alpha1.PodNICNode { return m.nic("pod1-eth0").Status.Node }
	m.Until("the PodNIC says that the new port is plugged", func() bool { n := told(); return n.State == v1alpha1.NodePlugged && n.PortID == again }, func() string { return fmt.Sprintf("%+v", told()) })
	if nics, ok := m.Desired(rec); ok {
		t.Errorf("the new port is plugged, and it should have %+v", nics)
	}
	// A PodNIC that was deleted and made again for the pod that runs is another, also with
	// the same port.
	harness.OK(t, m.operator.Delete(t.Context(), m.nic("pod1-eth0")))
	for len(m.DesiredChanged()) > 0 {
		<-m.DesiredChanged()
	}
	o := podNIC(1, 0, v1alpha1.PhaseBound)
	o.Status.PortID = again
	m.make(o)
	m.Until("the daemon has to look", func() bool { return len(m.DesiredChanged()) > 0 }, func() string { return "" })
	m.Until("the other PodNIC is seen", func() bool { nics, ok := m.Desired(rec); return ok && nics[0].UID != rec.NICs[0].UID }, func() string { return "" })
}

// The PodNIC says why it cannot be plugged.
func TestFailedPlugIsReported(t *testing.T) {
	m := newMachine(t)
	m.start()
	m.make(podNIC(1, 0, v1alpha1.PhaseBound))
	nics, err := m.begin(requestWith(1, nil))()
	harness.OK(t, err)
	rec := recordOf(1, nics...)
	m.record(rec)
	m.plugs.Fail = fmt.Errorf("%w: br-int\nétage", plug.ErrNoBridge)
	if _, err := m.Plug(t.Context(), rec, nics[0]); !errors.Is(err, plug.ErrNoBridge) {
		t.Error(err)
	}
	if got := m.says("pod1-eth0", v1alpha1.NodeFailed); !strings.Contains(got.Message, "no such bridge") || got.PortID != portID(1, 0) {
		t.Errorf("%+v", got)
	}
	m.plugs.Fail = nil
	rec = m.add(requestWith(1, nil), 1)
	m.says("pod1-eth0", v1alpha1.NodePlugged)
	m.plugs.Fail = plug.ErrNoBridge // somebody took it away, and it is not plugged again at once
	if _, err := m.Plug(t.Context(), rec, rec.NICs[0]); !errors.Is(err, plug.ErrNoBridge) {
		t.Error(err)
	}
	m.plugs.Fail = nil
	_, err = m.Plug(t.Context(), rec, rec.NICs[0])
	harness.OK(t, err)
	m.del(rec)
	m.says("pod1-eth0", v1alpha1.NodeUnplugged)
}

// An ADD waits until Alcor's agent or EC2 has created the link of a port, on a node without Open vSwitch. Its NIC
// carries packets once it is plugged.
func TestLinksOfOthersAreAwaited(t *testing.T) {
	m := newMachine(t)
	m.tune = func(c *Config) { c.Switch, c.Bridges = nil, nil }
	m.start()
	for i, tc := range []struct {
		plug  v1alpha1.PortPlug
		waits string
	}{
		{v1alpha1.PortPlug{Type: v1alpha1.PlugNetns, Netns: "vpc-ns1"}, "waits for the VPC's agent on this node"},
		{v1alpha1.PortPlug{Type: v1alpha1.PlugVLAN, TrunkMAC: "0a:ff:ff:00:00:01", VLAN: 7}, "waits for the link of its trunk with MAC address 0a:ff:ff:00:00:01"},
	} {
		o := podNIC(i, 0, v1alpha1.PhaseBound)
		name, port := o.Name, o.Status.PortID
		o.Status.Plug = &tc.plug
		m.make(o)
		nics, err := m.begin(requestWith(i, nil))()
		harness.OK(t, err)
		rec := recordOf(i, nics...)
		m.record(rec)
		m.plugs.Arrived = make(chan struct{})
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		err = m.Expect(ctx, rec)
		cancel()
		if why, ok := errors.AsType[*source.Exhausted](err); !ok || why.Reason != "no-link" || !strings.Contains(why.Message, port) {
			t.Error(err)
		}
		if got := m.says(name, v1alpha1.NodeFailed); !strings.Contains(got.Message, "the agent has not created the link") {
			t.Errorf("%+v", got)
		}
		done := make(chan error, 1)
		go func() { done <- m.Expect(t.Context(), rec) }()
		m.waitsFor(i, tc.waits)
		close(m.plugs.Arrived)
		harness.OK(t, <-done)
		rec = m.add(requestWith(i, nil), i)
		if w := m.plugs.Plugged()[port]; string(w.Kind) != string(tc.plug.Type) || w.Trunk != tc.plug.TrunkMAC || w.VLAN != int(tc.plug.VLAN) || w.Bridge != "" {
			t.Errorf("plugged as %+v", w.Ref)
		}
		m.says(name, v1alpha1.NodePlugged)
		m.del(rec)
		m.says(name, v1alpha1.NodeUnplugged)
	}
}

// An ADD succeeds once OVN, or else the provider, reports that the port carries packets.
func TestAwait(t *testing.T) {
	m := newMachine(t)
	m.start()
	m.make(podNIC(1, 0, v1alpha1.PhaseBound))
	o := podNIC(2, 0, v1alpha1.PhaseBound)
	o.Status.Plug.OVN = false
	m.make(o)
	m.plugs.Active = make(chan struct{})
	var recs []attachment.Record
	for i := 1; i <= 2; i++ {
		nics, err := m.begin(requestWith(i, nil))()
		harness.OK(t, err)
		recs = append(recs, recordOf(i, nics...))
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		err = m.Await(ctx, recs[i-1])
		cancel()
		if why, ok := errors.AsType[*source.Exhausted](err); !ok || why.Reason != "not-active" || !strings.Contains(why.Message, portID(i, 0)) {
			t.Errorf("pod %d: %v", i, err)
		}
	}
	done := make(chan error, 1)
	go func() { done <- m.Await(t.Context(), recs[0]) }()
	m.waitsFor(1, "OVN's controller")
	close(m.plugs.Active)
	harness.OK(t, <-done)

	go func() { done <- m.Await(t.Context(), recs[1]) }()
	m.waitsFor(2, "phase Bound")
	m.say("pod2-eth0", func(s *v1alpha1.PodNICStatus) { s.Phase = v1alpha1.PhaseActive })
	harness.OK(t, <-done)
}

// eager is the machine's clock, by which it is soon time to look at Open vSwitch again.
type eager struct{ clock.Real }

// After implements clock.Clock.
func (c eager) After(d time.Duration) <-chan time.Time {
	if d == lookEvery {
		d = time.Millisecond
	}
	return c.Real.After(d)
}

// The node is ready once the API server and Open vSwitch have answered, and stays so.
func TestReady(t *testing.T) {
	m := newMachine(t)
	m.vswitch.err = fmt.Errorf("%w: br-int", plug.ErrNoBridge)
	m.tune = func(c *Config) { c.Clock = eager{} }
	m.start()
	src := NewNone(m.NICs)
	m.Until("Open vSwitch has no bridge", func() bool { err := src.Ready(); return errors.Is(err, plug.ErrNoBridge) }, func() string { return fmt.Sprint(src.Ready()) })
	m.vswitch.mu.Lock()
	m.vswitch.err = nil
	m.vswitch.mu.Unlock()
	m.Until("ready", func() bool { return src.Ready() == nil }, func() string { return fmt.Sprint(src.Ready()) })
	m.vswitch.mu.Lock()
	m.vswitch.err = plug.ErrUnreachable
	m.vswitch.mu.Unlock()
	m.Until("the condition", func() bool {
		c := m.snapshot().Conditions[0]
		return c.Type == conditionOVSDB && !c.Healthy && c.Reason == "Unreachable"
	}, func() string { return fmt.Sprint(m.snapshot().Conditions) })
	if err := src.Ready(); err != nil {
		t.Errorf("a node that was ready is not: %v", err)
	}
	select {
	case <-m.Drifted():
	default:
		t.Error("no check of the plugs is due")
	}
	var ports []string
	m.Until("all plugs are to be checked", func() bool { some, all := m.TakeDrift(); ports = append(ports, some...); return all }, func() string { return fmt.Sprint(ports) })
	if !slices.Equal(ports, []string{changedPort}) {
		t.Errorf("the plugs of %v are to be checked, want that of %s", ports, changedPort)
	}
}

// A PodNIC that went to another node is not written.
func TestNICOfAnotherNode(t *testing.T) {
	m := newMachine(t)
	m.start()
	m.make(podNIC(1, 0, v1alpha1.PhaseBound))
	rec := m.add(requestWith(1, nil), 1)
	m.says("pod1-eth0", v1alpha1.NodePlugged)
	m.say("pod1-eth0", func(s *v1alpha1.PodNICStatus) { s.NodeName = "node-2" })
	m.Until("it is no longer this node's", func() bool {
		m.NICs.mu.Lock()
		defer m.NICs.mu.Unlock()
		return len(m.observed.objects) == 0
	}, func() string { return "" })
	m.del(rec)
	m.make(podNIC(2, 0, v1alpha1.PhaseBound))
	m.add(requestWith(2, nil), 2)
	m.says("pod2-eth0", v1alpha1.NodePlugged)
	if got := m.nic("pod1-eth0").Status.Node; got.State != v1alpha1.NodePlugged {
		t.Errorf("another node's NIC was written: %+v", got)
	}
}
