package demo

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/cloud/spec"
	"github.com/berthnet/berth/lab/network/fabric"
	"github.com/berthnet/berth/lab/network/ns"
	"github.com/berthnet/berth/lab/run/node"
)

// introspection compares what the node tells about itself with the pods.
func introspection(ctx context.Context, s *stage) (string, error) {
	var figures string
	for _, n := range s.nodes {
		doc, err := lab.Document(ctx, n)
		if err != nil {
			return "", err
		}
		for _, p := range n.Pods() {
			found := false
			for _, a := range doc.Allocated {
				found = found || a.Address == p.Addr() && a.Pod == p.ObjectName && a.Namespace == p.Namespace
			}
			if !found {
				return "", fmt.Errorf("%s does not list pod %s with %s", n.Name, p.Name, p.Addr())
			}
		}
		if figures == "" {
			figures = fmt.Sprintf("%s: %d allocated, %d available, %d cooling of %d",
				n.Name, doc.Totals.Allocated, doc.Totals.Available, doc.Totals.Cooling, doc.Totals.Capacity)
		}
	}
	return figures, nil
}

// coolingPeriods are shorter in the modes in which the story waits for their end.
var coolingPeriods = map[lab.Mode]time.Duration{
	lab.NodeMode: 30 * time.Second, lab.OperatorMode: 4 * time.Second, lab.PoolMode: 4 * time.Second,
}

// cooling deletes two pods, sees their addresses cool, and makes two others. It
// begins again where that took so long that they have cooled.
func cooling(ctx context.Context, s *stage) (string, error) {
	for try := 1; ; try++ {
		began := time.Now()
		figures, err := s.cool(ctx, try)
		if err == nil || ctx.Err() != nil || time.Since(began) < coolingPeriods[s.lab.Mode] {
			return figures, err
		}
	}
}

func (s *stage) cool(ctx context.Context, try int) (string, error) {
	n := s.nodes[0]
	pods := n.Pods()
	if len(pods) < 2 {
		return "", fmt.Errorf("%s has %d pods, 2 are to be deleted", n.Name, len(pods))
	}
	gone := pods[len(pods)-2:]
	var freed []netip.Addr
	for _, p := range gone {
		freed = append(freed, p.Addr())
		if err := n.DelPod(ctx, p.Name); err != nil {
			return "", err
		}
	}
	doc, err := lab.Document(ctx, n)
	if err != nil {
		return "", err
	}
	remaining := time.Duration(0)
	for _, a := range freed {
		found := false
		for _, c := range doc.Cooling {
			if c.Address == a {
				found, remaining = true, time.Duration(c.RemainingSeconds*float64(time.Second))
			}
		}
		if !found {
			return "", fmt.Errorf("%s is not listed as cooling after its pod was deleted", a)
		}
	}
	var fresh []netip.Addr
	for i := range gone {
		p, err := n.AddPod(ctx, fmt.Sprintf("fresh-%d", len(gone)*try+i-1), node.PodOptions{})
		if err != nil {
			return "", err
		}
		if slices.Contains(freed, p.Addr()) {
			return "", fmt.Errorf("%s was handed out again while it should cool", p.Addr())
		}
		fresh = append(fresh, p.Addr())
	}
	return fmt.Sprintf("%v cool for %.0f s more; new pods got %v", freed, remaining.Seconds(), fresh), nil
}

// throttled launches one more node while EC2 admits few calls, and makes as
// many pods there as its ENIs can hold.
func throttled(ctx context.Context, s *stage) (string, error) {
	cloud := s.lab.Cloud
	const rate = 2.0 // calls a second of each action
	cloud.API.SetRateLimit("*", spec.RateLimit{Bucket: 1, Refill: rate})
	defer cloud.API.ClearRateLimit("*")
	cloud.API.ResetCalls()
	began := time.Now()
	n, err := s.launch(ctx, s.next())
	if err != nil {
		return "", err
	}
	pods := s.addresses
	if err := s.add(ctx, n, names("pod", pods)); err != nil {
		return "", err
	}
	took := time.Since(began)
	calls, refused := 0, 0
	for _, c := range cloud.API.Stats() {
		calls += c.Count
		refused += c.Errors["RequestLimitExceeded"]
	}
	created := cloud.API.Stats()["CreateNetworkInterface"]
	if made, need := created.Count-created.Errors["RequestLimitExceeded"], len(s.lab.Books().InstanceENIs(n.InstanceID))-1; made != need || need != maxENIs-1 {
		return "", fmt.Errorf("%d ENIs were created for %d pods, which need %d", made, pods, maxENIs-1)
	}
	if 2*refused > calls {
		return "", fmt.Errorf("%d of %d calls were refused: the limiter does not learn", refused, calls)
	}
	return fmt.Sprintf("a new node and its %d pods in %.1f s at %.0f calls/s an action; %d calls, %d refused; %d ENIs",
		pods, took.Seconds(), rate, calls, refused, maxENIs), nil
}

