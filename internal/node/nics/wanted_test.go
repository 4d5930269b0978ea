package nics

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/test/harness/sourcetest"
)

// known is a book with PodNICs of one pod, and what the pod's record has of them: all that
// are named, as they were at first.
func known(t *testing.T, has []string, list ...*v1alpha1.PodNIC) (*observed, attachment.Record) {
	t.Helper()
	b := newObserved()
	b.sync.SetListed(true, podNICs)
	rec := recordOf(1)
	for _, o := range list {
		o.UID = types.UID("uid-" + o.Name)
		b.put(read(o, []string{"br-int"}, onlyPorts))
		if slices.Contains(has, o.Status.Interface) {
			n := b.objects[types.NamespacedName{Namespace: o.Namespace, Name: o.Name}].nic
			n.DefaultRoute = n.IfName == "eth0"
			rec.NICs = append(rec.NICs, n)
		}
	}
	rec.State = attachment.Ready
	return b, rec
}

// become has a PodNIC of pod 1 say something else.
func (b *observed) become(k int, change func(*v1alpha1.PodNIC)) { //nolint:staticcheck // o is the PodNIC here
	o := podNIC(1, k, v1alpha1.PhaseActive)
	o.UID = types.UID("uid-" + o.Name)
	change(o)
	b.put(read(o, []string{"br-int"}, onlyPorts))
}

// Which NICs a running pod is to have, by what its PodNICs say after it began with eth0 and
// eth1: names with what is to be done, + to plug, ~ to change.
func TestDesiredNICs(t *testing.T) {
	other := portID(9, 9)
	status := func(change func(*v1alpha1.PodNICStatus)) func(*v1alpha1.PodNIC) {
		return func(o *v1alpha1.PodNIC) { change(&o.Status) }
	}
	in := func(p v1alpha1.PodNICPhase) func(*v1alpha1.PodNIC) {
		return status(func(s *v1alpha1.PodNICStatus) { s.Phase = p })
	}
	going := func(o *v1alpha1.PodNIC) { o.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} }
	made := func(o *v1alpha1.PodNIC) { o.UID += "-2" }
	at := func(cidrs ...string) func(*v1alpha1.PodNIC) {
		return status(func(s *v1alpha1.PodNICStatus) {
			s.Addresses = nil
			for _, c := range cidrs {
				s.Addresses = append(s.Addresses, v1alpha1.PortAddress{CIDR: c})
			}
		})
	}
	for name, c := range map[string]struct {
		k      int
		change func(*v1alpha1.PodNIC) // of PodNIC k; nil: none
		more   func(b *observed, rec *attachment.Record)
		want   string // empty: nothing is to be done
	}{
		"as it was":                   {},
		"another":                     {k: 2, change: func(*v1alpha1.PodNIC) {}, want: "eth0 eth1 eth2+"},
		"another that is not bound":   {k: 2, change: in(v1alpha1.PhaseCreated)},
		"another that makes no sense": {k: 2, change: status(func(s *v1alpha1.PodNICStatus) { s.MAC = "x" })},
		"another that goes already":   {k: 2, change: going},
		"given up":                    {k: 1, change: going, want: "eth0"},
		"a user's, given up":          {k: 1, change: in(v1alpha1.PhaseReleasing), want: "eth0"},
		"the first, given up":         {k: 0, change: going},
		"gone": {more: func(b *observed, _ *attachment.Record) {
			b.drop(types.NamespacedName{Namespace: namespace, Name: "pod1-eth1"}, "")
		}, want: "eth0"},
		"the first, gone": {more: func(b *observed, _ *attachment.Record) {
			b.drop(types.NamespacedName{Namespace: namespace, Name: "pod1-eth0"}, "")
		}},
		"with the default route, given up": {k: 1, change: going, more: func(_ *observed, rec *attachment.Record) { rec.NICs[1].DefaultRoute = true }},
		"nothing was listed":               {k: 1, change: going, more: func(b *observed, _ *attachment.Record) { b.sync.SetListed(false, podNICs) }},
		"a pod without UID":                {k: 1, change: going, more: func(_ *observed, rec *attachment.Record) { rec.Pod.UID = "" }},
		"bound anew":                       {k: 1, change: in(v1alpha1.PhaseCreated)},
		"the port made again":              {k: 1, change: status(func(s *v1alpha1.PodNICStatus) { s.PortID = other }), want: "eth0 eth1+"},
		"the first port made again":        {k: 0, change: status(func(s *v1alpha1.PodNICStatus) { s.PortID = other }), want: "eth0+ eth1"},
		"the PodNIC made again":            {k: 1, change: made, want: "eth0 eth1+"},
		"plugged otherwise":                {k: 1, change: status(func(s *v1alpha1.PodNICStatus) { s.Plug.Type = v1alpha1.PlugOVSHybrid }), want: "eth0 eth1+"},
		"another name":                     {k: 1, change: status(func(s *v1alpha1.PodNICStatus) { s.Interface = "net1" }), want: "eth0 net1+"},
		"another address":                  {k: 1, change: at("192.168.1.99/24"), want: "eth0 eth1~"},
		"another MAC address":              {k: 1, change: status(func(s *v1alpha1.PodNICStatus) { s.MAC = "fa:16:3e:00:00:99" }), want: "eth0 eth1~"},
		"another MTU":                      {k: 0, change: status(func(s *v1alpha1.PodNICStatus) { s.MTU = 1500 }), want: "eth0~ eth1"},
		"the first, another address":       {k: 0, change: at("192.168.0.99/24")},
		"the first, a further address":     {k: 0, change: at("192.168.0.99/24", "192.168.0.11/24"), want: "eth0~ eth1"},
		"the default route":                {k: 1, change: status(func(s *v1alpha1.PodNICStatus) { s.DefaultRoute = true })},
		"two of a name":                    {k: 2, change: status(func(s *v1alpha1.PodNICStatus) { s.Interface = "eth1" })},
		"unfinished":                       {more: func(_ *observed, rec *attachment.Record) { rec.NICs[1].State = attachment.Plugging }, want: "eth0 eth1+"},
		"unfinished, and not bound":        {k: 1, change: in(v1alpha1.PhaseCreated), more: func(_ *observed, rec *attachment.Record) { rec.NICs[1].State = attachment.Plugging }},
		"unfinished, and given up":         {k: 1, change: going, more: func(_ *observed, rec *attachment.Record) { rec.NICs[1].State = attachment.Plugging }, want: "eth0"},
		"unfinished change":                {more: func(_ *observed, rec *attachment.Record) { rec.NICs[1].State = attachment.Changing }, want: "eth0 eth1~"},
	} {
		t.Run(name, func(t *testing.T) {
			b, rec := known(t, []string{"eth0", "eth1"}, podNIC(1, 0, v1alpha1.PhaseActive), podNIC(1, 1, v1alpha1.PhaseActive))
			if c.change != nil {
				b.become(c.k, c.change)
			}
			if c.more != nil {
				c.more(b, &rec)
			}
			nics, differ := b.desired(onlyPorts, rec)
			var got []string
			for _, n := range nics {
				got = append(got, n.IfName+map[attachment.NICState]string{attachment.Plugging: "+", attachment.Changing: "~"}[n.State])
			}
			if differ != (c.want != "") || differ && strings.Join(got, " ") != c.want {
				t.Errorf("differs: %v, %v; want %q", differ, got, c.want)
			}
			for _, n := range nics {
				if n.DefaultRoute != (n.IfName == "eth0") && name != "with the default route, given up" {
					t.Errorf("%s has the default route: %v", n.IfName, n.DefaultRoute)
				}
			}
		})
	}
}

