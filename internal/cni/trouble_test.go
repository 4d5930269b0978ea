package cni_test

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/heartbeat"
	"github.com/berthnet/berth/internal/rpc"
	"github.com/berthnet/berth/internal/rpc/rpcfake"
)

// beat leaves a heartbeat of so long ago.
func beat(t *testing.T, socket string, ago time.Duration) {
	t.Helper()
	if err := heartbeat.Beat(socket, clock.Real{}.Boot()-ago); err != nil {
		t.Fatal(err)
	}
}

// dead is the socket of a daemon that was killed.
func dead(t *testing.T) string {
	t.Helper()
	l, socket := rpcfake.Listen(t)
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return socket
}

// want11 is code 11, and 50 for STATUS, which knows no other.
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
		{"no socket", filepath.Join(t.TempDir(), "none.sock"), "has made no socket"},
		{"nobody listens", dead(t), "does not answer"},
	} {
		for _, i := range every(tc.socket, "1m") {
			t.Run(tc.name+"/"+i.verb, func(t *testing.T) { i.check(t, want11(i.verb), tc.socket, tc.text) })
		}
	}
}

// STATUS bridges the restart of a daemon, and no more.
func TestStatusWhileTheDaemonIsAway(t *testing.T) {
	_, socketless := rpcfake.Listen(t)
	if err := os.Remove(socketless); err != nil {
		t.Fatal(err)
	}
	for name, socket := range map[string]string{"no socket": socketless, "nobody listens": dead(t)} {
		status := invocation{verb: "STATUS", conf: conf(socket, "1.1.0")}
		t.Run(name, func(t *testing.T) {
			beat(t, socket, heartbeat.Grace/2)
			if _, e := status.run(t); e != nil {
				t.Errorf("failed within a restart: %v", e)
			}
			beat(t, socket, heartbeat.Grace+time.Second)
			status.check(t, 50, socket)
			if err := heartbeat.Stop(socket); err != nil {
				t.Fatal(err)
			}
			status.check(t, 50, socket)
		})
	}
}

// A daemon that says it cannot take pods is believed, whatever its heartbeat.
func TestStatusOfADaemonThatAnswers(t *testing.T) {
	socket := rpcfake.Start(t, failing(rpcfake.Failure(50, "no address was usable", "")))
	beat(t, socket, 0)
	status := invocation{verb: "STATUS", conf: conf(socket, "1.1.0")}
	for range 9 { // a daemon that does not answer within five seconds counts as one that is being restarted
		if _, e := status.run(t); e != nil {
			break
		}
	}
	status.check(t, 50, "no address was usable")
}

// A call waits for the socket of a daemon that is being restarted. It does so for
// five seconds, in which a busy machine may not get round to the restart: then it is
// begun anew.
func TestCallDuringARestart(t *testing.T) {
	for again := 4; ; again-- {
		began := time.Now()
		calls, err := callDuringARestart(t)
		if err == nil && calls == 1 {
			return
		}
		if late := time.Since(began) > 4*time.Second; !late || again == 0 {
			t.Fatalf("%v, %d calls", err, calls)
		}
	}
}

func callDuringARestart(t *testing.T) (calls int, err error) {
	t.Helper()
	l, socket := rpcfake.Listen(t)
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	beat(t, socket, time.Second)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	cmd := invocation{verb: "ADD", conf: conf(socket, "1.0.0")}.command(t.Context())
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	waitUntilBlocked(t, cmd)
	if err := os.Remove(socket); err != nil {
		t.Fatal(err)
	}
	if l, err = net.Listen("unix", socket); err != nil {
		t.Fatal(err)
	}
	n := &rpcfake.Node{}
	rpcfake.Serve(t, l, n)
	err = cmd.Wait()
	return len(n.Calls()), err
}

// waitUntilBlocked waits until a process has used the processor for its start
// and then gone to sleep more than once, as one that tries again does.
func waitUntilBlocked(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		links, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(cmd.Process.Pid), "fd"))
		if err != nil || len(links) == 0 {
			return // it has given up already
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

// hanging is a daemon that answers no ADD. It tells when it was asked, and when the
// call was dropped.
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

// A daemon that hangs before it even answers the connection.
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
			// No setting changes these five seconds, and so none is named.
			status := invocation{verb: "STATUS", conf: conf(socket, "1.1.0", "timeout", `"1m"`)}
			status.check(t, 50, "did not finish within 5s; look at its log\n") // the message ends so
		})
	})
	beat(t, socket, 0)
	if _, e := (invocation{verb: "STATUS", conf: conf(socket, "1.1.0", "timeout", `"1s"`)}).run(t); e != nil {
		t.Errorf("STATUS of a daemon that lived a moment ago: %v", e)
	}
}

func TestDaemonEndsDuringCall(t *testing.T) {
	n, asked, _ := hanging()
	l, socket := rpcfake.Listen(t)
	s := rpcfake.Serve(t, l, n)
	go func() {
		<-asked
		s.Stop()
	}()
	invocation{verb: "ADD", conf: conf(socket, "1.0.0")}.check(t, 11, socket, "ended during the call")
}

// However the runtime ends the plugin, the daemon drops the call.
func TestEndOfThePluginEndsTheCall(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL, syscall.SIGINT} {
		t.Run(sig.String(), func(t *testing.T) {
			n, asked, dropped := hanging()
			cmd := invocation{verb: "ADD", conf: conf(rpcfake.Start(t, n), "1.0.0")}.command(t.Context())
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			<-asked
			if err := cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			if err := cmd.Wait(); err == nil {
				t.Error("the plugin succeeded")
			}
			select {
			case <-dropped:
			case <-time.After(time.Minute):
				t.Error("the daemon still waits")
			}
		})
	}
}
