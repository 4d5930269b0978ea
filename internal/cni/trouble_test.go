package cni_test

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/node/heartbeat"
	"github.com/berthnet/berth/internal/rpc"
	"github.com/berthnet/berth/internal/rpc/rpcfake"
)

// beat leaves a heartbeat from some time ago.
func beat(t *testing.T, socket string, ago time.Duration) {
	t.Helper()
	must(t, heartbeat.Beat(socket, clock.Real{}.Boot()-ago))
}

// dead returns the socket of a killed daemon.
func dead(t *testing.T) string {
	t.Helper()
	l, socket := rpcfake.Listen(t)
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	must(t, l.Close())
	return socket
}

// want11 is code 11, or 50 for STATUS, which has no other.
func want11(verb string) uint {
	if verb == "STATUS" {
		return 50
	}
	return 11
}

func TestNoDaemon(t *testing.T) {
	for _, tc := range []struct {
		name, socket string
		text         string
	}{
		{"no socket", filepath.Join(t.TempDir(), "none.sock"), "has not created the socket"},
		{"no listener", dead(t), "does not answer"},
	} {
		for _, i := range every(tc.socket, "1m") {
			t.Run(tc.name+"/"+i.verb, func(t *testing.T) { i.check(t, want11(i.verb), tc.socket, tc.text) })
		}
	}
}

// STATUS succeeds during a short restart of the daemon, but not longer.
func TestStatusDuringDaemonRestart(t *testing.T) {
	_, socketless := rpcfake.Listen(t)
	must(t, os.Remove(socketless))
	for name, socket := range map[string]string{"no socket": socketless, "no listener": dead(t)} {
		status := invocation{verb: "STATUS", conf: conf(socket, "1.1.0")}
		t.Run(name, func(t *testing.T) {
			beat(t, socket, heartbeat.Grace/2)
			if _, e := status.run(t); e != nil {
				t.Errorf("STATUS during a restart: %v", e)
			}
			beat(t, socket, heartbeat.Grace+time.Second)
			status.check(t, 50, socket)
			must(t, heartbeat.Stop(socket))
			status.check(t, 50, socket)
		})
	}
}

// If the daemon replies that it cannot take pods, STATUS fails regardless of its heartbeat.
func TestStatusFollowsDaemonReply(t *testing.T) {
	socket := rpcfake.Start(t, failing(rpcfake.Failure(50, "no address was usable", "")))
	beat(t, socket, 0)
	status := invocation{verb: "STATUS", conf: conf(socket, "1.1.0")}
	for range 9 { // a daemon that does not answer within five seconds counts as restarting
		if _, e := status.run(t); e != nil {
			break
		}
	}
	status.check(t, 50, "no address was usable")
}

// A call waits for the socket of a restarting daemon.
func TestCallDuringRestart(t *testing.T) {
	if calls, err := callDuringARestart(t); err != nil || calls != 1 {
		t.Fatalf("ADD during a restart: error = %v, %d calls, want one call", err, calls)
	}
}

func callDuringARestart(t *testing.T) (calls int, err error) {
	t.Helper()
	l, socket := rpcfake.Listen(t)
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	beat(t, socket, time.Second)
	must(t, l.Close())
	cmd := invocation{verb: "ADD", conf: conf(socket, "1.0.0")}.command(t.Context())
	must(t, cmd.Start())
	waitUntilBlocked(t, cmd)
	must(t, os.Remove(socket))
	if l, err = net.Listen("unix", socket); err != nil {
		t.Fatal(err)
	}
	n := &rpcfake.Node{}
	rpcfake.Serve(t, l, n)
	err = cmd.Wait()
	return len(n.Calls()), err
}

// waitUntilBlocked waits until a process has started and dialled, after which it waits for the next attempt.
func waitUntilBlocked(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		links, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(cmd.Process.Pid), "fd"))
		if err != nil || len(links) == 0 {
			return // the process has already ended
		}
		for _, fd := range links { // the event poll comes with the first dial
			if to, _ := os.Readlink(filepath.Join("/proc", strconv.Itoa(cmd.Process.Pid), "fd", fd.Name())); to == "anon_inode:[eventpoll]" {
				return
			}
		}
		<-time.After(time.Millisecond)
	}
	t.Fatal("the plugin never dialled")
}

// hanging is a daemon that does not answer ADD. asked is closed when it is called, and dropped when the call is cancelled.
func hanging() (n *rpcfake.Node, asked, dropped chan struct{}) {
	asked, dropped = make(chan struct{}), make(chan struct{})
	n = &rpcfake.Node{OnAdd: func(ctx context.Context, _ *rpc.AddRequest) (*rpc.AddReply, error) {
		close(asked)
		<-ctx.Done()
		close(dropped)
		return nil, ctx.Err()
	}}
	return n, asked, dropped
}

func TestSlowDaemon(t *testing.T) {
	n := &rpcfake.Node{OnAdd: func(ctx context.Context, _ *rpc.AddRequest) (*rpc.AddReply, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}}
	socket := rpcfake.Start(t, n)
	invocation{verb: "ADD", conf: conf(socket, "1.0.0", "timeout", `"1s"`)}.check(t, 11, socket, "1s", "timeout")
}

