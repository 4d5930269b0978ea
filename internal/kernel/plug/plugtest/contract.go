package plugtest

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/kernel/plug/podif"
	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// Fixture is a node that can plug ports of one kind.
type Fixture struct {
	// Plugger opens a Plugger without the state of earlier ones, as after a restart.
	Plugger func() plug.Plugger
	// Want returns a port for a pod, after creating what else the port needs, such as an agent's
	// link.
	Want func(attachment, portID string, pod *podif.Namespace) plug.Want
	// State describes what ports leave outside of pods, as comparable text.
	State func() string
	// Keeps reports that the links belong to another program: Unplug returns them to it, and they
	// disappear with the pod.
	Keeps bool
}

// Bounded returns a context that ends calls that hang.
func Bounded(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// Attachments for tests.
const (
	One = "bthaaaaaaaaaaaa"
	Two = "bthbbbbbbbbbbbb"
)

// Run tests the contract of plug.Plugger for one kind. points are prefixes of the failpoints in its
// Plug and Unplug.
func Run(t *testing.T, open func(t *testing.T) Fixture, points ...string) {
	for _, c := range []struct {
		name string
		test func(*testing.T, Fixture)
	}{
		{"PlugIsIdempotent", plugIsIdempotent},
		{"UnplugIsIdempotent", unplugIsIdempotent},
		{"UnplugAfterThePod", unplugAfterThePod},
		{"UnplugOfOthers", unplugOfOthers},
		{"OthersInterfaceInThePod", othersInterface},
		{"NamespaceThatLeadsElsewhere", elsewhere},
		{"CheckNamesWhatIsWrong", checkNames},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, open(t)) })
	}
	for _, name := range failpoint.Names() {
		if !slices.ContainsFunc(points, func(p string) bool { return strings.HasPrefix(name, p) }) {
			continue
		}
		t.Run("Crash/"+name, func(t *testing.T) {
			for hit := 1; ; hit++ { // each time that the call passes the failpoint
				passed := crash(t, open(t), fmt.Sprintf("%s=error@%d", name, hit))
				if !passed && hit == 1 {
					t.Error("neither Plug nor Unplug passes the failpoint")
				}
				if !passed || t.Failed() {
					return
				}
			}
		})
	}
}

func plugIsIdempotent(t *testing.T, f Fixture) {
	ctx, pod := Bounded(t), Space(t, "pod")
	w := f.Want(One, PortA, pod)
	var first plug.Done
	for n, p := range []plug.Plugger{f.Plugger(), f.Plugger()} {
		for again := range 2 {
			d, err := p.Plug(ctx, w)
			Must(t, err)
			Must(t, p.Check(ctx, w))
			if n+again == 0 {
				first = d
			}
			if d.HostIfName != first.HostIfName || d.HostMAC.String() != first.HostMAC.String() || d.MTU != first.MTU {
				t.Errorf("Plug again: %+v, at first %+v", d, first)
			}
		}
	}
	Must(t, f.Plugger().Unplug(ctx, w.Ref))
}

func unplugIsIdempotent(t *testing.T, f Fixture) {
	ctx, pod := Bounded(t), Space(t, "pod")
	w := f.Want(One, PortA, pod)
	before, p := f.State(), f.Plugger()
	Must(t, p.Unplug(ctx, w.Ref)) // unknown port
	same(t, f, before, "Unplug of what was never plugged")
	Plugged(t, p, w)
	for range 2 {
		Must(t, p.Unplug(ctx, w.Ref))
		same(t, f, before, "Plug and Unplug")
		if got := Links(t, pod); len(got) > 0 {
			t.Errorf("left in the pod: %v", got)
		}
		rulesOfPod(t, pod)
	}
	Plugged(t, p, w) // plug it again
	Must(t, p.Unplug(ctx, w.Ref))
}

// rulesOfPod fails the test if source rules are left in the pod.
func rulesOfPod(t *testing.T, pod *podif.Namespace) {
	t.Helper()
	for _, family := range []int{2, 10} {
		rules, err := pod.NL.RuleList(family)
		Must(t, err)
		for _, r := range rules {
			if r.Priority == rtnl.LaterMetric {
				t.Errorf("left in the pod: %s", r)
			}
		}
	}
}

func same(t *testing.T, f Fixture, before, what string) {
	t.Helper()
	if now := f.State(); now != before {
		t.Errorf("after %s:\n%s\nbefore:\n%s", what, now, before)
	}
}

func unplugAfterThePod(t *testing.T, f Fixture) {
	ctx := Bounded(t)
	pod := Space(t, "pod")
	w, p := f.Want(One, PortA, pod), f.Plugger()
	before := f.State()
	Plugged(t, p, w)
	Must(t, ns.Remove(filepath.Base(pod.Path)))
	for range 2 {
		Must(t, p.Unplug(ctx, w.Ref))
	}
	if !f.Keeps {
		same(t, f, before, "the pod's end and Unplug")
	}
	Refused(t, p, w, rtnl.ErrNoNetns)
	Must(t, p.Unplug(ctx, w.Ref))
}