// A branch that is associated anew, with another VLAN or trunk, is changed under its pod, whether
// a machine has it or not.
func TestDesiredBranch(t *testing.T) {
	for _, binding := range []v1alpha1.NICBinding{"", v1alpha1.BindingTap} {
		of := func(k int, trunk string, vlan int32) func(*v1alpha1.PodNIC) {
			return func(o *v1alpha1.PodNIC) {
				onTrunk(trunk, vlan+int32(k))(o)
				o.Spec.Binding = binding
			}
		}
		first, further := podNIC(1, 0, v1alpha1.PhaseActive), podNIC(1, 1, v1alpha1.PhaseActive)
		of(0, "0a:ff:ff:00:00:01", 7)(first)
		of(1, "0a:ff:ff:00:00:01", 7)(further)
		b, rec := known(t, []string{"eth0", "eth1"}, first, further)
		if nics, differ := b.desired(onlyPorts, rec); differ {
			t.Errorf("as it was it is to be %+v", nics)
		}
		for k := range 2 {
			for _, change := range []func(*v1alpha1.PodNIC){of(k, "0a:ff:ff:00:00:01", 9), of(k, "0a:ff:ff:00:00:02", 7)} {
				b.become(k, change)
				nics, differ := b.desired(onlyPorts, rec)
				o := b.of(rec.Pod)[k]
				if !differ || len(nics) != 2 || nics[k].State != attachment.Changing || nics[k].Plug != o.nic.Plug || nics[k].Plug == rec.NICs[k].Plug || nics[1-k].State != attachment.Plugged {
					t.Errorf("%q, %+v: is to be %+v", binding, o.nic.Plug, nics)
				}
				b.become(k, of(k, "0a:ff:ff:00:00:01", 7))
			}
		}
	}
}

