package demo

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/cloud/spec"
	"github.com/berthnet/berth/lab/network/fabric"
	"github.com/berthnet/berth/lab/oracle"
	"github.com/berthnet/berth/lab/run/node"
)

// coolingPeriods are shorter in modes whose proofs wait until addresses have cooled.
var coolingPeriods = map[lab.Mode]time.Duration{
	lab.NodeMode: 30 * time.Second, lab.OperatorMode: 4 * time.Second, lab.PoolMode: 4 * time.Second,
}

// cooling deletes two pods, checks that their addresses are cooling, and adds two others. It retries if the addresses
// have cooled by then.
func cooling(ctx context.Context, s *stage) (figures string) {
	for try := 1; ; try++ {
		began := time.Now()
		err := attempt(func() { figures = s.cool(ctx, try) })
		if err == nil {
			return figures
		}
		if ctx.Err() != nil || time.Since(began) < coolingPeriods[s.lab.Mode] {
			check(err)
		}
	}
}

func (s *stage) cool(ctx context.Context, try int) string {
	n := s.nodes[0]
	pods := n.Pods()
	if len(pods) < 2 {
		fail("%s has %d pods, want 2 to delete", n.Name, len(pods))
	}
	gone := pods[len(pods)-2:]
	var freed, fresh []netip.Addr
	for _, p := range gone {
		freed = append(freed, p.Addr())
		check(n.DelPod(ctx, p.Name))
	}
	doc := must(lab.Document(ctx, n))
	remaining := 0.0 // seconds
	for _, a := range freed {
		i := slices.IndexFunc(doc.Cooling, func(c introspect.Cooling) bool { return c.Address == a })
		if i < 0 {
			fail("%s is not listed as cooling after its pod was deleted", a)
		}
		remaining = doc.Cooling[i].RemainingSeconds
	}
	for i := range gone {
		p := must(n.AddPod(ctx, fmt.Sprintf("fresh-%d", len(gone)*try+i-1), node.PodOptions{}))
		if slices.Contains(freed, p.Addr()) {
			fail("%s was assigned again during its cooling period", p.Addr())
		}
		fresh = append(fresh, p.Addr())
	}
	return fmt.Sprintf("%v cool for %.0f s more; new pods got %v", freed, remaining, fresh)
}

// throttled launches a node while EC2 admits few calls, and adds as many pods as its ENIs have addresses for.
func throttled(ctx context.Context, s *stage) string {
	cloud := s.lab.Cloud
	const rate = 2.0 // calls per second and action
	cloud.API.SetRateLimit("*", spec.RateLimit{Bucket: 1, Refill: rate})
	defer cloud.API.ClearRateLimit("*")
	cloud.API.ResetCalls()
	began := time.Now()
	n := s.launch(ctx, s.next())
	pods := s.addresses
	s.add(ctx, n, names("pod", pods))
	took := time.Since(began)
	calls, refused := 0, 0
	for _, c := range cloud.API.Stats() {
		calls += c.Count
		refused += c.Errors["RequestLimitExceeded"]
	}
	created := cloud.API.Stats()["CreateNetworkInterface"]
	if made, need := created.Count-created.Errors["RequestLimitExceeded"], len(s.lab.Snapshot().InstanceENIs(n.InstanceID))-1; made != need || need != maxENIs-1 {
		fail("%d ENIs were created for %d pods, which need %d", made, pods, maxENIs-1)
	}
	if 2*refused > calls {
		fail("%d of %d calls were throttled: the limiter does not learn", refused, calls)
	}
	return fmt.Sprintf("a new node and its %d pods in %.1f s at %.0f calls/s per action; %d calls, %d refused; %d ENIs",
		pods, took.Seconds(), rate, calls, refused, maxENIs)
}

// metadataBlocked requests metadata from a pod and from its node, and again with the setting reversed. IPv6-only pods
// also reach the service's IPv4 address, with their node's address.
func metadataBlocked(ctx context.Context, s *stage) string {
	n := s.nodes[len(s.nodes)-1]
	p := s.first(n)
	hosts, id := []netip.Addr{fabric.IMDSEndpoint}, ""
	if s.lead() == ipfamily.IPv6 {
		hosts = append(hosts, fabric.IMDSEndpoint6)
	}
	instanceID := func(path string, host netip.Addr, within time.Duration) (string, error) {
		ctx, cancel := context.WithTimeout(ctx, within)
		defer cancel()
		return ns.Get(ctx, path, "http://"+netip.AddrPortFrom(host, 80).String()+"/latest/meta-data/instance-id")
	}
	for _, host := range hosts {
		if got, err := instanceID(p.Netns(), host, time.Second); err == nil {
			fail("a pod got the instance ID %s from %s", got, host)
		}
		var err error
		id, err = instanceID(n.Netns, host, answerWithin)
		checkf(err, "the node cannot reach the metadata service")
	}
	check(errors.Join(n.Stop(patience), n.Start("--block-metadata=false"), n.WaitReady(ctx)))
	for _, host := range hosts {
		_, err := instanceID(p.Netns(), host, answerWithin)
		checkf(err, "with --block-metadata=false a pod cannot reach the metadata service")
	}
	return fmt.Sprintf("the node gets %s from %v, its pods get nothing; with --block-metadata=false pods get it too", id, hosts)
}

// agreement waits until the lab is at rest and all of its views agree.
func agreement(ctx context.Context, s *stage) string {
	check(oracle.Wait(ctx, s.lab))
	pods := 0
	for _, n := range s.lab.Nodes() {
		pods += len(n.Pods())
	}
	switch {
	case s.lab.Mode == lab.PortMode:
		return fmt.Sprintf("%d pods, %d PodNICs, %d ports with those of users; no leak, no duplicate",
			pods, len(must(s.lab.Kube.PodNICs(ctx))), len(must(s.lab.Ports.Ports(ctx))))
	case s.lab.Site != nil:
		return fmt.Sprintf("%d pods, %d routes, no leak, no duplicate", pods, len(must(s.lab.Site.Routes(ctx))))
	}
	return fmt.Sprintf("%d pods, %d ENIs, no leak, no duplicate", pods, len(s.lab.Snapshot().ENIs))
}
