package networkpolicy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/node/networkpolicy/operatorfake"
	"github.com/berthnet/berth/internal/operator/networkpolicy/feed"
	"github.com/berthnet/berth/internal/policy"
	"github.com/berthnet/berth/internal/policy/wire"
	"github.com/berthnet/berth/internal/retry"
)

// follow calls the operator and returns the first error, or nil once it spoke.
func follow(t *testing.T, a Access) error {
	t.Helper()
	operator, err := a.Dial(t.Context())
	if err != nil {
		return err
	}
	defer operator.End()
	stream, err := operator.Follow(t.Context())
	if err != nil {
		return err
	}
	_, err = stream.Recv()
	return err
}

// A node finds the operator by the ConfigMap, each time, and reads its token for each call. Errors say what is missing.
func TestDial(t *testing.T) {
	o := operatorfake.New(t)
	token := filepath.Join(t.TempDir(), "token")
	a := Access{Namespace: "kube-system", ConfigMap: o.ConfigMap, TokenFile: token}
	wants := func(say string) {
		t.Helper()
		if err := follow(t, a); err == nil || !strings.Contains(err.Error(), say) {
			t.Errorf("%v, want %q", err, say)
		}
	}
	wants("ConfigMap kube-system/berth-network-policies does not exist: berth-operator creates it")
	o.Start(feed.New())
	wants("the token for berth-operator: open " + token)
	must(t, os.WriteFile(token, []byte("\n"), 0o600))
	wants("no token")
	must(t, os.WriteFile(token, []byte("one\n"), 0o600))
	must(t, follow(t, a))
	must(t, follow(t, Access{Namespace: "kube-system", TokenFile: token, ConfigMap: func(ctx context.Context, namespace, name string) (map[string]string, error) {
		data, err := o.ConfigMap(ctx, namespace, name)
		data[wire.KeyCA] += "\n" // as editors leave it
		return data, err
	}}))

	before, _ := o.ConfigMap(t.Context(), "kube-system", wire.ConfigMapName)
	first, err := a.Dial(t.Context())
	must(t, err)
	defer first.End()
	o.Stop()
	wants("connection refused")
	if first.Replaced(t.Context()) {
		t.Error("an operator that ended is replaced although no other one leads")
	}
	o.Start(feed.New())
	must(t, follow(t, a))
	if !first.Replaced(t.Context()) {
		t.Error("an operator is not replaced although another one leads")
	}
	o.Set(wire.KeyCA, before[wire.KeyCA])
	wants("certificate")
	o.Set(wire.KeyCA, "none")
	wants("ca.crt has no certificate, expected PEM")
	o.Set(wire.KeyAddress, "")
	wants("has no address: no berth-operator leads yet")
	o.Fail(errors.New("no route to host"))
	wants("ConfigMap kube-system/berth-network-policies: no route to host")
}

// A node does not wait long for an operator that accepts connections and does nothing else, as one that is halted.
func TestDialGivesUpOnAStuckOperator(t *testing.T) {
	o := operatorfake.New(t)
	o.Start(feed.New())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	o.Set(wire.KeyAddress, l.Addr().String())
	token := filepath.Join(t.TempDir(), "token")
	must(t, os.WriteFile(token, []byte("one"), 0o600))
	began := time.Now()
	err = follow(t, Access{Namespace: "kube-system", ConfigMap: o.ConfigMap, TokenFile: token})
	if took := time.Since(began); err == nil || took > 2*connectTimeout {
		t.Errorf("error %v after %v, want one after about %v", err, took, connectTimeout)
	}
}

// An ADD waits for the answer about its pod, also when the node calls another operator meanwhile, which is sent everything again.
func TestAnAssignedAddressWaitsForItsAnswer(t *testing.T) {
	c, p, now := newCalls(), running("server", "10.0.0.1"), time.Now()
	done := c.assign(p)
	c.next(now)
	c.restart()
	again := c.assign(p)
	list, _ := c.next(now)
	for _, m := range list {
		if closedNow(done) || closedNow(again) {
			t.Error("the ADD does not wait for the answer")
		}
		c.answer(&wire.Assigned{Id: m.GetAssign().GetId()}, now)
	}
	if !closedNow(done) || !closedNow(again) {
		t.Error("the answer reaches nobody")
	}
	p.Addrs = running("server", "10.0.0.2").Addrs
	done = c.assign(p)
	p.Addrs = running("server", "10.0.0.3").Addrs
	if c.assign(p); !closedNow(done) {
		t.Error("an address that counts no more is waited for")
	}
}

