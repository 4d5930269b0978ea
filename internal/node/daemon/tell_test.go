package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/node/podevents"
	"github.com/berthnet/berth/internal/rpc"
)

// teller is a front without sockets, whose news a test reads in virtual time.
type teller struct {
	*Front
	daemon *running
	start  time.Time

	mu   sync.Mutex // guards news
	news []string   // when, kind, cause: message or addresses
}

// newTeller is the front of a daemon on n that serves, unless it still starts.
func newTeller(n *node, starting bool) *teller {
	t := &teller{daemon: n.assemble(), start: time.Now()}
	t.Front = &Front{
		FrontOptions: FrontOptions{Metrics: t.daemon.Metrics, Clock: clock.Real{}, Log: t.daemon.Log, Tell: t.hear},
		ready:        make(chan struct{}), waiting: "the instance metadata service",
	}
	if !starting {
		t.Front.daemon = t.daemon.Daemon
		close(t.ready)
	}
	return t
}

func (t *teller) hear(n podevents.News) {
	t.mu.Lock()
	defer t.mu.Unlock()
	names := map[podevents.Kind]string{
		podevents.WaitsForAddress: "waits for address", podevents.WaitsForNetwork: "waits for network",
		podevents.NoAddress: "no address", podevents.NetworkFailed: "failed", podevents.Attached: "attached",
	}
	t.news = append(t.news, strings.TrimSpace(fmt.Sprintf("%v %s %s/%s %s: %s%s", time.Since(t.start), names[n.Kind], n.Pod.Namespace, n.Pod.Name, n.Cause, n.Message, strings.Join(n.Addresses, ","))))
}

// add is an ADD as from the socket.
func (t *teller) add(ctx context.Context, req *rpc.AddRequest) error {
	s := &service{front: t.Front}
	_, err := t.intercept(ctx, req, &grpc.UnaryServerInfo{FullMethod: rpc.Node_Add_FullMethodName},
		func(ctx context.Context, req any) (any, error) { return s.Add(ctx, req.(*rpc.AddRequest)) })
	return err
}

func (t *teller) want(test *testing.T, want ...string) {
	test.Helper()
	synctest.Wait()
	t.mu.Lock()
	defer t.mu.Unlock()
	if fmt.Sprint(t.news) != fmt.Sprint(want) {
		test.Errorf("reported\n%s\nwant\n%s", strings.Join(t.news, "\n"), strings.Join(want, "\n"))
	}
}

// Events on a pod appear within 3 s if its ADD waits, and at its end.
func TestEventsOfAnADD(t *testing.T) {
	const none = "the fake source has no free address"
	for name, c := range map[string]struct {
		prepare func(n *node, t *teller, req *rpc.AddRequest)
		leaves  time.Duration // when the caller does, if at all
		deleted time.Duration // when a DEL comes, if at all
		want    []string
	}{
		"a warm address": {
			prepare: func(_ *node, t *teller, _ *rpc.AddRequest) {
				t.daemon.source.Supply(netip.MustParseAddr("10.0.0.5"))
			},
			want: []string{"0s attached default/pod-a : 10.0.0.5/32"},
		},
		"no address": {want: []string{
			"2.5s waits for address default/pod-a subnet-full: " + none,
			"45s no address default/pod-a subnet-full: no address for the pod: " + none,
		}},
		"an address after a while": {
			prepare: func(_ *node, t *teller, _ *rpc.AddRequest) {
				time.AfterFunc(20*time.Second, func() { t.daemon.source.Supply(netip.MustParseAddr("10.0.0.5")) })
			},
			want: []string{"2.5s waits for address default/pod-a subnet-full: " + none, "20s attached default/pod-a : 10.0.0.5/32"},
		},
		"an address soon": {
			prepare: func(_ *node, t *teller, _ *rpc.AddRequest) {
				time.AfterFunc(2*time.Second, func() { t.daemon.source.Supply(netip.MustParseAddr("10.0.0.5")) })
			},
			want: []string{"2s attached default/pod-a : 10.0.0.5/32"},
		},
		"the runtime gives up":       {leaves: 10 * time.Second, want: []string{"2.5s waits for address default/pod-a subnet-full: " + none}},
		"the sandbox is removed":     {deleted: 10 * time.Second, want: []string{"2.5s waits for address default/pod-a subnet-full: " + none}},
		"the sandbox is removed now": {deleted: time.Second},
		"a namespace that is gone": {
			prepare: func(n *node, _ *teller, req *rpc.AddRequest) { n.removeNetns(req.GetNetns()) },
			want:    []string{"0s failed default/pod-a netns-missing: network namespace /run/netns/a does not exist; is the directory of namespaces mounted into berthd with HostToContainer propagation?"},
		},
		"a bad request": {
			prepare: func(_ *node, _ *teller, req *rpc.AddRequest) { req.Mtu = 1 },
			want:    []string{"0s failed default/pod-a bad-request: mtu is 1, expected 0 or 576 to 65535"},
		},
		"another call about the container": {
			prepare: func(_ *node, t *teller, _ *rpc.AddRequest) {
				t.daemon.source.Supply(netip.MustParseAddr("10.0.0.5"))
				unlock, _ := t.daemon.attachments.locks.lock(context.Background(), "a")
				time.AfterFunc(5*time.Second, unlock)
			},
			want: []string{"2.5s waits for network default/pod-a busy: the kernel, or another call about the same container, is slow", "5s attached default/pod-a : 10.0.0.5/32"},
		},
		"a pod without a name":        {prepare: func(_ *node, _ *teller, req *rpc.AddRequest) { req.Pod = nil }},
		"a name that no pod can have": {prepare: func(_ *node, _ *teller, req *rpc.AddRequest) { req.Pod.Name = "a\nb" }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t)
				events, req := newTeller(n, false), addOf("a", n.newNetns("a"))
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if c.prepare != nil {
					c.prepare(n, events, req)
				}
				if c.leaves > 0 {
					time.AfterFunc(c.leaves, cancel)
				}
				if c.deleted > 0 {
					time.AfterFunc(c.deleted, func() { events.daemon.attachments.acquirer.waits.del(keyFor("a")) })
				}
				_ = events.add(ctx, req)
				time.Sleep(10 * time.Second) //nolint:forbidigo // virtual time: nothing comes after the end
				events.want(t, c.want...)
			})
		})
	}
}

// A daemon that starts reports what it waits for.
func TestPodIsToldThatTheDaemonStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		events := newTeller(n, true)
		if events.add(t.Context(), addOf("a", n.newNetns("a"))) == nil {
			t.Error("the ADD worked")
		}
		events.want(t,
			"2.5s waits for network default/pod-a starting: berthd is starting: the instance metadata service",
			"10s failed default/pod-a starting: berthd is starting: the instance metadata service")
	})
}

// The cost of Events for a warm ADD.
func BenchmarkFollowedADD(b *testing.B) {
	teller := podevents.New(podevents.Options{Node: "n", Clock: clock.Real{}, Log: slog.New(slog.DiscardHandler), Counted: func(podevents.Result, int) {}})
	f := &Front{FrontOptions: FrontOptions{Tell: teller.Record}}
	req := addOf("a", "/run/netns/a")
	b.ReportAllocs()
	for b.Loop() {
		f.follow(req).end(nil, nil)
	}
}
