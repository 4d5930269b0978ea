package nsveth

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/kernel/plug/plugtest"
	"github.com/berthnet/berth/internal/kernel/plug/podif"
	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// agent is the VPC's agent, which owns one end of each port's veth on the node.
type agent struct {
	t    testing.TB
	node *podif.Namespace
	vpc  *podif.Namespace
	name string // name of the VPC's namespace
}

var vpcs int

func newAgent(t testing.TB) *agent {
	vpcs++
	name := fmt.Sprintf("vpc-ns%d-%d", os.Getpid(), vpcs)
	return &agent{t: t, node: plugtest.Space(t, "node"), vpc: plugtest.NamedSpace(t, name), name: name}
}

// provision creates a port's veth like the agent, with one end configured in the VPC's namespace.
func (a *agent) provision(portID string, i plug.Interface) {
	a.t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = "peer"+portID[:plug.PrefixLen], i.MTU
	v := netlink.NewVeth(attrs)
	v.PeerName, v.PeerHardwareAddr, v.PeerMTU = "veth"+portID[:plug.PrefixLen], i.MAC, uint32(i.MTU)
	v.PeerNamespace = netlink.NsFd(a.vpc.NS)
	plugtest.Must(a.t, a.node.NL.LinkAdd(v))
	plugtest.Must(a.t, a.node.NL.LinkSetUp(v))
}

// want returns a port of the VPC that the agent has not made yet.
func (a *agent) want(attachment, portID string, pod *podif.Namespace) plug.Want {
	w := plugtest.Want(plug.Netns, attachment, portID, pod, a.t)
	w.Bridge, w.VPCNetns = "", a.name
	return w
}

// port returns a port for a new pod that the agent has made.
func (a *agent) port() (pod *podif.Namespace, w plug.Want) {
	a.t.Helper()
	pod = plugtest.Space(a.t, "pod")
	w = a.want(plugtest.One, plugtest.PortA, pod)
	a.provision(plugtest.PortA, w.Interface)
	return pod, w
}

func newPlugger(t testing.TB, o Options) *Plugger {
	t.Helper()
	p, err := New(o)
	plugtest.Must(t, err)
	return p
}

func TestContract(t *testing.T) {
	plugtest.Run(t, func(t *testing.T) plugtest.Fixture {
		a := newAgent(t)
		return plugtest.Fixture{
			Plugger: func() plug.Plugger { return newPlugger(t, Options{Wait: plugWait}) },
			Want: func(attachment, portID string, pod *podif.Namespace) plug.Want {
				w := a.want(attachment, portID, pod)
				a.provision(portID, w.Interface)
				return w
			},
			State: func() string { return plugtest.Describe(t, a.node) + "\n" + plugtest.Describe(t, a.vpc) },
			Keeps: true,
		}
	}, "plug.nsveth.")
}

// plugWait only bounds calls that hang.
const plugWait = MaxWait

// The VPC's namespace, and then the link, appear while a call waits for them.
func TestWaitsForTheAgent(t *testing.T) {
	for _, prefix := range []string{"vpc-ns", "vpc-ns-"} {
		t.Run(prefix, func(t *testing.T) {
			vpcs++
			id := fmt.Sprintf("late%d-%d", os.Getpid(), vpcs)
			pod := plugtest.Space(t, "pod")
			w := plugtest.Want(plug.Netns, plugtest.One, plugtest.PortA, pod, t)
			w.Bridge, w.VPCNetns = "", "vpc-ns"+id
			p, plugged := newPlugger(t, Options{Wait: plugWait}), make(chan error, 1)
			go func() { plugged <- expectAndPlug(t, p, w) }()
			still(t, plugged)
			a := &agent{t: t, node: plugtest.Space(t, "node"), vpc: plugtest.NamedSpace(t, prefix+id), name: w.VPCNetns}
			still(t, plugged)
			a.provision(plugtest.PortB, w.Interface)
			still(t, plugged)
			a.provision(plugtest.PortA, w.Interface)
			plugtest.Must(t, <-plugged)
			plugtest.Must(t, p.Check(plugtest.Bounded(t), w))
			plugtest.Must(t, p.Unplug(plugtest.Bounded(t), w.Ref))
			if plugtest.Link(t, a.vpc, LinkName(w.Ref)) == nil {
				t.Error("Unplug() did not move the link back under its old name")
			}
		})
	}
}

