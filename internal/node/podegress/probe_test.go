package podegress

import (
	"context"
	"errors"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/podegress/egressfake"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/sourcetest"
)

func TestSilent(t *testing.T) {
	one, two, three := gatewayNumber(1), gatewayNumber(2), gatewayNumber(3)
	nat, web := useNamed("nat"), useNamed("web")
	of := map[use][]gateway{nat: {one, two, three}, web: {one, two}}
	failed := func(u use, counts ...int) answers {
		a := answers{}
		for i, n := range counts {
			if n >= 0 {
				a[askedOf(u, gatewayNumber(i+1))] = n
			}
		}
		return a
	}
	for name, tt := range map[string]struct {
		answers answers
		silent  []string // of nat
	}{
		"none was asked":                      {answers{}, nil},
		"all answer":                          {failed(nat, 0, 0, 0), nil},
		"one failed twice":                    {failed(nat, 2, 0, 0), nil},
		"one failed three times":              {failed(nat, 3, 0, 0), []string{"gw-0001"}},
		"all but one":                         {failed(nat, 3, 90, 0), []string{"gw-0001", "gw-0002"}},
		"all":                                 {failed(nat, 3, 90, 7), nil},
		"all that were asked":                 {failed(nat, 3, 90, -1), nil},
		"the other may be about to":           {failed(nat, 3, 90, 1), nil},
		"an answer of another Egress is none": {failed(web, 3, 0), nil},
	} {
		got := tt.answers.silent(of)
		if list := slices.Sorted(maps.Keys(got[nat])); !slices.Equal(list, tt.silent) {
			t.Errorf("%s: silent are %v", name, list)
		}
	}
	if got := toProbe(map[use][]gateway{nat: {one}, web: {one, two}}); len(got) != 2 {
		t.Errorf("probed are %v", got)
	}
}

// network is which gateways answer.
type network struct {
	mu    sync.Mutex // guards all below
	away  map[netip.Addr]bool
	asked map[netip.Addr]int
}

func (n *network) probe(ctx context.Context, to netip.AddrPort) error {
	n.mu.Lock()
	away := n.away[to.Addr()]
	n.asked[to.Addr()]++
	n.mu.Unlock()
	if to.Port() != v1alpha1.EgressHealthPort {
		return errors.New("of another port")
	}
	if !away {
		return nil
	}
	<-ctx.Done()
	return ctx.Err()
}

func (n *network) set(away bool, list ...netip.Addr) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, a := range list {
		n.away[a] = away
	}
}

// clients are those of a node without an API server, which has reported what a book says.
func clients(t *testing.T, b *observed, tune func(*Config)) *Clients {
	t.Helper()
	cfg := Config{NodeName: "node-1", Kernel: egressfake.NewKernel(nil), Port: 5555, Logger: sourcetest.Logger(sourcetest.NewLog(t))}
	tune(&cfg)
	c, err := newClients(cfg, nil)
	harness.OK(t, err)
	c.observed = b
	return c
}

// A gateway that is gone is avoided within some seconds, and not for longer than that; when
// none answers, none is avoided.
func TestProbes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, two := gatewayNumber(1), gatewayNumber(2)
		one.addrs = append(one.addrs, netip.MustParseAddr("fd00::1"))
		b := known(egressWith("nat", one, two), egressWith("single", gatewayNumber(3)))
		for i := range 50 {
			b.putClient(clientOf(i, useNamed("nat"), useNamed("single")))
		}
		net := &network{away: map[netip.Addr]bool{}, asked: map[netip.Addr]int{}}
		c := clients(t, b, func(cfg *Config) { cfg.ProbeInterval, cfg.Probe = time.Second, net.probe })
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { newProber(c).run(ctx) })
		c.probed.Set()
		rec := record(1)
		c.SetUp(rec)
		takes := func() []string {
			e, _ := c.Desired(rec)
			var of attachment.Egress
			of.Egresses = e.Egresses[:1]
			return chosen(of)
		}
		within := func(what string, least, most time.Duration, want ...string) {
			t.Helper()
			start := time.Now()
			for !slices.Equal(takes(), want) {
				if time.Since(start) > most {
					t.Fatalf("%s: after %v connections take %v", what, time.Since(start), takes())
				}
				time.Sleep(10 * time.Millisecond) //nolint:forbidigo // virtual time
			}
			if took := time.Since(start); took < least {
				t.Errorf("%s: after %v already", what, took)
			}
		}
		within("all answer", 0, 0, "gw-0001", "gw-0002")
		time.Sleep(time.Minute) //nolint:forbidigo // virtual time
		net.mu.Lock()
		for _, a := range []netip.Addr{one.addrs[0], one.addrs[1], two.addrs[0]} {
			if n := net.asked[a]; n < 50 || n > 70 {
				t.Errorf("%s was asked %d times in a minute, for 50 pods", a, n)
			}
		}
		if n := net.asked[gatewayNumber(3).addrs[0]]; n > 0 {
			t.Errorf("the only gateway of its Egress was asked %d times", n)
		}
		net.mu.Unlock()

		net.set(true, one.addrs[0])
		time.Sleep(10 * time.Second) //nolint:forbidigo // virtual time
		within("one family is away", 0, 0, "gw-0001", "gw-0002")
		select {
		case <-c.changed: // of before
		default:
		}
		net.set(true, one.addrs[1])
		within("it is gone", 2*time.Second, 6*time.Second, "gw-0002")
		select {
		case <-c.changed:
		default:
			t.Error("nobody is reported that running pods are to have another egress")
		}
		net.set(true, two.addrs...)
		within("all are gone", 0, 6*time.Second, "gw-0001", "gw-0002")
		net.set(false, one.addrs...)
		within("one is back", 0, 3*time.Second, "gw-0001")
		net.set(false, two.addrs...)
		within("both are", 0, 3*time.Second, "gw-0001", "gw-0002")

		// A gateway that is not used is not asked.
		c.change(func(b *observed) {
			for i := range 50 {
				b.dropClient(nameOf(sourcetest.Request(i).Pod), "")
			}
		})
		c.probed.Set()
		synctest.Wait()
		net.mu.Lock()
		clear(net.asked)
		net.mu.Unlock()
		time.Sleep(time.Minute) //nolint:forbidigo // virtual time
		net.mu.Lock()
		if len(net.asked) > 0 {
			t.Errorf("nobody uses them, and asked were %v", net.asked)
		}
		net.mu.Unlock()
		cancel()
		wg.Wait()
	})
}

func TestConnect(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	harness.OK(t, err)
	to := l.Addr().(*net.TCPAddr).AddrPort()
	harness.OK(t, Connect(t.Context(), to))
	conn, err := l.Accept()
	harness.OK(t, err)
	if _, err := conn.Read(make([]byte, 1)); err == nil || !strings.Contains(err.Error(), "reset") {
		t.Errorf("the other end sees %v, want a reset", err)
	}
	_ = conn.Close()
	_ = l.Close()
	if err := Connect(t.Context(), to); err != nil {
		t.Errorf("a refusal is an answer: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if Connect(ctx, to) == nil {
		t.Error("no answer is none")
	}
}
