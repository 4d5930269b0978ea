package berthd

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/cni"
	"github.com/berthnet/berth/internal/config"
	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/mac"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/daemon"
	"github.com/berthnet/berth/internal/source/sourcefake"
)

// kubeconfig is one of an API server that is not there.
func kubeconfig(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := `{"apiVersion":"v1","kind":"Config","clusters":[{"name":"c","cluster":{"server":"https://127.0.0.1:1"}}],"contexts":[{"name":"c","context":{"cluster":"c"}}],"current-context":"c"}`
	must(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// quietNode is a node with settings, and the store of its records.
func quietNode(t *testing.T, cfg config.Config) (*node, *attachment.Store) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	cfg.NodeName, cfg.Kubeconfig = "n", kubeconfig(t)
	store, _, err := attachment.Open(t.TempDir(), attachment.Node{InstanceID: "n", BootID: "b"}, log)
	must(t, err)
	return &node{cfg: cfg, log: log, clock: clock.Real{}, deps: machine(), metrics: daemon.NewMetrics()}, store
}

// Ports that are VLANs are plugged on every node with ports, without Open vSwitch too.
func TestPortsWithoutASwitch(t *testing.T) {
	n, store := quietNode(t, config.Config{NodeSettings: config.NodeSettings{IPAM: config.IPAMPort}})
	var err error
	n.ports, err = n.openPorts(store, n.needIPv6)
	must(t, err)
	defer n.ports.close()
	rec := attachment.Record{HostLink: "bthaaaaaaaaaaaa", Netns: attachment.Netns{Path: "/nowhere"}}
	nic := attachment.NIC{
		Port: "eni-0a1b2c3d4e5f67890", IfName: "eth0", MAC: mac.Addr{0x0a, 0xff, 0xff, 0, 0, 7},
		Plug: attachment.Plug{Type: string(plug.VLAN), Trunk: "0a:ff:ff:00:00:01", VLAN: 7},
	}
	if _, err := n.ports.nics.Plug(t.Context(), rec, nic); !errors.Is(err, datapath.ErrNoNetns) {
		t.Errorf("a VLAN of a pod that is gone: %v, want %v", err, datapath.ErrNoNetns)
	}
	nic.Plug = attachment.Plug{Type: string(plug.OVS), Bridge: "br-int"}
	if _, err := n.ports.nics.Plug(t.Context(), rec, nic); !errors.Is(err, plug.ErrInvalid) {
		t.Errorf("a port of Open vSwitch: %v, want %v", err, plug.ErrInvalid)
	}
}

// The runtime is asked to tell annotations wherever pods may have NICs, and the plugin
// waits as long as an ADD may.
func TestInstallationWithPorts(t *testing.T) {
	src := sourcefake.New(clock.Real{}, 0)
	n, store := quietNode(t, config.Config{ServingSettings: config.ServingSettings{WarmWait: 45 * time.Second}, PortSettings: config.PortSettings{PortWait: time.Minute}})
	if got := tells(daemon.Options{Source: src}); got != nil {
		t.Errorf("without NICs the runtime tells %v", got)
	}
	if got := n.patience(); got != 45*time.Second {
		t.Errorf("without NICs an ADD waits %v", got)
	}
	n.cfg.VPCPorts, n.cfg.OVSBridges = true, []string{"br-int"}
	if got := n.patience(); got != time.Minute {
		t.Errorf("with NICs an ADD waits %v", got)
	}
	n.cfg.OVSDB = "unix:/nowhere/db.sock"
	var err error
	n.ports, err = n.openPorts(store, n.needIPv6)
	must(t, err)
	defer n.ports.close()
	if got := tells(daemon.Options{Source: src, Parts: n.parts(store)}); !slices.Equal(got, []string{cni.PodAnnotations}) {
		t.Errorf("with NICs the runtime tells %v", got)
	}
	// Beside addresses of ENIs the first interface may be a branch, in one of two modes.
	operated := &node{cfg: n.cfg, log: n.log, clock: clock.Real{}, deps: machine(), metrics: daemon.NewMetrics()}
	operated.cfg.IPAM = config.IPAMENIOperator
	for mode, want := range map[string]bool{"strict": true, "standard": true, "none": false} {
		operated.cfg.GroupEnforcing, operated.metrics = mode, daemon.NewMetrics()
		p, err := operated.openPorts(store, nil)
		if (err == nil) != want {
			t.Errorf("groups are enforced %s: %v", mode, err)
		}
		if err == nil {
			p.close()
		}
	}
	// What a mode without addresses serves is nothing, and it is not ready before it knows.
	m := &portMode{node: n}
	only, err := m.newSource(context.Background())
	must(t, err)
	if l, err := only.Acquire(t.Context(), attachment.Request{}); err != nil || !l.Empty() {
		t.Errorf("it leases %v, %v", l, err)
	}
	if only.Ready() == nil {
		t.Error("it is ready before the API server and Open vSwitch have answered")
	}
	beside := src.Snapshot()
	n.parts(store)[0].Describe(&beside)
	if beside.Detail == nil || len(beside.Detail.Metrics()) == 0 || len(beside.Conditions) == 0 {
		t.Errorf("beside another source it tells %+v", beside)
	}
}
