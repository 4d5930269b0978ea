package blocks

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"time"

	"k8s.io/client-go/discovery"

	"github.com/berthnet/berth/bench/must"
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

// counted is what the API server counted so far (its metric apiserver_request_total, with refused
// requests), once that is at least so much besides writes of the pool: it counts a request after it has
// answered it. Leases and the like, which it writes for itself, are left out.
func (r *run) counted(ctx context.Context, least int) Writes {
	d := must.Get(discovery.NewDiscoveryClientForConfig(r.kube.Config()))
	for {
		text := must.Get(d.RESTClient().Get().AbsPath("/metrics").DoRaw(ctx))
		w := must.Get(countWrites(string(text)))
		if w.Others() >= least {
			return w
		}
		select {
		case <-ctx.Done():
			must.OK(fmt.Errorf("the API server has counted %v, expected %d at least: %w", w, least, ctx.Err()))
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
