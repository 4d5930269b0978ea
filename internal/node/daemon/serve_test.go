package daemon

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/node/heartbeat"
	"github.com/berthnet/berth/internal/rpc"
)

func TestPanicBecomesAnError(t *testing.T) {
	n := newNode(t, "10.0.0.5")
	r := n.restart(nil)
	defer n.tick()()
	ns := n.newNetns("a")
	n.kernel.onEnter("AddPod", func() { panic("boom") })
	r.refused(t, addOf("a", ns), types.ErrInternal)
	n.kernel.onEnter("AddPod", nil)
	mustAdd(t, r, "a", ns) // the container's lock is free, the half-made attachment was cleared
	mustDel(t, r, "a")
}

func TestStatusRemembersAcrossRestarts(t *testing.T) {
	n := newNode(t)
	r := n.start()
	ask := func(r *running) error {
		waitFor(t, func() bool { return r.front.admitted() != nil }) // while it starts the heartbeat answers
		_, err := r.client.Status(within(t), &rpc.StatusRequest{}, grpc.WaitForReady(true))
		return err
	}
	wantFailure(t, ask(r), types.ErrPluginNotAvailable)
	r.source.Supply(netip.MustParseAddr("10.0.0.5"))
	must(t, ask(r))
	r.stop()
	r = n.start() // its source knows no address
	if err := ask(r); err != nil {
		t.Errorf("after a restart: %v", err)
	}
	r.stop()
	n.ident.InstanceID = "i-2"
	wantFailure(t, ask(n.start()), types.ErrPluginNotAvailable)
}

func TestHeartbeatOutlivesARestartOfAUsableNode(t *testing.T) {
	n := newNode(t)
	r := n.restart(nil)
	waitFor(t, func() bool { return n.clock.Waiting() > 0 })
	if heartbeat.Recent(r.socket, n.clock.Boot()) {
		t.Error("a node without any address yet has a heartbeat")
	}
	r.source.Supply(netip.MustParseAddr("10.0.0.5"))
	stop := n.tick()
	waitFor(t, func() bool { return heartbeat.Recent(r.socket, n.clock.Boot()) })
	stop()
	r.stop()
	if !heartbeat.Recent(r.socket, n.clock.Boot()) {
		t.Error("the end of the daemon took the heartbeat with it")
	}
}

func TestEndOfThePluginsServerEndsTheDaemon(t *testing.T) {
	n := newNode(t, "10.0.0.5")
	d := n.assemble()
	l, err := Listen(d.socket)
	must(t, err)
	front := NewFront(FrontOptions{Plugin: l, Socket: d.socket, Metrics: d.Metrics, Clock: n.clock, Log: d.Log})
	done := make(chan error, 1)
	go func() { done <- d.Run(within(t), front) }()
	waitFor(t, func() bool { return heartbeat.Recent(d.socket, n.clock.Boot()) })
	must(t, l.Close())
	select {
	case err := <-done:
		if err == nil || !strings.Contains(err.Error(), "serving the plugin") {
			t.Errorf("err = %v", err)
		}
	case <-time.After(time.Minute):
		t.Error("the daemon goes on without a listener")
	}
}

func TestDrainFailsWaitersAndFinishesKernelWork(t *testing.T) {
	n := newNode(t, "10.0.0.5")
	r := n.start()
	entered, goOn := make(chan struct{}), make(chan struct{})
	n.kernel.onEnter("AddPod", func() { close(entered); <-goOn })
	working := make(chan error, 1)
	go func() {
		_, err := r.client.Add(within(t), addOf("a", n.newNetns("a")), grpc.WaitForReady(true))
		working <- err
	}()
	<-entered
	waiting := make(chan error, 1)
	go func() {
		_, err := r.client.Add(within(t), addOf("b", n.newNetns("b")))
		waiting <- err
	}()
	waitFor(t, func() bool { return r.source.Waiting() == 1 })
	var stopped sync.WaitGroup
	stopped.Go(r.stop)
	err := <-waiting
	f := wantFailure(t, err, types.ErrTryAgainLater)
	if f.GetMessage() != "berthd is being restarted; try again" {
		t.Errorf("message %q", f.GetMessage())
	}
	if code := status.Code(err); code != codes.Unavailable {
		t.Errorf("status %v, want %v: the plugin is to ask the next daemon", code, codes.Unavailable)
	}
	close(goOn)
	if err := <-working; err != nil {
		t.Errorf("the ADD at work: %v", err)
	}
	stopped.Wait()
	n.wantKernel(t, 1, 1)
}