// The daemon hangs before it accepts the connection.
func TestSilentDaemon(t *testing.T) {
	l, socket := rpcfake.Listen(t)
	defer func() { _ = l.Close() }()
	t.Run("all", func(t *testing.T) {
		for _, i := range every(socket, "1s") {
			t.Run(i.verb, func(t *testing.T) {
				t.Parallel()
				i.check(t, want11(i.verb), socket)
			})
		}
		t.Run("STATUS does not wait for an address", func(t *testing.T) {
			t.Parallel()
			// These five seconds cannot be configured, so the message names no setting.
			status := invocation{verb: "STATUS", conf: conf(socket, "1.1.0", "timeout", `"1m"`)}
			status.check(t, 50, "did not finish within 5s; look at its log\n") // end of the message
		})
	})
	beat(t, socket, 0)
	if _, e := (invocation{verb: "STATUS", conf: conf(socket, "1.1.0", "timeout", `"1s"`)}).run(t); e != nil {
		t.Errorf("STATUS of a daemon with a recent heartbeat: %v", e)
	}
}

// ends runs a daemon that ends during its first call, and then another one on the same socket, unless next is nil.
func ends(t *testing.T, socket string, next *rpcfake.Node) {
	t.Helper()
	asked := make(chan struct{})
	wait := func(ctx context.Context) error {
		close(asked)
		<-ctx.Done()
		return status.FromContextError(ctx.Err()).Err()
	}
	first := &rpcfake.Node{
		OnAdd:   func(ctx context.Context, _ *rpc.AddRequest) (*rpc.AddReply, error) { return nil, wait(ctx) },
		OnDel:   func(ctx context.Context, _ *rpc.DelRequest) (*rpc.DelReply, error) { return nil, wait(ctx) },
		OnCheck: func(ctx context.Context, _ *rpc.CheckRequest) (*rpc.CheckReply, error) { return nil, wait(ctx) },
		OnGC:    func(ctx context.Context, _ *rpc.GCRequest) (*rpc.GCReply, error) { return nil, wait(ctx) },
	}
	l, err := net.Listen("unix", socket)
	must(t, err)
	s := rpcfake.Serve(t, l, first)
	done := make(chan struct{})
	t.Cleanup(func() { <-done })
	go func() {
		defer close(done)
		<-asked
		s.Stop() // closes the connections, and removes the socket
		if next == nil {
			return
		}
		second, err := net.Listen("unix", socket)
		if err != nil {
			t.Error(err)
			return
		}
		rpcfake.Serve(t, second, next)
	}()
}

// If the daemon ends during a call that can be repeated, the call is repeated, even without a heartbeat, as the daemon
// was running a moment ago.
func TestDaemonEndsDuringCall(t *testing.T) {
	for _, tc := range []struct {
		verb string
		want int // number of calls of the next daemon
	}{{"ADD", 1}, {"DEL", 1}, {"CHECK", 1}, {"GC", 0}} {
		t.Run(tc.verb, func(t *testing.T) {
			socket := filepath.Join(t.TempDir(), "berthd.sock")
			next := &rpcfake.Node{}
			ends(t, socket, next)
			all := every(socket, "1m")
			i := all[slices.IndexFunc(all, func(i invocation) bool { return i.verb == tc.verb })]
			if tc.want == 0 {
				i.check(t, 11, socket, "ended during the call")
			} else if _, e := i.run(t); e != nil {
				t.Errorf("call failed: %v", e)
			}
			if got := len(next.Calls()); got != tc.want {
				t.Errorf("the next daemon got %d calls, want %d", got, tc.want)
			}
		})
	}
}

// A daemon that shuts down rejects calls that it did not start, so that they are repeated with the next one.
func TestDaemonShutsDownDuringCalls(t *testing.T) {
	refused := 0
	n := &rpcfake.Node{}
	n.OnAdd = func(_ context.Context, req *rpc.AddRequest) (*rpc.AddReply, error) {
		if refused++; refused < 3 {
			return nil, status.Error(codes.Unavailable, "berthd is being restarted; try again")
		}
		return rpcfake.DefaultReply(req.GetAttachment().GetIfName()), nil
	}
	if _, e := (invocation{verb: "ADD", conf: conf(rpcfake.Start(t, n), "1.0.0")}).run(t); e != nil || refused != 3 {
		t.Errorf("ADD error = %v after %d calls, want the third to succeed", e, refused)
	}
}

// A daemon that does not restart is reported when the call's timeout is over.
func TestDaemonDoesNotRestart(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "berthd.sock")
	ends(t, socket, nil)
	invocation{verb: "ADD", conf: conf(socket, "1.0.0", "timeout", `"1s"`)}.check(t, 11, socket, "has not created the socket")
}

// Any reply ends a call, also an error.
func TestCallIsNotRepeatedAfterReply(t *testing.T) {
	socket := rpcfake.Start(t, failing(rpcfake.Failure(11, "no address is free yet", "")))
	beat(t, socket, 0)
	for _, i := range every(socket, "1m") {
		if i.verb != "STATUS" {
			t.Run(i.verb, func(t *testing.T) { i.check(t, 11, "no address is free yet") })
		}
	}
}

// However the runtime ends the plugin, the daemon cancels the call.
func TestEndOfPluginCancelsCall(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL, syscall.SIGINT} {
		t.Run(sig.String(), func(t *testing.T) {
			n, asked, dropped := hanging()
			cmd := invocation{verb: "ADD", conf: conf(rpcfake.Start(t, n), "1.0.0")}.command(t.Context())
			must(t, cmd.Start())
			<-asked
			must(t, cmd.Process.Signal(sig))
			if err := cmd.Wait(); err == nil {
				t.Error("the plugin succeeded")
			}
			select {
			case <-dropped:
			case <-time.After(time.Minute):
				t.Error("the daemon did not cancel the call")
			}
		})
	}
}