// expectAndPlug makes the calls of an ADD.
func expectAndPlug(t *testing.T, p *Plugger, w plug.Want) error {
	if err := p.Expect(plugtest.Bounded(t), w); err != nil {
		return err
	}
	_, err := p.Plug(plugtest.Bounded(t), w)
	return err
}

func still(t *testing.T, plugged <-chan error) {
	t.Helper()
	select {
	case err := <-plugged:
		t.Fatalf("Expect() returned before the link existed: %v", err)
	case <-time.After(2 * pollInterval): // so that Expect is waiting; a shorter time only weakens the test
	}
}

// A restarted agent replaces the VPC's namespace while a call waits in the old one.
func TestReplacedVPCNamespace(t *testing.T) {
	a, pod := newAgent(t), plugtest.Space(t, "pod")
	w := a.want(plugtest.One, plugtest.PortA, pod)
	p, plugged := newPlugger(t, Options{Wait: plugWait}), make(chan error, 1)
	go func() { plugged <- expectAndPlug(t, p, w) }()
	still(t, plugged)
	plugtest.Must(t, ns.Remove(a.name))
	a.vpc = plugtest.NamedSpace(t, a.name)
	a.provision(plugtest.PortA, w.Interface)
	plugtest.Must(t, <-plugged)
}

// In an unprivileged container, the sysctl folder is outside of /proc/sys.
func TestSysctlFolder(t *testing.T) {
	_, w := newAgent(t).port()
	dir, read := plugtest.Settings(t, "eth0")
	plugtest.Plugged(t, newPlugger(t, Options{Wait: plugWait, Sysctls: dir}), w)
	if got := read("eth0", "accept_ra"); got != "0" {
		t.Errorf("accept_ra in the configured folder = %q, want 0", got)
	}
}

func TestMissingLinkOrNamespace(t *testing.T) {
	a, pod := newAgent(t), plugtest.Space(t, "pod")
	w := a.want(plugtest.One, plugtest.PortA, pod)
	p := newPlugger(t, Options{Wait: 100 * time.Millisecond})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for name, try := range plugtest.Waits {
		err := try(plugtest.Bounded(t), p, w)
		if !errors.Is(err, plug.ErrNotReady) || !strings.Contains(err.Error(), "no veth3f2a9c10-76 in "+ns.Path(a.name)) {
			t.Errorf("%s() without the link: error = %v, want ErrNotReady with the missing link", name, err)
		}
		elsewhere := w
		elsewhere.VPCNetns = "vpc-nsnone"
		err = try(plugtest.Bounded(t), p, elsewhere)
		if !errors.Is(err, plug.ErrNotReady) || !strings.Contains(err.Error(), "no network namespace") || !strings.Contains(err.Error(), "vpc-ns-none") {
			t.Errorf("%s() without the namespace: error = %v, want ErrNotReady with the missing namespace", name, err)
		}
		if try(ctx, newPlugger(t, Options{Wait: plugWait}), w) == nil {
			t.Errorf("%s() with a cancelled context succeeded", name)
		}
	}
	plugtest.Must(t, p.Unplug(plugtest.Bounded(t), w.Ref))
}

// Settings of the agent that the provider does not report are kept, also across a crash between move and
// configuration.
func TestAgentSettingsAreKept(t *testing.T) {
	a := newAgent(t)
	pod, w := a.port()
	l := plugtest.Link(t, a.vpc, LinkName(w.Ref))
	plugtest.Must(t, a.vpc.NL.LinkSetUp(l))
	for _, p := range w.Interface.Addresses {
		plugtest.Must(t, a.vpc.NL.AddrAdd(l, &netlink.Addr{IPNet: rtnl.IPNet(p), Flags: 0x02}))
	}
	for _, g := range w.Interface.Gateways {
		plugtest.Must(t, a.vpc.NL.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Gw: g.AsSlice(), Dst: rtnl.IPNet(netip.PrefixFrom(rtnl.Unspecified(g), 0))}))
	}
	want := w.Interface
	want.Routes = nil
	w.Interface = plug.Interface{MAC: want.MAC, Default: true}
	mark, err := saveSettings(w, l, a.vpc)
	plugtest.Must(t, err)
	plugtest.Must(t, a.vpc.NL.LinkSetAlias(l, mark))
	plugtest.Must(t, a.vpc.Move(l.Attrs().Index, pod, "eth0"))
	plugtest.Plugged(t, newPlugger(t, Options{}), w)
	if found := plugtest.Differences(t, pod, "eth0", want); len(found) > 0 {
		t.Errorf("differences from the agent's settings: %q", found)
	}
}

