package podegress

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthnet/berth/internal/kernel/tunnel"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/podegress/egressfake"
	"github.com/berthnet/berth/test/harness"
)

// answering are gateways that are asked, by their addresses.
type answering struct {
	mu    sync.Mutex                                 // guards all below
	by    map[netip.Addr]func(context.Context) error // one that is not there is silent
	asked map[netip.Addr]int
}

func (a *answering) ask(ctx context.Context, to netip.AddrPort, pod string, addrs []netip.Addr) error {
	a.mu.Lock()
	a.asked[to.Addr()]++
	by := a.by[to.Addr()]
	a.mu.Unlock()
	if pod == "" || len(addrs) == 0 || to.Port() != 61690 {
		return fmt.Errorf("asked for pod %q with %v at port %d", pod, addrs, to.Port())
	}
	if by == nil {
		<-ctx.Done()
		return fmt.Errorf("%w: %w", errNoAnswer, ctx.Err())
	}
	return by(ctx)
}

func (a *answering) set(addr string, by func(context.Context) error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.by[netip.MustParseAddr(addr)] = by
}

func after(d time.Duration) func(context.Context) error {
	return func(ctx context.Context) error {
		select {
		case <-time.After(d):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func refuses(context.Context) error {
	return fmt.Errorf("%w: %w", errNoAnswer, syscall.ECONNREFUSED)
}

// withGateways is the record of pod 1 as a client, some of whose gateways new connections may take.
func withGateways(service bool, list ...attachment.EgressGateway) attachment.Record {
	rec := record(1)
	u := attachment.UsedEgress{Namespace: "internet", Name: "nat", UID: "uid-nat", Gateways: list}
	if service {
		u.Service = addrs("10.96.0.9")
	}
	rec.Egress = &attachment.Egress{Egresses: []attachment.UsedEgress{u}}
	return rec
}

func taken(uid string, at ...string) attachment.EgressGateway {
	return attachment.EgressGateway{UID: uid, Addresses: addrs(at...), Chosen: true}
}

// An ADD goes on when all gateways serve the pod that its connections may take, or when its time
// is over. One that does not answer holds up no further pods for a while.
func TestAwait(t *testing.T) {
	const most = 2 * time.Second
	dual, slow, mute := taken("dual", "10.1.0.1", "fd00::1"), taken("slow", "10.1.0.2"), taken("mute", "10.1.0.3")
	other, ending := taken("other", "10.1.0.3"), taken("ending", "10.1.0.3")
	other.Chosen, ending.Chosen, ending.Ending = false, false, true
	for name, tt := range map[string]struct {
		rec   attachment.Record
		took  time.Duration
		lacks []string // gateways
	}{
		"no client":                {record(1), 0, nil},
		"no gateway":               {withGateways(false), 0, nil},
		"one":                      {withGateways(false, slow), 300 * time.Millisecond, nil},
		"either address will do":   {withGateways(false, dual, slow), 300 * time.Millisecond, nil},
		"one does not answer":      {withGateways(false, slow, mute), most, []string{"mute"}},
		"one that is not taken":    {withGateways(false, slow, other), 300 * time.Millisecond, nil},
		"one starts":               {withGateways(false, taken("starting", "10.1.0.4")), 500 * time.Millisecond, nil},
		"one hangs up":             {withGateways(false, taken("full", "10.1.0.6")), 500 * time.Millisecond, nil},
		"one cannot tell":          {withGateways(false, taken("old", "10.1.0.5")), 0, []string{"old"}},
		"by the Service":           {withGateways(true, other), most, []string{"other"}},
		"by the Service, one ends": {withGateways(true, ending), 0, nil},
		"of another interface":     {func() attachment.Record { r := withGateways(false, mute); r.Key.IfName = "net1"; return r }(), 0, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := &answering{by: map[netip.Addr]func(context.Context) error{}, asked: map[netip.Addr]int{}}
				a.set("fd00::1", after(0))
				a.set("10.1.0.2", after(300*time.Millisecond))
				a.set("10.1.0.4", refuses)
				time.AfterFunc(450*time.Millisecond, func() { a.set("10.1.0.4", after(0)) })
				a.set("10.1.0.6", func(context.Context) error { return fmt.Errorf("%w: %w", errNoAnswer, io.EOF) })
				time.AfterFunc(450*time.Millisecond, func() { a.set("10.1.0.6", after(0)) })
				a.set("10.1.0.5", func(context.Context) error { return errors.New("it answers 404: page not found") })
				c := clients(t, newObserved(""), func(cfg *Config) { cfg.Ask = a.ask })
				await := func() (time.Duration, error) {
					ctx, cancel := context.WithTimeout(t.Context(), most)
					defer cancel()
					start := time.Now()
					err := c.Await(ctx, tt.rec)
					synctest.Wait()
					return time.Since(start), err
				}
				took, err := await()
				if took != tt.took || (err != nil) != (len(tt.lacks) > 0) {
					t.Errorf("took %s: %v", took, err)
				}
				for _, g := range tt.lacks {
					if err != nil && !strings.Contains(err.Error(), "gateway "+g+" at") {
						t.Errorf("it says %v, and nothing of %s", err, g)
					}
				}
				if silent := tt.took == most; silent {
					if took, err := await(); took >= most || err != nil {
						t.Errorf("the next pod waits %s: %v", took, err)
					}
					time.Sleep(mutedFor) //nolint:forbidigo // virtual time
					if took, _ := await(); took != most {
						t.Errorf("much later one waits %s", took)
					}
				}
			})
		})
	}
}