// A first interface that is a branch keeps the mode that it was plugged with, whatever the
// settings are by now, also where its VLAN is another or its port was made again.
func TestDesiredFirstBranch(t *testing.T) {
	standard := rules{firstMayBeBranch: true, enforcing: plug.Standard}
	of := func(trunk string, vlan int32, change func(*v1alpha1.PodNIC)) *v1alpha1.PodNIC {
		o := podNIC(1, 0, v1alpha1.PhaseActive)
		o.UID = "uid-1"
		onTrunk(trunk, vlan)(o)
		change(o)
		return o
	}
	as := func(*v1alpha1.PodNIC) {}
	b := newObserved()
	b.sync.SetListed(true, podNICs)
	b.put(read(of("0a:ff:ff:00:00:01", 7, as), nil, ofENIs))
	rec := recordOf(1, b.of(recordOf(1).Pod)[0].nic)
	rec.State, rec.NICs[0].DefaultRoute, rec.NICs[0].HostLink = attachment.Ready, true, rec.HostLink
	for name, c := range map[string]struct {
		rules rules
		o     *v1alpha1.PodNIC
		want  attachment.NICState
	}{
		"as it was":           {ofENIs, of("0a:ff:ff:00:00:01", 7, as), attachment.Plugged},
		"another mode":        {standard, of("0a:ff:ff:00:00:01", 7, as), attachment.Plugged},
		"another VLAN":        {standard, of("0a:ff:ff:00:00:01", 9, as), attachment.Changing},
		"another trunk":       {standard, of("0a:ff:ff:00:00:02", 7, as), attachment.Changing},
		"the port made again": {standard, of("0a:ff:ff:00:00:01", 7, func(o *v1alpha1.PodNIC) { o.Status.PortID = portID(9, 9) }), attachment.Plugging},
		"the PodNIC goes":     {standard, of("0a:ff:ff:00:00:01", 7, func(o *v1alpha1.PodNIC) { o.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} }), attachment.Plugged},
		"an address of IPv6 too": {ofENIs, of("0a:ff:ff:00:00:01", 7, func(o *v1alpha1.PodNIC) {
			o.Status.Addresses = append(o.Status.Addresses, v1alpha1.PortAddress{CIDR: "2001:db8::9/64", Gateway: "fe80:ec2::1"})
		}), attachment.Changing},
		"IPv6 in the place of IPv4, and another VLAN": {ofENIs, of("0a:ff:ff:00:00:01", 9, func(o *v1alpha1.PodNIC) {
			o.Status.Addresses = []v1alpha1.PortAddress{{CIDR: "2001:db8::9/64", Gateway: "fe80:ec2::1"}}
		}), attachment.Changing},
		"IPv6 in the place of IPv4": {ofENIs, of("0a:ff:ff:00:00:01", 7, func(o *v1alpha1.PodNIC) {
			o.Status.Addresses = []v1alpha1.PortAddress{{CIDR: "2001:db8::9/64", Gateway: "fe80:ec2::1"}}
		}), attachment.Plugged},
		"no branch may be here": {rules{}, of("0a:ff:ff:00:00:01", 7, as), attachment.Plugged},
	} {
		t.Run(name, func(t *testing.T) {
			b.put(read(c.o, nil, c.rules))
			nics, differ := b.desired(c.rules, rec)
			if differ != (c.want != attachment.Plugged) || len(nics) != 1 || nics[0].State != c.want || nics[0].Plug.Enforcing != string(plug.Strict) || !nics[0].DefaultRoute || nics[0].Plug.Type != string(plug.RoutedVLAN) {
				t.Errorf("differs: %v, %+v", differ, nics)
			}
		})
	}
}

// Beside another source the pod's first interface is no NIC; interfaces that others add
// later have none.
func TestDesiredNICsBesideAnotherSource(t *testing.T) {
	b, rec := known(t, nil, podNIC(1, 1, v1alpha1.PhaseBound))
	rec.Lease = attachment.Lease{IPv4: netip.MustParseAddr("10.0.0.5")}
	if nics, differ := b.desired(rules{}, rec); !differ || len(nics) != 1 || nics[0].IfName != "eth1" || nics[0].State != attachment.Plugging || !nics[0].Later {
		t.Errorf("%v, %+v", differ, nics)
	}
	rec.Key.IfName = "net1"
	if nics, differ := b.desired(rules{}, rec); differ {
		t.Errorf("an interface that was added later is to have %+v", nics)
	}
	rec.Key.IfName = "eth0"
	b.become(0, func(*v1alpha1.PodNIC) {}) // of the name of the first interface
	if nics, _ := b.desired(rules{}, rec); len(nics) != 1 {
		t.Errorf("is to have %+v", nics)
	}
	rec.Pod.UID = sourcetest.Request(2).Pod.UID
	if nics, differ := b.desired(rules{}, rec); differ {
		t.Errorf("another pod is to have %+v", nics)
	}
}

