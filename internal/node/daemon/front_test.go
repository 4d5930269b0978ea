package daemon

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/berthnet/berth/internal/node/heartbeat"
	"github.com/berthnet/berth/internal/rpc"
)

// startFront makes a front without a daemon, and a client of it.
func startFront(t *testing.T, n *node) (*Front, *grpc.ClientConn) {
	t.Helper()
	socket := filepath.Join(n.dir, "berthd.sock")
	l, err := Listen(socket)
	must(t, err)
	d := n.assemble()
	f := NewFront(FrontOptions{Plugin: l, Socket: socket, Metrics: d.Metrics, Clock: n.clock, Log: d.Log})
	t.Cleanup(f.Close)
	return f, dial(t, socket)
}

func TestCallsToAStartingDaemonNameWhatItWaitsFor(t *testing.T) {
	n := newNode(t)
	f, conn := startFront(t, n)
	f.WaitingFor("the metadata service: connection refused")
	client := rpc.NewNodeClient(conn)
	done := make(chan error, 1)
	go func() {
		_, err := client.Del(within(t), delOf("a"))
		done <- err
	}()
	waitFor(t, func() bool { return n.clock.Waiting() > 0 })
	n.clock.Advance(startWait)
	if got := wantFailure(t, <-done, types.ErrTryAgainLater).GetMessage(); got != "berthd is starting: the metadata service: connection refused" {
		t.Errorf("message %q", got)
	}

	_, err := client.GC(within(t), &rpc.GCRequest{Network: "berth"}) // at once: the clock stands still
	wantFailure(t, err, types.ErrTryAgainLater)

	status := func() error {
		_, err := client.Status(within(t), &rpc.StatusRequest{})
		return err
	}
	wantFailure(t, status(), types.ErrPluginNotAvailable)
	must(t, heartbeat.Beat(f.Socket, n.clock.Boot()))
	if err := status(); err != nil {
		t.Errorf("STATUS within a restart: %v", err)
	}
	n.clock.Advance(time.Hour)
	wantFailure(t, status(), types.ErrPluginNotAvailable)
	if code, body := get(f.monitoringHandler(), "x", "/readyz"); code != 503 || !strings.Contains(body, "metadata service") {
		t.Errorf("/readyz %d %s", code, body)
	}
	if code, _ := get(f.monitoringHandler(), "x", "/livez"); code != 200 {
		t.Errorf("/livez %d", code)
	}
	if code, _ := get(f.introspectionHandler(), "localhost", "/ip-manager"); code != 503 {
		t.Errorf("/ip-manager %d", code)
	}
}

func TestCallsWaitForADaemonThatIsAboutToServe(t *testing.T) {
	n := newNode(t)
	f, conn := startFront(t, n)
	done := make(chan error, 1)
	go func() {
		_, err := rpc.NewNodeClient(conn).Del(within(t), delOf("a"))
		done <- err
	}()
	waitFor(t, func() bool { return n.clock.Waiting() > 0 })
	health := func() grpc_health_v1.HealthCheckResponse_ServingStatus {
		reply, err := grpc_health_v1.NewHealthClient(conn).Check(context.Background(), &grpc_health_v1.HealthCheckRequest{Service: "berth.v1.Node"})
		must(t, err)
		return reply.GetStatus()
	}
	if got := health(); got != grpc_health_v1.HealthCheckResponse_NOT_SERVING {
		t.Errorf("health before: %v", got)
	}
	f.admit(n.assemble().Daemon)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if got := health(); got != grpc_health_v1.HealthCheckResponse_SERVING {
		t.Errorf("health after: %v", got)
	}
}
