// Package sourcetest has helpers for tests of all address sources: pods by number, and a searchable log. Package
// sourcenode has more for sources that use the Kubernetes API. Tests only.
package sourcetest

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthnet/berth/internal/metric"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/source"
)

// Namespace is the namespace of the pods in Request.
const Namespace = "ns"

// Key returns the attachment key of pod number i.
func Key(i int) attachment.Key {
	return attachment.Key{Network: "pods", ContainerID: fmt.Sprintf("c%d", i), IfName: "eth0"}
}

// Request returns the request for the addresses of pod number i.
func Request(i int) source.Request {
	return source.Request{
		Key:     Key(i),
		Pod:     attachment.Pod{Namespace: Namespace, Name: fmt.Sprintf("pod%d", i), UID: fmt.Sprintf("uid-%d", i)},
		Options: source.PodOptions{AnnotationsKnown: true},
	}
}

// Try makes a request that waits at most within.
func Try(t testing.TB, s source.Source, r source.Request, within time.Duration) (source.Lease, error) {
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	return s.Acquire(ctx, r)
}

// Add makes a request for pod number i, which must get an address in time.
func Add(t testing.TB, s source.Source, i int, within time.Duration) source.Lease {
	t.Helper()
	l, err := Try(t, s, Request(i), within)
	if err != nil {
		t.Fatalf("pod %d: %v", i, err)
	}
	return l
}

// Burst makes concurrent requests for the pods in the half-open range [from, to). It returns the leases of those
// that got one in time, and the errors of the others. No address may belong to two pods.
func Burst(t testing.TB, s source.Source, from, to int, within time.Duration) (leases map[int]source.Lease, failed map[int]error) {
	t.Helper()
	var mu sync.Mutex // guards the results
	leases, failed = map[int]source.Lease{}, map[int]error{}
	var wg sync.WaitGroup
	for i := from; i < to; i++ {
		wg.Go(func() {
			l, err := Try(t, s, Request(i), within)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed[i] = err
				return
			}
			leases[i] = l
		})
	}
	wg.Wait()
	pod := map[netip.Addr]int{}
	for i, l := range leases {
		for _, a := range l.Addrs() {
			if other, taken := pod[a]; taken {
				t.Errorf("%s was assigned to both pods %d and %d", a, i, other)
			}
			pod[a] = i
		}
	}
	return leases, failed
}

// AddAll is Burst, but all pods must get an address in time.
func AddAll(t testing.TB, s source.Source, from, to int, within time.Duration) map[int]source.Lease {
	t.Helper()
	leases, failed := Burst(t, s, from, to, within)
	for i, err := range failed {
		t.Errorf("pod %d: %v", i, err)
	}
	return leases
}

// Run runs a source, or another part of a daemon, until stop is called or the test ends, and waits until it has
// ended.
func Run(t testing.TB, s interface{ Run(context.Context) error }) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Run(ctx)
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		<-done
	})
	t.Cleanup(stop)
	return stop
}

// Logger writes all levels to w.
func Logger(w io.Writer) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// Log keeps a log and writes it to the test's output.
type Log struct {
	t    testing.TB
	mu   sync.Mutex // guards text
	text strings.Builder
}

// NewLog returns an empty log.
func NewLog(t testing.TB) *Log { return &Log{t: t} }

// Write implements io.Writer.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.Write(p)
	return l.t.Output().Write(p)
}

// Count returns how often a text was logged.
func (l *Log) Count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), text)
}

// Values returns the metrics of a registry, whose families must be in a source's reference, by name and labels in
// their exposition format; for histograms the count.
func Values(t testing.TB, r *prometheus.Registry, reference source.Reference) map[string]float64 {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, f := range families {
		if !slices.ContainsFunc(reference.Families, func(r metric.Family) bool { return r.Name == f.GetName() && r.Help == f.GetHelp() }) {
			t.Errorf("reference lacks the metric %s", f.GetName())
		}
		for _, m := range f.Metric {
			var labels []string
			for _, l := range m.Label {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			values[f.GetName()+"{"+strings.Join(labels, ",")+"}"] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return values
}