// Calls about another port with the same ID prefix, or for another attachment, change nothing.
func unplugOfOthers(t *testing.T, f Fixture) {
	ctx, pod, other := Bounded(t), Space(t, "pod"), Space(t, "other")
	w, p := f.Want(One, PortA, pod), f.Plugger()
	Plugged(t, p, w)
	plugged := f.State()
	for _, foreign := range []struct {
		attachment, port string
		err              error
	}{
		{One, PortA2, plug.ErrNameTaken}, {Two, PortA2, plug.ErrNameTaken}, {Two, PortA, plug.ErrPortInUse},
	} {
		o := w
		o.Attachment, o.PortID, o.Pod.Netns, o.Pod.NetnsID = foreign.attachment, foreign.port, other.Path, ID(t, other)
		if !f.Keeps {
			Refused(t, p, o, foreign.err)
		}
		Must(t, p.Unplug(ctx, o.Ref))
		o.Pod = w.Pod // and in the pod that has the port
		Must(t, p.Unplug(ctx, o.Ref))
		same(t, f, plugged, "calls about another's port")
		Must(t, p.Check(ctx, w))
	}
	Must(t, p.Unplug(ctx, w.Ref))
}

func othersInterface(t *testing.T, f Fixture) {
	ctx, pod := Bounded(t), Space(t, "pod")
	w, p := f.Want(One, PortA, pod), f.Plugger()
	before := f.State()
	Must(t, Veth(pod, w.Pod.IfName, "x0"))
	Refused(t, p, w, plug.ErrInterfaceExists)
	Must(t, p.Unplug(ctx, w.Ref))
	if l := Link(t, pod, w.Pod.IfName); l == nil {
		t.Error("Unplug removed another's interface")
	}
	same(t, f, before, "a refused Plug and Unplug")
}

func elsewhere(t *testing.T, f Fixture) {
	ctx, pod, other := Bounded(t), Space(t, "pod"), Space(t, "other")
	w, p := f.Want(One, PortA, pod), f.Plugger()
	w.Pod.NetnsID = ID(t, other)
	Refused(t, p, w, rtnl.ErrNoNetns)
	if got := Links(t, pod); len(got) > 0 {
		t.Errorf("made in the wrong namespace: %v", got)
	}
	Must(t, p.Unplug(ctx, w.Ref))
}

func checkNames(t *testing.T, f Fixture) {
	ctx, pod := Bounded(t), Space(t, "pod")
	w, p := f.Want(One, PortA, pod), f.Plugger()
	Differs(t, p, w)
	Plugged(t, p, w)
	if w.Binding == plug.BindingBridge { // a VM runtime owns the end in the pod
		Must(t, p.Unplug(ctx, w.Ref))
		return
	}
	l := Link(t, pod, w.Pod.IfName)
	type spoiled struct {
		says  string
		spoil func() error
	}
	cases := []spoiled{
		{"is down in the pod", func() error { return pod.NL.LinkSetDown(l) }},
		{"has MTU 1300", func() error { return pod.NL.LinkSetMTU(l, 1300) }},
		{"has MAC address", func() error { return pod.NL.LinkSetHardwareAddr(l, []byte{2, 0, 0, 0, 0, 9}) }},
	}
	if w.Binding == "" { // a machine has the addresses itself
		cases = append(cases, spoiled{"rule for packets from " + w.Interface.Addresses[0].Addr().String(), func() error { return pod.Forget(l.Attrs().Index) }})
	}
	for _, tc := range cases {
		Must(t, tc.spoil())
		Differs(t, p, w, tc.says)
		Plugged(t, p, w)
	}
	Must(t, p.Unplug(ctx, w.Ref))
}

// crash interrupts Plug or Unplug at a failpoint and continues with a new Plugger in each possible
// way: with the same call, with the opposite call, and without a record. passed reports whether
// either call reached the failpoint.
func crash(t *testing.T, f Fixture, spec string) (passed bool) {
	t.Helper()
	ctx := Bounded(t)
	pod := Space(t, "pod")
	w := f.Want(One, PortA, pod)
	before := f.State()
	armed := func(call func() error) bool { t.Helper(); return Crash(t, spec, call) }
	doPlug := func() error { _, err := f.Plugger().Plug(ctx, w); return err }
	unplug := func() error { return f.Plugger().Unplug(ctx, w.Ref) }

	hit := armed(doPlug)
	Plugged(t, f.Plugger(), w) // interrupted Plug, repeated
	hit = armed(unplug) || hit
	Must(t, unplug()) // interrupted Unplug, repeated
	same(t, f, before, "a crash in Unplug, and Unplug")
	armed(doPlug)
	Must(t, unplug()) // interrupted Plug, undone
	same(t, f, before, "a crash in Plug, and Unplug")
	if got := Links(t, pod); len(got) > 0 {
		t.Errorf("left in the pod: %v", got)
	}
	armed(doPlug)
	swept(t, f, before) // interrupted Plug without a record
	Must(t, unplug())
	Must(t, doPlug())
	armed(unplug)
	Plugged(t, f.Plugger(), w) // interrupted Unplug, plugged again
	Must(t, unplug())
	armed(doPlug)
	Must(t, ns.Remove(filepath.Base(pod.Path)))
	Must(t, unplug()) // interrupted Plug, pod deleted
	if !f.Keeps {
		same(t, f, before, "a crash in Plug, the pod's end, and Unplug")
	}
	return hit
}

// swept removes everything that List finds.
func swept(t *testing.T, f Fixture, before string) {
	t.Helper()
	ctx, p := Bounded(t), f.Plugger()
	list, err := p.List(ctx)
	Must(t, err)
	for _, found := range list {
		if !found.HalfMade && (found.PortID != PortA || found.Attachment != One) {
			t.Errorf("List found %+v", found)
		}
		Must(t, p.Remove(ctx, found))
	}
	if !f.Keeps {
		same(t, f, before, "a crash in Plug, and Remove of all that List found")
	}
}