// Addresses that the operator refuses are sent again, later each time, while the node has them. The ADD does not wait for that.
func TestRefusedAddressesAreSentAgain(t *testing.T) {
	c, p, now := newCalls(), running("server", "10.0.0.1"), time.Now()
	done := c.assign(p)
	news := 0
	var last time.Duration
	for range 20 {
		list, again := c.next(now)
		if len(list) != 1 || !again.IsZero() {
			t.Fatalf("%d messages, and more at %v, want the addresses", len(list), again)
		}
		if c.answer(&wire.Assigned{Id: list[0].GetAssign().GetId(), Refused: "the pod is not known"}, now) != nil {
			news++
		}
		if list, again = c.next(now); len(list) > 0 || !again.After(now) {
			t.Fatalf("%d messages at once after a refusal, and more at %v", len(list), again)
		}
		now, last = again, again.Sub(now)
	}
	if !closedNow(done) || news != 1 || last < refusedMost/2 {
		t.Errorf("ADD may go on: %t, the reason was news %d times, the last wait was %v; want true, 1 and about %v", closedNow(done), news, last, refusedMost)
	}
	list, _ := c.next(now)
	c.answer(&wire.Assigned{Id: list[0].GetAssign().GetId()}, now)
	if list, again := c.next(now.Add(time.Hour)); len(list) > 0 || !again.IsZero() {
		t.Errorf("%d messages after the addresses were accepted, and more at %v", len(list), again)
	}
}

// Pods that came and went while the operator was away cost no memory, and the operator does not hear of them.
func TestAddressesOfPodsThatAreGoneAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		away := func(o *Options) {
			o.StartUnknown, o.Dial = true, func(context.Context) (Leader, error) { return Leader{}, errors.New("away") }
		}
		e, _, stop := newCluster(t).nodeWith("one", t.TempDir(), away)
		defer stop()
		for i := range 100 {
			p := running("pod-"+strconv.Itoa(i), "10.0.0.1")
			must(t, e.Set(t.Context(), "a", p))
			e.Announce(p)
			e.Remove("a")
		}
		stays := running("stays", "10.0.0.2")
		must(t, e.Set(t.Context(), "b", stays))
		e.Announce(stays)
		if n := len(e.calls.assigns); n != 1 {
			t.Errorf("addresses of %d pods are kept for the operator, want those of the one that runs", n)
		}
	})
}

// The roles of a node are called the reason once the Kubernetes API has refused it for a while, and said so once: an API server that has just
// started refuses everybody.
func TestRolesAreDoubtedOnceTheAPIRefusesForAWhile(t *testing.T) {
	const doubt = "the Kubernetes API refuses berthd: configmaps"
	for what, tt := range map[string]struct {
		refuses []time.Duration // how long, each time
		pause   time.Duration   // in between
		want    int
	}{
		"starts":                {[]time.Duration{certainty - time.Second}, 0, 0},
		"starts often":          {[]time.Duration{certainty - time.Second, certainty - time.Second, certainty - time.Second}, 3 * retry.Most, 0},
		"lacks roles":           {[]time.Duration{10 * time.Minute}, 0, 1},
		"loses them repeatedly": {[]time.Duration{time.Minute, time.Minute}, 3 * retry.Most, 2},
	} {
		synctest.Test(t, func(t *testing.T) {
			var log bytes.Buffer
			var refuses atomic.Bool
			e, _, stop := newCluster(t).nodeWith("one", t.TempDir(), func(o *Options) {
				o.Log = slog.New(slog.NewTextHandler(&log, nil))
				o.Dial = func(context.Context) (Leader, error) {
					if refuses.Load() {
						return Leader{}, apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, wire.ConfigMapName, errors.New("no role"))
					}
					return Leader{}, errors.New("no operator")
				}
			})
			for _, d := range tt.refuses {
				refuses.Store(true)
				sleep(d)
				if said := strings.Contains(e.Condition().Message, doubt); said != (tt.want > 0) {
					t.Errorf("%s: the condition is %q", what, e.Condition().Message)
				}
				refuses.Store(false)
				sleep(tt.pause)
			}
			stop()
			if n := strings.Count(log.String(), doubt); n != tt.want {
				t.Errorf("%s: the log says %d times that the API refuses berthd, want %d:\n%s", what, n, tt.want, &log)
			}
		})
	}
}

// A node whose operator ended right after it had served calls it again soon, and not later each time. While another daemon calls
// as the same node, it does so later each time.
func TestServedNodesCallAgainSoon(t *testing.T) {
	for what, tt := range map[string]struct {
		serves bool
		ends   codes.Code
		wait   time.Duration
	}{
		"the operator served":      {true, codes.Unavailable, retry.First},
		"the operator did not":     {false, codes.Unavailable, retry.Most},
		"another daemon calls too": {true, codes.Aborted, retry.Most},
	} {
		synctest.Test(t, func(t *testing.T) {
			var calls []time.Time
			ctx, cancel := context.WithCancel(t.Context())
			dial := func(context.Context) (Leader, error) {
				if calls = append(calls, time.Now()); len(calls) == 12 {
					cancel()
				}
				return Leader{PoliciesClient: briefOperator{tt.serves, tt.ends}, End: func() {}}, nil
			}
			follower{
				Options: Options{Dial: dial, Clock: clock.Real{}, Log: slog.New(slog.DiscardHandler)}, calls: newCalls(),
				take: func(uint64, *policy.Update) {}, following: func(error) bool { return false }, known: func() []Pod { return nil },
			}.run(ctx)
			if wait := calls[11].Sub(calls[10]); wait < tt.wait/2 || wait > tt.wait*3/2 {
				t.Errorf("%s: the node waits %v after ten sessions, want about %v", what, wait, tt.wait)
			}
		})
	}
}