// If the link cannot be moved back under its old name, Unplug removes it, and leaves the VPC's namespace as it is.
func TestUnplugWhenLinkCannotBeMovedBack(t *testing.T) {
	for name, tc := range map[string]struct {
		spoil func(*agent, plug.Want)
		now   Options
		left  int // number of links in the VPC's namespace, if it exists
	}{
		"namespace of the VPC removed": {spoil: func(a *agent, _ plug.Want) { plugtest.Must(a.t, ns.Remove(a.name)) }},
		"link created again by the agent": {left: 2, spoil: func(a *agent, w plug.Want) {
			plugtest.Must(a.t, plugtest.Veth(a.vpc, LinkName(w.Ref), "x0"))
		}},
		"prefixes of berthd changed": {spoil: func(*agent, plug.Want) {}, now: Options{Prefixes: []string{"tenant-"}}},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAgent(t)
			pod, w := a.port()
			plugtest.Plugged(t, newPlugger(t, Options{}), w)
			tc.spoil(a, w)
			for range 2 {
				plugtest.Must(t, newPlugger(t, tc.now).Unplug(plugtest.Bounded(t), w.Ref))
				if there, in := plugtest.Links(t, a.vpc), plugtest.Links(t, pod); len(there) != tc.left || len(in) > 0 {
					t.Errorf("links in the VPC's namespace = %v, in the pod = %v", there, in)
				}
			}
		})
	}
}

// Unplug clears the alias of a link that was never moved, even if the pod is gone.
func TestCrashBeforeTheMove(t *testing.T) {
	a := newAgent(t)
	pod, w := a.port()
	before := plugtest.Describe(t, a.vpc)
	ctx := plugtest.Bounded(t)
	plugtest.Dies(t, "plug.nsveth.mark.after", newPlugger(t, Options{}), w)
	list, err := newPlugger(t, Options{}).List(ctx)
	plugtest.Must(t, err)
	if len(list) != 1 || list[0].PortID != plugtest.PortA || list[0].VPCNetns != a.name {
		t.Errorf("List() = %+v, want port A with its namespace", list)
	}
	plugtest.Must(t, ns.Remove(filepath.Base(pod.Path)))
	plugtest.Must(t, newPlugger(t, Options{}).Unplug(ctx, w.Ref))
	if after := plugtest.Describe(t, a.vpc); after != before {
		t.Errorf("the VPC's namespace after Unplug():\n%s\nbefore:\n%s", after, before)
	}
}

// A name from the API selects only namespaces of VPCs, never those of pods, nor other files.
func TestOtherNamespacesAreNotEntered(t *testing.T) {
	pod, victim := plugtest.Space(t, "pod"), plugtest.Space(t, "victim")
	w := plugtest.Want(plug.Netns, plugtest.One, plugtest.PortA, pod, t)
	w.Bridge = ""
	plugtest.Must(t, plugtest.Veth(victim, LinkName(w.Ref), "x0"))
	for _, name := range []string{filepath.Base(victim.Path), "", "vpc-ns", "vpc-ns/../" + filepath.Base(victim.Path), "../netns/x", "."} {
		w.VPCNetns = name
		plugtest.Refused(t, newPlugger(t, Options{Wait: 100 * time.Millisecond}), w, plug.ErrInvalid)
	}
	if plugtest.Link(t, victim, LinkName(w.Ref)) == nil {
		t.Error("Plug() took a link of another namespace")
	}
}

func TestOptions(t *testing.T) {
	for _, o := range []Options{{Wait: -1}, {Wait: MaxWait + 1}, {Prefixes: []string{""}}, {Prefixes: []string{"a/b"}}} {
		if _, err := New(o); err == nil {
			t.Errorf("New(%+v) succeeded, want an error", o)
		}
	}
}