// A NIC that is plugged and not as its port is, and one that cannot be plugged.
func TestStatusOfAChangedNIC(t *testing.T) {
	b, rec := known(t, []string{"eth0", "eth1"}, podNIC(1, 0, v1alpha1.PhaseActive), podNIC(1, 1, v1alpha1.PhaseActive))
	for _, n := range rec.NICs {
		b.plugged[n.UID] = held{rec, n}
	}
	says := func(k int) *v1alpha1.PodNICNode {
		return b.state(b.of(rec.Pod)[k], true, time.Unix(1, 0))
	}
	if s := says(0); s == nil || s.State != v1alpha1.NodePlugged || s.Reason != "" {
		t.Errorf("%+v", s)
	}
	b.become(0, func(o *v1alpha1.PodNIC) { o.Status.Addresses[0].CIDR = "192.168.0.99/24" })
	if s := says(0); s == nil || s.State != v1alpha1.NodePlugged || s.Reason != reasonMoved || !strings.Contains(s.Message, "has 192.168.0.99/24 now, and eth0 of the running pod 192.168.0.11/24") {
		t.Errorf("%+v", s)
	}
	f := failureOf(fmt.Errorf("plug: %w", plug.ErrInterfaceExists), reasonPlug)
	f.pod, f.port = rec.Pod.UID, rec.NICs[1].Port
	b.failed[rec.NICs[1].UID] = f
	if s := says(1); s == nil || s.State != v1alpha1.NodePlugged || s.Reason != "InterfaceExists" || !strings.Contains(s.Message, "remove that interface") {
		t.Errorf("%+v", s)
	}
	delete(b.plugged, rec.NICs[1].UID)
	if s := says(1); s == nil || s.State != v1alpha1.NodeFailed || s.Reason != "InterfaceExists" {
		t.Errorf("%+v", s)
	}
}

// A machine in the pod has the addresses and the MAC address that there were when it began:
// nothing is changed below it, and the node says that the port is another by now.
func TestMachineKeepsItsPort(t *testing.T) {
	for _, binding := range []v1alpha1.NICBinding{v1alpha1.BindingBridge, v1alpha1.BindingTap} {
		first, further := podNIC(1, 0, v1alpha1.PhaseActive), podNIC(1, 1, v1alpha1.PhaseActive)
		further.Spec.Binding = binding
		b, rec := known(t, []string{"eth0", "eth1"}, first, further)
		for _, n := range rec.NICs {
			b.plugged[n.UID] = held{rec, n}
		}
		for what, change := range map[string]func(*v1alpha1.PodNICStatus){
			"192.168.1.99/24":   func(s *v1alpha1.PodNICStatus) { s.Addresses[0].CIDR = "192.168.1.99/24" },
			"fa:16:3e:00:00:99": func(s *v1alpha1.PodNICStatus) { s.MAC = "fa:16:3e:00:00:99" },
		} {
			b.become(1, func(o *v1alpha1.PodNIC) {
				o.Spec.Binding = binding
				change(&o.Status)
			})
			if nics, differ := b.desired(onlyPorts, rec); differ {
				t.Errorf("%s, %s: is to be changed to %+v", binding, what, nics)
			}
			s := b.state(b.of(rec.Pod)[1], true, time.Unix(1, 0))
			if s == nil || s.State != v1alpha1.NodePlugged || s.Reason != reasonMoved || !strings.Contains(s.Message, what) || !strings.Contains(s.Message, "virtual machine") {
				t.Errorf("%s, %s: the node says %+v", binding, what, s)
			}
			starting := rec
			starting.NICs = slices.Clone(rec.NICs)
			starting.NICs[1].State = attachment.Plugging // no machine has it yet
			if nics, differ := b.desired(onlyPorts, starting); !differ || alike(nics[1], rec.NICs[1]) {
				t.Errorf("%s, %s: before it is plugged it is to be %+v", binding, what, nics)
			}
		}
	}
}

// Each failure has a reason, and words for what to do.
func TestReasonsOfFailures(t *testing.T) {
	for _, err := range []error{
		plug.ErrInvalid, plug.ErrInterfaceExists, plug.ErrNameTaken, plug.ErrPortInUse, plug.ErrDefaultRoute,
		plug.ErrNoBridge, plug.ErrUnreachable, plug.ErrNotReady, plug.ErrNoTun, plug.ErrNoVLAN,
	} {
		if f := failureOf(fmt.Errorf("plug: %w", err), reasonPlug); f.reason == reasonPlug || !strings.HasSuffix(f.message, "; it is retried") {
			t.Errorf("%v: %+v", err, f)
		}
	}
}
