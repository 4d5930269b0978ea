package ovs_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/kernel/plug/ovs"
	"github.com/berthnet/berth/internal/kernel/plug/plugtest"
	"github.com/berthnet/berth/internal/kernel/plug/podif"
	"github.com/berthnet/berth/lab/network/guest"
)

// open returns a node with an OVSDB server.
func open(t *testing.T) plugtest.Fixture {
	node, server := plugtest.Space(t, "node"), plugtest.NewServer(t)
	return plugtest.Fixture{
		Plugger: func() plug.Plugger {
			p, err := ovs.New(ovs.Options{Netns: node.Path, OVSDB: server.Client()})
			plugtest.Must(t, err)
			t.Cleanup(p.Close)
			return p
		},
		Want: func(attachment, portID string, pod *podif.Namespace) plug.Want {
			return plugtest.Want(plug.OVS, attachment, portID, pod, t)
		},
		State: func() string { return plugtest.Describe(t, node) + "\n" + fmt.Sprint(server.Interfaces()) },
	}
}

func TestContract(t *testing.T) {
	t.Run("container", func(t *testing.T) { plugtest.Run(t, open, "plug.ovs.", "plug.link.") })
	t.Run("bridge", func(t *testing.T) { plugtest.Run(t, openForMachines, "plug.bridge.") })
}

// openForMachines is open for ports with the bridge binding.
func openForMachines(t *testing.T) plugtest.Fixture {
	f := open(t)
	want := f.Want
	f.Want = func(attachment, portID string, pod *podif.Namespace) plug.Want {
		w := want(attachment, portID, pod)
		w.Binding = plug.BindingBridge
		return w
	}
	return f
}

// Check and Plug keep the changes of a VM runtime. If the node's end is gone, Plug does not replace
// the interface that the runtime took over.
func TestInterfaceOfAMachine(t *testing.T) {
	f, pod, ctx := openForMachines(t), plugtest.Space(t, "pod"), plugtest.Bounded(t)
	w, before := f.Want(plugtest.One, plugtest.PortA, pod), f.State()
	plugtest.Plugged(t, f.Plugger(), w)
	g, err := guest.Start(pod.Path, filepath.Base(pod.Path)+"-vm", []guest.NIC{{Name: "eth0", MAC: w.Interface.MAC, Addrs: w.Interface.Addresses}})
	plugtest.Must(t, err)
	defer func() { plugtest.Must(t, g.Close()) }()
	taken := plugtest.Describe(t, pod)
	for range 2 {
		plugtest.Must(t, f.Plugger().Check(ctx, w))
		plugtest.Plugged(t, f.Plugger(), w)
		if got := plugtest.Describe(t, pod); got != taken {
			t.Errorf("the pod has\n%s\nafter its machine's runtime left it with\n%s", got, taken)
		}
	}
	plugtest.Must(t, pod.NL.LinkDel(plugtest.Link(t, pod, "eth0-nic")))
	plugtest.Differs(t, f.Plugger(), w)
	plugtest.Refused(t, f.Plugger(), w, plug.ErrInterfaceExists, "recreate the pod")
	plugtest.Must(t, f.Plugger().Unplug(ctx, w.Ref))
	if got := f.State(); got != before {
		t.Errorf("left: %s\nbefore: %s", got, before)
	}
}

// Concurrent calls, also about the same port, leave the result of the last call for each port.
func TestManyAtOnce(t *testing.T) {
	f := open(t)
	p, ctx, before := f.Plugger(), plugtest.Bounded(t), f.State()
	var wants []plug.Want
	for n := range 12 {
		w := f.Want(plugtest.One, fmt.Sprintf("%08x-1111-4000-8000-000000000001", n), plugtest.Space(t, "pod"))
		w.Attachment = fmt.Sprintf("bth%012d", n)
		wants = append(wants, w)
	}
	each := func(call func(plug.Want) error) {
		t.Helper()
		var group errgroup.Group
		for _, w := range wants {
			for range 3 {
				group.Go(func() error { return call(w) })
			}
		}
		plugtest.Must(t, group.Wait())
	}
	each(func(w plug.Want) error { _, err := p.Plug(ctx, w); return err })
	each(func(w plug.Want) error { return p.Check(ctx, w) })
	list, err := p.List(ctx)
	plugtest.Must(t, err)
	if len(list) != len(wants) {
		t.Errorf("List: %d ports, want %d", len(list), len(wants))
	}
	each(func(w plug.Want) error { return p.Unplug(ctx, w.Ref) })
	if after := f.State(); after != before {
		t.Errorf("left behind:\n%s", after)
	}
}

// Without OVSDB, Plug creates nothing. Unplug removes the links and fails, so that it is called
// again.
func TestWithoutOVSDB(t *testing.T) {
	node, server, pod := plugtest.Space(t, "node"), plugtest.NewServer(t), plugtest.Space(t, "pod")
	p, err := ovs.New(ovs.Options{Netns: node.Path, OVSDB: server.Client()})
	plugtest.Must(t, err)
	t.Cleanup(p.Close)
	w := plugtest.Want(plug.OVS, plugtest.One, plugtest.PortA, pod, t)
	plugtest.Plugged(t, p, w)
	server.Stop()
	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := p.Unplug(short, w.Ref); !errors.Is(err, plug.ErrUnreachable) {
		t.Errorf("Unplug: %v, want %v", err, plug.ErrUnreachable)
	}
	if got := append(plugtest.Links(t, node), plugtest.Links(t, pod)...); len(got) > 0 {
		t.Errorf("links are left: %v", got)
	}
	if _, err := p.Plug(short, w); !errors.Is(err, plug.ErrUnreachable) {
		t.Errorf("Plug: %v, want %v", err, plug.ErrUnreachable)
	}
	if got := append(plugtest.Links(t, node), plugtest.Links(t, pod)...); len(got) > 0 {
		t.Errorf("links were made: %v", got)
	}
}

