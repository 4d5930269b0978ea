package berthegress

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/config"
	"github.com/berthnet/berth/internal/kernel/egressgateway"
)

// fakeKernel records what is applied.
type fakeKernel struct {
	mu      sync.Mutex // guards all below
	applied []egressgateway.Setup
	forgot  int
	err     error // of Apply
	found   bool
	open    int // connections
	hold    chan struct{}
}

func (k *fakeKernel) Apply(_ context.Context, s egressgateway.Setup) error {
	k.mu.Lock()
	hold := k.hold
	k.mu.Unlock()
	if hold != nil {
		<-hold
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.applied = append(k.applied, s)
	return k.err
}

func (k *fakeKernel) InKernel(egressgateway.Setup) (bool, error) { return k.found, nil }

func (k *fakeKernel) Forget() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.forgot++
}

func (k *fakeKernel) OpenConnections() (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.open, nil
}

func (k *fakeKernel) Counters() (egressgateway.Counters, error) {
	return egressgateway.Counters{
		Translated: map[string]map[int]egressgateway.Count{egressgateway.Out: {4: {Packets: 7, Bytes: 700}}},
		Dropped:    map[egressgateway.Reason]map[int]egressgateway.Count{egressgateway.NotClient: {6: {Packets: 3, Bytes: 300}}},
	}, nil
}
func (k *fakeKernel) Connections() (count, limit int, err error) { return 42, 1000, nil }
func (k *fakeKernel) ConnectionsRefused() (uint64, error)        { return 5, nil }

func (k *fakeKernel) set(change func(*fakeKernel)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	change(k)
}

// last returns the last Setup, the number of calls of Apply, and of Forget.
func (k *fakeKernel) last() (s egressgateway.Setup, times, forgot int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if n := len(k.applied); n > 0 {
		s = k.applied[n-1]
	}
	return s, len(k.applied), k.forgot
}

// lines collects log lines.
type lines struct {
	mu   sync.Mutex // guards text
	text []string
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, string(p))
	return len(p), nil
}

func (l *lines) count(part string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(slices.DeleteFunc(slices.Clone(l.text), func(s string) bool { return !strings.Contains(s, part) }))
}

func newTestAgent(t *testing.T, k *fakeKernel) (*agent, *lines) {
	t.Helper()
	out := &lines{}
	cfg := config.Gateway{
		EgressName: "nat", Namespace: "gateways", PodIPs: []netip.Addr{netip.MustParseAddr("10.1.0.9")}, Link: "eth0", Port: 5555,
		GracePeriod: time.Minute, EndDelay: 10 * time.Second,
	}
	return newAgent(cfg, k, clock.Real{}, slog.New(slog.NewTextHandler(out, nil))), out
}