// next is one more node like the first.
func (s *stage) next() spec.Instance {
	i := s.lab.Cloud.Spec().Instances[0]
	return spec.Instance{Name: fmt.Sprintf("node-%d", len(s.nodes)+1), Type: i.Type, Subnet: i.Subnet, Role: i.Role}
}

// launch adds a node and returns once it is ready.
func (s *stage) launch(ctx context.Context, i spec.Instance) (*node.Node, error) {
	if _, err := s.lab.Cloud.Instances.Launch(i); err != nil {
		return nil, err
	}
	s.lab.CatchUp()
	n, err := s.lab.Node(i.Name)
	if err != nil {
		return nil, err
	}
	s.nodes = append(s.nodes, n)
	return n, n.WaitReady(ctx)
}

// metadataHosts are where pods may look for the metadata service. Those of IPv6 alone have a
// way to its IPv4 address too, as their node.
func (s *stage) metadataHosts() []netip.Addr {
	if s.lead() == ipfamily.IPv6 {
		return []netip.Addr{fabric.IMDSEndpoint6, fabric.IMDSEndpoint}
	}
	return []netip.Addr{fabric.IMDSEndpoint}
}

// instanceID asks a metadata service from a namespace, for so long.
func instanceID(ctx context.Context, path string, host netip.Addr, within time.Duration) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	return ns.Get(ctx, path, "http://"+netip.AddrPortFrom(host, 80).String()+"/latest/meta-data/instance-id")
}

// metadataBlocked asks for the metadata from a pod and from the node, and again
// once a daemon runs with the switch the other way.
func metadataBlocked(ctx context.Context, s *stage) (string, error) {
	n := s.nodes[len(s.nodes)-1]
	p, err := s.first(n)
	if err != nil {
		return "", err
	}
	hosts, id := s.metadataHosts(), ""
	for _, host := range hosts {
		if got, err := instanceID(ctx, p.Netns(), host, time.Second); err == nil {
			return "", fmt.Errorf("a pod got the instance ID %s from %s", got, host)
		}
		var err error
		if id, err = instanceID(ctx, n.Netns, host, answerWithin); err != nil {
			return "", fmt.Errorf("the node itself is kept from it too: %w", err)
		}
	}
	if err := errors.Join(n.Stop(patience), n.Start("--block-metadata=false"), n.WaitReady(ctx)); err != nil {
		return "", err
	}
	for _, host := range hosts {
		if _, err := instanceID(ctx, p.Netns(), host, answerWithin); err != nil {
			return "", fmt.Errorf("with --block-metadata=false a pod cannot reach the metadata service: %w", err)
		}
	}
	return fmt.Sprintf("the node gets %s from %v, its pods nothing; with --block-metadata=false they do too", id, hosts), nil
}

// agreement waits until the lab rests and compares all views of it.
func agreement(ctx context.Context, s *stage) (string, error) {
	if err := s.lab.WaitInvariants(ctx); err != nil {
		return "", err
	}
	pods := 0
	for _, n := range s.lab.Nodes() {
		pods += len(n.Pods())
	}
	if s.lab.Site != nil {
		routes, err := s.lab.Site.Routes(ctx)
		return fmt.Sprintf("%d pods, %d routes, no leak, no duplicate", pods, len(routes)), err
	}
	return fmt.Sprintf("%d pods, %d ENIs, no leak, no duplicate", pods, len(s.lab.Books().ENIs)), nil
}
