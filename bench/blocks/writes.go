package blocks

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"time"

	"k8s.io/client-go/discovery"
)

// Writes counts requests that change something, by resource.
type Writes map[string]int

// Pools is how many were of the pool itself: its status.
func (w Writes) Pools() int { return w["addresspools"] }

// Others is how many were of everything else.
func (w Writes) Others() (n int) {
	for _, of := range w {
		n += of
	}
	return n - w.Pools()
}

func (w Writes) since(before Writes) Writes {
	out := Writes{}
	for resource, n := range w {
		if n -= before[resource]; n != 0 {
			out[resource] = n
		}
	}
	return out
}

// writes is what the API server counted so far (its metric
// apiserver_request_total, with refused requests). Leases and the like, which it
// writes for itself, are left out.
func (r *run) writes(ctx context.Context) (Writes, error) {
	d, err := discovery.NewDiscoveryClientForConfig(r.lab.Kube.Config())
	if err != nil {
		return nil, err
	}
	text, err := d.RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the API server's metrics: %w", err)
	}
	return countWrites(string(text))
}

// counted is writes once it has counted so many besides those of the pool: the
// API server counts a request after it has answered it.
func (r *run) counted(ctx context.Context, least int) (Writes, error) {
	for {
		w, err := r.writes(ctx)
		if err != nil || w.Others() >= least {
			return w, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("the API server has counted %v, expected %d at least: %w", w, least, ctx.Err())
		case <-time.After(50 * time.Millisecond): // another process's edge
		}
	}
}

var (
	counter = regexp.MustCompile(`(?m)^apiserver_request_total\{(.*)\} (\S+)$`)
	label   = regexp.MustCompile(`(\w+)="([^"]*)"`)

	reading = map[string]bool{"GET": true, "LIST": true, "WATCH": true, "CONNECT": true}
	changed = map[string]bool{"addressblocks": true, "blockrequests": true, "addresspools": true, "nodes": true, "events": true}
)

func countWrites(metrics string) (Writes, error) {
	out := Writes{}
	for _, line := range counter.FindAllStringSubmatch(metrics, -1) {
		labels := map[string]string{}
		for _, l := range label.FindAllStringSubmatch(line[1], -1) {
			labels[l[1]] = l[2]
		}
		if reading[labels["verb"]] || !changed[labels["resource"]] {
			continue
		}
		n, err := strconv.ParseFloat(line[2], 64)
		if err != nil {
			return nil, fmt.Errorf("read the API server's metrics: %s: %w", line[0], err)
		}
		out[labels["resource"]] += int(n)
	}
	return out, nil
}