func TestDeadlineIsEnforcedForCallersWithoutOne(t *testing.T) {
	n := newNode(t, "10.0.0.5")
	d := n.assemble()
	var left time.Duration
	_, err := d.observe(context.Background(), "Del", &rpc.DelRequest{},
		func(ctx context.Context, _ any) (any, error) {
			deadline, _ := ctx.Deadline()
			left = time.Until(deadline)
			return nil, nil
		})
	if err != nil || left <= 0 || left > callLimit {
		t.Errorf("time left %v, %v", left, err)
	}
}

func TestListenReplacesAStaleSocketOnly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.sock")
	l, err := Listen(path)
	must(t, err)
	if err := l.Close(); err != nil { // the socket's file stays, as after a kill
		t.Fatal(err)
	}
	l, err = Listen(path)
	must(t, err)
	defer l.Close()
	c, err := net.Dial("unix", path)
	must(t, err)
	c.Close()
	if _, err := Listen(t.TempDir()); err == nil {
		t.Error("Listen replaced a directory")
	}
}

func TestSupplyCondition(t *testing.T) {
	n := newNode(t)
	d := n.assemble()
	d.supply.look(false)
	d.conditions.want(t, ConditionSupply, false, "NoAddressYet")
	d.source.Supply(netip.MustParseAddr("10.0.0.5"))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{}, 2)
	for _, c := range []string{"a", "b"} {
		go func() {
			_, _ = d.Source.Acquire(ctx, sourceRequest(c))
			done <- struct{}{}
		}()
	}
	<-done // one has the address
	waitFor(t, func() bool { return d.source.Waiting() == 1 })
	if waiting := d.supply.look(false); !waiting {
		t.Error("nobody waits")
	}
	d.conditions.want(t, ConditionSupply, false, "NoAddressYet")
	d.supply.look(true)
	d.conditions.want(t, ConditionSupply, false, "Waiting")
	cancel()
	<-done
	d.supply.look(true)
	d.conditions.want(t, ConditionSupply, true, "Available")
}

func TestInstallsOnceAnAddressIsUsable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newNode(t).assemble()
		r.supply.clock = clock.Real{}
		var mu sync.Mutex // synctest.Wait orders nothing for the race detector in a goroutine that goes on
		calls, fail, leftOut := 0, errors.New("read-only file system"), "portmap is not executable"
		set := func(err error, out string) {
			mu.Lock()
			defer mu.Unlock()
			fail, leftOut = err, out
		}
		r.supply.install = func(context.Context) (Installation, error) {
			mu.Lock()
			defer mu.Unlock()
			calls++
			return Installation{LeftOut: leftOut}, fail
		}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { r.supply.run(ctx) })
		defer wg.Wait()
		defer cancel()
		passes := func(d time.Duration, wantCalls int) {
			t.Helper()
			time.Sleep(d) //nolint:forbidigo // virtual time
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if calls != wantCalls {
				t.Errorf("installed %d times, want %d", calls, wantCalls)
			}
		}
		passes(time.Minute, 0)
		r.source.Supply(netip.MustParseAddr("10.0.0.5"))
		passes(firstInterval, 1)
		r.conditions.want(t, ConditionInstalled, false, fail.Error())
		set(nil, leftOut)
		passes(supplyInterval, 2)
		r.conditions.want(t, ConditionInstalled, true, "")
		r.conditions.want(t, ConditionChain, false, leftOut)
		set(nil, "")
		passes(installInterval, 3)
		r.conditions.want(t, ConditionChain, true, "")
	})
}
