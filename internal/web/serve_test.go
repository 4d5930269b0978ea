package web

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// serving returns the address of a server on loopback, which ends with the test.
func serving(t *testing.T, h http.Handler) string {
	t.Helper()
	l, err := Listen("metrics-address", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- Serve(t.Context(), l, h, Options{}) }()
	t.Cleanup(func() {
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

func scrape(t *testing.T, address string) {
	t.Helper()
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	r, err := client.Get("http://" + address + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if body, err := io.ReadAll(r.Body); err != nil || r.StatusCode != http.StatusOK {
		t.Fatalf("%d, %v: %s", r.StatusCode, err, body)
	}
}

// Connections that send nothing, or half a header, do not keep others from an answer.
func TestSilentConnectionsAreBounded(t *testing.T) {
	mux := http.NewServeMux()
	HandleMetrics(mux, prometheus.NewRegistry())
	address := serving(t, mux)
	var conns []net.Conn
	for i := range 8 * Connections {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if i%2 == 0 {
			fmt.Fprint(c, "GET /metrics HTTP/1.1\r\nHost: x\r\n")
		}
		conns = append(conns, c)
	}
	scrape(t, address)
	open := 0
	for _, c := range conns {
		_ = c.SetReadDeadline(time.Now().Add(time.Millisecond))
		if _, err := c.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
			open++
		}
	}
	if open > Connections {
		t.Errorf("%d silent connections are open, expected %d at most", open, Connections)
	}
}

// gatherer counts how often it was asked, and by how many at once.
type gatherer struct{ asked, at, most atomic.Int32 }

func (g *gatherer) Gather() ([]*dto.MetricFamily, error) {
	g.most.Store(max(g.most.Load(), g.at.Add(1)))
	defer g.at.Add(-1)
	time.Sleep(time.Millisecond) //nolint:forbidigo // inside a synctest bubble
	name := fmt.Sprint(g.asked.Add(1))
	return []*dto.MetricFamily{{Name: &name}}, nil
}

func TestMetricsAreGatheredOnceAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gatherer{}
		p := &paced{metrics: g}
		begun := time.Now()
		for range 100 { // in the first second
			for range 50 {
				go func() { _, _ = p.Gather() }()
			}
			time.Sleep(10 * time.Millisecond) //nolint:forbidigo // inside a synctest bubble
		}
		if n := g.asked.Load(); n > int32(time.Since(begun)/gatherPause)+1 || n < 5 {
			t.Errorf("gathered %d times in %s", n, time.Since(begun))
		}
		if n := g.most.Load(); n != 1 {
			t.Errorf("%d gatherings at once", n)
		}
		time.Sleep(time.Second) //nolint:forbidigo // inside a synctest bubble
		synctest.Wait()
	})
}

// A scrape gets no values from before its request.
func TestMetricsAreOfAfterTheScrape(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gatherer{}
		p := &paced{metrics: g}
		go func() { _, _ = p.Gather() }()
		synctest.Wait() // that one is under way
		f, err := p.Gather()
		if err != nil || f[0].GetName() != "2" {
			t.Errorf("%v, %v", f, err)
		}
	})
}

// stuck never answers.
type stuck chan struct{}

func (s stuck) Gather() ([]*dto.MetricFamily, error) { <-s; return nil, nil }

func TestAScrapeOfStuckMetricsFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := make(stuck)
		p := &paced{metrics: s}
		if _, err := p.Gather(); !errors.Is(err, errGathering) {
			t.Errorf("err = %v", err)
		}
		close(s)
	})
}