// If OVSDB is no longer configured, Plug fails and Unplug removes the links. The row is removed
// once OVSDB is configured again.
func TestOVSDBConfiguredNoMore(t *testing.T) {
	node, server, pod := plugtest.Space(t, "node"), plugtest.NewServer(t), plugtest.Space(t, "pod")
	var logged bytes.Buffer
	open := func(o ovs.Options) plug.Plugger {
		o.Netns, o.Logger = node.Path, slog.New(slog.NewTextHandler(&logged, nil))
		p, err := ovs.New(o)
		plugtest.Must(t, err)
		t.Cleanup(p.Close)
		return p
	}
	with, without, ctx := open(ovs.Options{OVSDB: server.Client()}), open(ovs.Options{}), plugtest.Bounded(t)
	w := plugtest.Want(plug.OVS, plugtest.One, plugtest.PortA, pod, t)
	plugtest.Plugged(t, with, w)
	list, err := without.List(ctx)
	plugtest.Must(t, err)
	if len(list) != 1 || list[0].PortID != w.PortID {
		t.Errorf("List: %+v", list)
	}
	_, err = without.Plug(ctx, w)
	for what, err := range map[string]error{"Plug": err, "Await": without.Await(ctx, w), "Check": without.Check(ctx, w)} {
		if !errors.Is(err, plug.ErrInvalid) || !strings.Contains(err.Error(), "runs without --ovsdb") {
			t.Errorf("%s: %v", what, err)
		}
	}
	for range 2 {
		plugtest.Must(t, without.Unplug(ctx, w.Ref))
	}
	if got := append(plugtest.Links(t, node), plugtest.Links(t, pod)...); len(got) > 0 {
		t.Errorf("links are left: %v", got)
	}
	if !strings.Contains(logged.String(), w.PortID) {
		t.Errorf("logged: %s", &logged)
	}
	list, err = with.List(ctx)
	plugtest.Must(t, err)
	if len(list) != 1 || list[0].Link != "" {
		t.Fatalf("with OVSDB again, List: %+v", list)
	}
	plugtest.Must(t, with.Remove(ctx, list[0]))
	if rows := server.Interfaces(); len(rows) > 0 {
		t.Errorf("rows are left: %v", rows)
	}
}

func TestRefusals(t *testing.T) {
	f := open(t)
	w, p, ctx := f.Want(plugtest.One, plugtest.PortA, plugtest.Space(t, "pod")), f.Plugger(), plugtest.Bounded(t)
	for field, spoil := range map[string]func(*plug.Want){
		"Bridge":        func(w *plug.Want) { w.Bridge = "docker0" },
		"Kind":          func(w *plug.Want) { w.Kind = plug.OVSHybrid },
		"Interface.MAC": func(w *plug.Want) { w.Interface.MAC = nil },
	} {
		bad := w
		spoil(&bad)
		_, err := p.Plug(ctx, bad)
		for _, err := range []error{err, p.Check(ctx, bad), p.Await(ctx, bad)} {
			if !errors.Is(err, plug.ErrInvalid) || !strings.HasPrefix(err.Error(), field+":") {
				t.Errorf("%s: %v", field, err)
			}
		}
	}
	if err := p.Remove(ctx, plug.Found{HalfMade: true, Link: "eth0"}); !errors.Is(err, plug.ErrInvalid) {
		t.Errorf("Remove of a link that List cannot have found: %v", err)
	}
}

// An unprivileged container has the sysctl folder outside /proc/sys.
func TestFolderOfSettings(t *testing.T) {
	node, server, pod := plugtest.Space(t, "node"), plugtest.NewServer(t), plugtest.Space(t, "pod")
	w := plugtest.Want(plug.OVS, plugtest.One, plugtest.PortA, pod, t)
	dir, read := plugtest.Settings(t, "eth0", ovs.LinkName(w.Ref))
	p, err := ovs.New(ovs.Options{Netns: node.Path, OVSDB: server.Client(), Sysctls: dir})
	plugtest.Must(t, err)
	t.Cleanup(p.Close)
	plugtest.Plugged(t, p, w)
	if got := read("eth0", "accept_ra") + read(ovs.LinkName(w.Ref), "disable_ipv6"); got != "01" {
		t.Errorf("written there are %q, want 0 and 1", got)
	}
}

func TestPackets(t *testing.T) {
	plugtest.Packets(t, plug.OVS, func(node *podif.Namespace, server *plugtest.Server) plug.Plugger {
		p, err := ovs.New(ovs.Options{Netns: node.Path, OVSDB: server.Client()})
		plugtest.Must(t, err)
		t.Cleanup(p.Close)
		return p
	})
}