// The operator hears of a pod's addresses while it is being set up, once, and that they are no more its
// own when that fails; of one that the node cannot set up it does not.
func TestAddressesAreAnnouncedEarly(t *testing.T) {
	b := known(egressWith("nat", gatewayNumber(1)))
	m := clientOf(1, useNamed("nat"))
	b.putClient(m)
	k := egressfake.NewKernel(nil)
	c := clients(t, b, func(cfg *Config) { cfg.Kernel = k })
	rec := record(1)
	rec.State = attachment.Pending
	e := plan(b.inputs(m, nil))
	rec.Egress = &e
	k.Fail(tunnel.ErrNoFoU)
	c.Announce(rec)
	if s := b.state(m); s != nil {
		t.Errorf("of a node without Foo over UDP it says %+v", s)
	}
	k.Fail(nil)
	c.Announce(rec)
	s := b.state(m)
	if s == nil || s.State != "SetUp" || !slices.Equal(s.Addresses, []string{"10.0.0.2"}) || len(s.Egresses) != 1 {
		t.Fatalf("it says %+v", s)
	}
	m.node = s
	b.putClient(m)
	rec.State = attachment.Ready
	c.SetUp(rec)
	if again := b.state(m); again != nil {
		t.Errorf("then it says %+v", again)
	}
	c.Ended(rec)
	if s := b.state(m); s == nil || s.State != "Gone" || len(s.Addresses) > 0 {
		t.Errorf("when it failed it says %+v", s)
	}
}

// Changes between an ADD's beginning and its end reach the pod.
func TestChangesDuringAnADD(t *testing.T) {
	b := known(egressWith("nat", gatewayNumber(1)))
	m := clientOf(1, useNamed("nat"))
	b.putClient(m)
	c := clients(t, b, func(*Config) {})
	rec := record(1)
	e := plan(b.inputs(m, nil))
	rec.Egress = &e
	news := func() bool {
		select {
		case <-c.DesiredChanged():
			return true
		default:
			return false
		}
	}
	news()
	c.SetUp(rec)
	if news() {
		t.Error("there is news though nothing changed")
	}
	c.Ended(rec)
	c.change(func(b *observed) { b.putEgress(egressWith("nat", gatewayNumber(1), gatewayNumber(2))) })
	news()
	c.SetUp(rec)
	if !news() {
		t.Error("nobody hears of the second gateway")
	}
}

// A gateway is asked by its path, with all addresses; what it answers is reported, however long that is.
func TestAskByHTTP(t *testing.T) {
	pod := addrs("10.0.0.1", "fd00::1")
	for name, tt := range map[string]struct {
		answer func(http.ResponseWriter, *http.Request)
		says   string // empty: it serves
	}{
		"serves": {func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodGet || r.URL.Path != "/clients/uid-1" || !slices.Equal(r.URL.Query()["address"], []string{"10.0.0.1", "fd00::1"}) {
				w.WriteHeader(http.StatusTeapot)
			}
		}, ""},
		"does not": {func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "pod uid-1 is not served yet", http.StatusServiceUnavailable)
		}, "it answers 503: pod uid-1 is not served yet"},
		"is another's": {http.NotFound, "it answers 404"},
		"sends away": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://192.0.2.1/", http.StatusFound)
		}, "it answers 302"},
		"talks on": {func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusForbidden)
			for r.Context().Err() == nil {
				_, _ = w.Write(make([]byte, 1000))
			}
		}, "it answers 403"},
	} {
		t.Run(name, func(t *testing.T) {
			s := httptest.NewServer(http.HandlerFunc(tt.answer))
			defer s.Close()
			err := AskByHTTP(harness.Deadline(t, time.Minute), netip.MustParseAddrPort(s.Listener.Addr().String()), "uid-1", pod)
			if (err == nil) != (tt.says == "") || err != nil && (!strings.Contains(err.Error(), tt.says) || errors.Is(err, errNoAnswer) || len(err.Error()) > 2*longestSaid) {
				t.Errorf("%v, want %q", err, tt.says)
			}
		})
	}
	s := httptest.NewServer(http.NotFoundHandler())
	at := netip.MustParseAddrPort(s.Listener.Addr().String())
	s.Close()
	if err := AskByHTTP(harness.Deadline(t, time.Minute), at, "uid-1", pod); !errors.Is(err, errNoAnswer) || !refusedConnection(err) {
		t.Errorf("where nobody listens: %v", err)
	}
}
