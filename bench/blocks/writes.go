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

// Writes counts write requests by resource.
type Writes map[string]int

// Pools is the number of writes to the pool, which change its status.
func (w Writes) Pools() int { return w["addresspools"] }

// Others is the number of all other writes.
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

// counted returns the writes in the API server's metric apiserver_request_total, including rejected ones,
// once there are at least atLeast besides those to the pool: the API server counts a request after it has
// responded. Resources that it writes for itself, such as Leases, are left out.
func (r *run) counted(ctx context.Context, atLeast int) Writes {
	d := must.Get(discovery.NewDiscoveryClientForConfig(r.kube.Config()))
	for {
		text := must.Get(d.RESTClient().Get().AbsPath("/metrics").DoRaw(ctx))
		w := must.Get(countWrites(string(text)))
		if w.Others() >= atLeast {
			return w
		}
		select {
		case <-ctx.Done():
			must.OK(fmt.Errorf("the API server has counted %v, expected at least %d: %w", w, atLeast, ctx.Err()))
		case <-time.After(50 * time.Millisecond): // another process's metrics can only be polled
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
