package berthd

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/attachment"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/cni"
	"github.com/berthnet/berth/internal/config"
	"github.com/berthnet/berth/internal/daemon"
	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/internal/source/port"
	"github.com/berthnet/berth/internal/source/sourcefake"
)

// kubeconfig is one of an API server that is not there.
func kubeconfig(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := `{"apiVersion":"v1","kind":"Config","clusters":[{"name":"c","cluster":{"server":"https://127.0.0.1:1"}}],"contexts":[{"name":"c","context":{"cluster":"c"}}],"current-context":"c"}`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// The runtime is asked to tell annotations wherever pods may have NICs, and the plugin
// waits as long as an ADD may.
func TestInstallationWithPorts(t *testing.T) {
	quiet := slog.New(slog.DiscardHandler)
	src := sourcefake.New(clock.Real{}, 0)
	n := &node{cfg: config.Config{NodeName: "n", WarmWait: 45 * time.Second, PortWait: time.Minute}, log: quiet, clock: clock.Real{}, metrics: daemon.NewMetrics()}
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
	store, _, err := attachment.Open(t.TempDir(), attachment.Node{InstanceID: "n", BootID: "b"}, quiet)
	if err != nil {
		t.Fatal(err)
	}
	n.cfg.Kubeconfig = kubeconfig(t)
	n.cfg.OVSDB = "unix:/nowhere/db.sock"
	if n.ports, err = n.openPorts(store); err != nil {
		t.Fatal(err)
	}
	defer n.ports.close()
	if got := tells(daemon.Options{Source: src, NICs: n.ports.nics}); !slices.Equal(got, []string{cni.PodAnnotations}) {
		t.Errorf("with NICs the runtime tells %v", got)
	}
	// What a mode without addresses serves is nothing, and it is not ready before it knows.
	m := &portMode{node: n}
	only, err := m.newSource(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if l, err := only.Acquire(t.Context(), source.Request{}); err != nil || !l.Empty() {
		t.Errorf("it leases %v, %v", l, err)
	}
	if only.Ready() == nil {
		t.Error("it is ready before the API server and Open vSwitch have answered")
	}
	beside := port.NewBeside(src, n.ports.nics).Snapshot()
	if beside.Detail == nil || len(beside.Detail.Metrics()) == 0 || len(beside.Conditions) == 0 {
		t.Errorf("beside another source it tells %+v", beside)
	}
}
