package demo

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/vpclab/echo"
	"github.com/berthnet/berth/internal/vpclab/lab"
	"github.com/berthnet/berth/internal/vpclab/node"
	"github.com/berthnet/berth/internal/vpclab/ns"
	"github.com/berthnet/berth/internal/vpclab/spec"
)

// introspection compares what the node tells about itself with the pods.
func introspection(ctx context.Context, s *stage) (string, error) {
	var figures string
	for _, n := range s.nodes {
		doc, err := lab.Document(ctx, n)
		if err != nil {
			return "", err
		}
		for _, p := range s.pods[n.Name] {
			found := false
			for _, a := range doc.Allocated {
				found = found || a.Address == p.Addr() && a.Pod == p.Name && a.Namespace == p.Namespace
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

// cooling deletes two pods, sees their addresses cool, and makes two others.
func cooling(ctx context.Context, s *stage) (string, error) {
	n := s.nodes[0]
	pods := s.pods[n.Name]
	gone := pods[len(pods)-2:]
	var freed []netip.Addr
	for _, p := range gone {
		freed = append(freed, p.Addr())
		if err := n.DelPod(ctx, p.Name); err != nil {
			return "", err
		}
	}
	defer func() { s.pods[n.Name] = n.Pods() }()
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
		p, err := n.AddPod(ctx, fmt.Sprintf("fresh-%d", i+1), node.PodOptions{})
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

// conversation is traffic that goes on while something else happens.
type conversation struct {
	answered, lost int
	worst          time.Duration
	err            error // the first loss
}

// converse asks again and again, each question once, until ctx ends.
func converse(ctx context.Context, path, network string, to netip.Addr) (c conversation) {
	conn, err := echo.Connect(ctx, path, network, port(to), netip.Addr{})
	if err != nil {
		return conversation{lost: 1, err: err}
	}
	defer conn.Close()
	for i := 0; ctx.Err() == nil; i++ {
		began := time.Now()
		text := fmt.Sprintf("question %d", i)
		r, err := conn.Once(text, 2*time.Second)
		if err == nil && r.Text != text {
			err = fmt.Errorf("asked %q, was answered %q", text, r.Text)
		}
		if err != nil {
			c.lost++
			c.err = errors.Join(c.err, err)
			if network == "tcp" || c.lost > 3 {
				return c
			}
			continue
		}
		c.answered++
		c.worst = max(c.worst, time.Since(began))
		<-time.After(2 * time.Millisecond) // the pace of the traffic
	}
	return c
}

// killUnderTraffic kills the first node's daemon while its pods talk to
// everybody, starts it again, and makes a pod after that.
func killUnderTraffic(ctx context.Context, s *stage) (string, error) {
	n, other := s.nodes[0], s.nodes[1]
	talk, stop := context.WithCancel(ctx)
	defer stop()
	far := s.pods[other.Name][0].Addr()
	var wg sync.WaitGroup
	var mu sync.Mutex // guards all
	var all []conversation
	for _, p := range s.pods[n.Name] {
		for network, to := range map[string]netip.Addr{"tcp": far, "udp": internet} {
			wg.Go(func() {
				c := converse(talk, p.Netns(), network, to)
				mu.Lock()
				defer mu.Unlock()
				all = append(all, c)
			})
		}
	}
	began := time.Now()
	err := errors.Join(n.Kill(), n.Start(), n.WaitReady(ctx))
	down := time.Since(began)
	var p *node.Pod
	if err == nil {
		if p, err = n.AddPod(ctx, "after-kill", node.PodOptions{}); err == nil {
			s.pods[n.Name] = n.Pods()
			_, err = p.Ask(ctx, "tcp", far, "hello")
		}
	}
	stop()
	wg.Wait()
	total, worst := 0, time.Duration(0)
	for _, c := range all {
		total += c.answered
		worst = max(worst, c.worst)
		if c.lost > 0 {
			err = errors.Join(err, fmt.Errorf("%d questions lost: %w", c.lost, c.err))
		}
	}
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%d answers in %d conversations, 0 lost, slowest %s; ready after %s; pod %s added",
		total, len(all), ms(worst), ms(down), p.Addr()), nil
}

// throttled lets EC2 admit few calls and makes pods that need new addresses.
func throttled(ctx context.Context, s *stage) (string, error) {
	n := s.nodes[1]
	cloud := s.lab.Cloud
	const rate = 2.0 // calls a second of each action
	cloud.SetRateLimit("*", spec.RateLimit{Bucket: 1, Refill: rate})
	defer cloud.ClearRateLimit("*")
	cloud.ResetCalls()
	// Everything but one address of the node's three ENIs is put to use.
	const more = 3
	var wg sync.WaitGroup
	errs := make([]error, more)
	began := time.Now()
	for i := range more {
		wg.Go(func() {
			_, errs[i] = n.AddPod(ctx, fmt.Sprintf("throttled-%d", i+1), node.PodOptions{})
		})
	}
	wg.Wait()
	took := time.Since(began)
	s.pods[n.Name] = n.Pods()
	if err := errors.Join(errs...); err != nil {
		return "", err
	}
	calls, refused := 0, 0
	for _, c := range cloud.Calls() {
		calls += c.Count
		refused += c.Errors["RequestLimitExceeded"]
	}
	enis := len(s.lab.Books().InstanceENIs(n.InstanceID))
	if need := 3; enis > need {
		return "", fmt.Errorf("%d ENIs attached, %d pods need %d", enis, len(s.pods[n.Name]), need)
	}
	for _, e := range s.lab.Books().ENIs {
		if e.Attachment == nil {
			return "", fmt.Errorf("ENI %s was made and not attached", e.ID)
		}
	}
	return fmt.Sprintf("%d pods in %.1f s at %.0f calls/s; %d calls, %d refused; %d ENIs", more, took.Seconds(), rate, calls, refused, enis), nil
}

// metadataBlocked restarts a daemon with the switch and asks for the metadata
// from a pod and from the node.
func metadataBlocked(ctx context.Context, s *stage) (string, error) {
	n := s.nodes[len(s.nodes)-1]
	p := s.pods[n.Name][0]
	const url = "http://169.254.169.254/latest/meta-data/instance-id"
	get := func(path string) (string, error) {
		one, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		return ns.Get(one, path, url)
	}
	if _, err := get(p.Netns()); err != nil {
		return "", fmt.Errorf("before: a pod cannot reach the metadata service: %w", err)
	}
	if err := errors.Join(n.Stop(10*time.Second), n.Start("--block-metadata"), n.WaitReady(ctx)); err != nil {
		return "", err
	}
	if id, err := get(p.Netns()); err == nil {
		return "", fmt.Errorf("a pod still got the instance ID %s", id)
	}
	id, err := get(n.Netns)
	if err != nil {
		return "", fmt.Errorf("the node itself is kept from it too: %w", err)
	}
	return fmt.Sprintf("before: pods too; after: only the node (%s)", id), nil
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
	return fmt.Sprintf("%d pods, %d ENIs, no leak, no duplicate", pods, len(s.lab.Books().ENIs)), nil
}