// While an ADD waits for the operator, the node calls it more often than it does otherwise: once another one leads, the ADD waits for
// a few seconds at most.
func TestADDsWaitShortlyForANewOperator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		one, _, _ := c.node("one", t.TempDir())
		for i := range 10 {
			c.server.Stop()
			time.Sleep(2*time.Minute + time.Duration(i)*time.Second) //nolint:forbidigo // in a bubble
			var began, came time.Time
			p := running(fmt.Sprint("late-", i), fmt.Sprintf("10.0.0.%d", i+1))
			done := make(chan error, 1)
			go func() {
				err := one.Known(t.Context(), p.PodName, p.UID)
				came = time.Now()
				done <- err
			}()
			time.Sleep(4 * time.Second) //nolint:forbidigo // in a bubble
			c.start()
			c.feed.SetPod(resolved(p.Name, "one"))
			began = time.Now()
			must(t, <-done)
			if took := came.Sub(began); took > 2*soon {
				t.Errorf("the ADD waited %s after the operator had come", took)
			}
		}
	})
}

// An operator that is stuck, before it answers or later, is left within seconds once another one leads and an ADD waits. The API server is
// not asked before.
func TestADDsDoNotWaitForAStuckOperator(t *testing.T) {
	for what, stuck := range map[string]wire.PoliciesClient{"connecting": stuckOperator{}, "connected": stuckOperator{connected: true}} {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t)
			var asked, dialled atomic.Int64
			var replaced atomic.Bool
			one, _, stop := c.nodeWith("one", t.TempDir(), func(o *Options) {
				next := o.Dial
				o.Dial = func(ctx context.Context) (Leader, error) {
					if dialled.Add(1) > 1 {
						return next(ctx)
					}
					return Leader{PoliciesClient: stuck, End: func() {}, Replaced: func(context.Context) bool {
						asked.Add(1)
						return replaced.Load()
					}}, nil
				}
			})
			defer stop()
			sleep(time.Hour)
			if n := asked.Load(); n > 0 {
				t.Errorf("%s: the API server was asked %d times while no ADD waited", what, n)
			}
			p := running("late", "10.0.0.1")
			c.feed.SetPod(resolved(p.Name, "one"))
			known := make(chan error, 1)
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			go func() { known <- one.Known(ctx, p.PodName, p.UID) }()
			sleep(time.Minute)
			if d, n := dialled.Load(), asked.Load(); d != 1 || n == 0 {
				t.Errorf("%s: %d calls, and the API server was asked %d times", what, d, n)
			}
			replaced.Store(true)
			began := time.Now()
			must(t, <-known)
			if took := time.Since(began); took > 3*soon {
				t.Errorf("%s: the ADD waited %s after another operator led", what, took)
			}
		})
	}
}

// stuckOperator accepts calls, if it is connected, and says nothing.
type stuckOperator struct{ connected bool }

func (o stuckOperator) Follow(ctx context.Context, _ ...grpc.CallOption) (wire.Policies_FollowClient, error) {
	if o.connected {
		return stuckStream{ctx: ctx}, nil
	}
	<-ctx.Done()
	return nil, ctx.Err()
}

type stuckStream struct {
	grpc.ClientStream
	ctx context.Context
}

func (stuckStream) Send(*wire.FromNode) error { return nil }

func (s stuckStream) Recv() (*wire.FromOperator, error) {
	<-s.ctx.Done()
	return nil, s.ctx.Err()
}

// briefOperator ends each call, perhaps after an update.
type briefOperator struct {
	serves bool
	ends   codes.Code
}

func (o briefOperator) Follow(context.Context, ...grpc.CallOption) (wire.Policies_FollowClient, error) {
	return &briefStream{briefOperator: o}, nil
}

type briefStream struct {
	grpc.ClientStream
	briefOperator
}

func (*briefStream) Send(*wire.FromNode) error { return nil }

func (s *briefStream) Recv() (*wire.FromOperator, error) {
	if s.serves {
		s.serves = false
		return &wire.FromOperator{What: &wire.FromOperator_Update{Update: &wire.Update{Version: 1, Whole: true}}}, nil
	}
	return nil, status.Error(s.ends, "the operator ended")
}

func closedNow(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
