package eni

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/cloud"
	"github.com/berthnet/berth/internal/cloud/aws"
	"github.com/berthnet/berth/internal/cloud/pace"
	"github.com/berthnet/berth/internal/eni"
	"github.com/berthnet/berth/internal/eni/plan"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/lab/cloud/endpoints"
	"github.com/berthnet/berth/internal/lab/cloud/spec"
	"github.com/berthnet/berth/internal/lab/cloud/vpc"
	"github.com/berthnet/berth/internal/retry"
	"github.com/berthnet/berth/internal/source"
)

// labNode is a source on a lab's EC2 API, over HTTP and the real SDK.
type labNode struct {
	*Source
	lab     *endpoints.Cloud
	id      string
	passes  retry.Signal // a reconciliation ended
	stop    func()
	mu      sync.Mutex // guards creates
	creates int
}

// Acted implements eni.Observer.
func (n *labNode) Acted(a plan.Action, _ cloud.Class, err error, _ time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if a.Kind == plan.Create && err == nil {
		n.creates++
	}
}

// Reconciled implements eni.Observer.
func (n *labNode) Reconciled(time.Duration) { n.passes.Set() }

func labSpec() spec.Spec {
	s := spec.Default()
	s.Throttle = "none"
	return s
}

func startLab(t *testing.T, s spec.Spec, p ipam.Policy) *labNode {
	t.Helper()
	lab, err := endpoints.Serve(s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(lab.Close)
	return startOn(t, lab, p, &memStore{}, nil)
}

func startOn(t *testing.T, lab *endpoints.Cloud, p ipam.Policy, store *memStore, leases map[netip.Addr]source.Lease) *labNode {
	t.Helper()
	access := lab.Credentials()
	t.Setenv("AWS_ACCESS_KEY_ID", access.AccessKeyID)
	t.Setenv("AWS_SECRET_ACCESS_KEY", access.SecretAccessKey)
	client, err := aws.New(t.Context(), aws.Options{Region: lab.Cloud.Region(), EC2Endpoint: lab.EC2URL})
	if err != nil {
		t.Fatal(err)
	}
	n := &labNode{lab: lab, id: lab.Cloud.InstanceID("node-a"), passes: retry.NewSignal()}
	n.Source, err = newTuned(Config{
		Identity: cloud.Identity{InstanceID: n.id}, Cluster: "lab", Cloud: pace.Cloud(client, pace.Options{}), Policy: p, Cooling: time.Second,
		Datapath: &links{auto: true, set: map[string]eni.ENI{}}, Store: store, Intents: &store.MemoryIntents, Observer: n,
		Logger:      slog.New(slog.NewTextHandler(t.Output(), nil)),
		ShrinkDelay: time.Second, ListingInterval: time.Second,
	}, func(c *eni.Config) { c.Settle, c.Lag, c.SlowRetry = 2*time.Second, time.Second, time.Second })
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range leases {
		if err := n.Restore(source.Request{Key: key(int(l.IPv4.As4()[3]))}, l); err != nil { // any keys will do
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = n.Run(ctx) }()
	n.stop = func() { cancel(); <-done }
	t.Cleanup(n.stop)
	return n
}

// until waits for a condition, looking after every reconciliation.
func (n *labNode) until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(3 * time.Minute)
	for !ok() {
		select {
		case <-n.passes:
		case <-deadline:
			t.Fatalf("never: %s; the node says %+v", what, n.Snapshot())
		}
	}
}

// pods acquires addresses for so many pods at once.
func (n *labNode) pods(t *testing.T, from, to int) map[netip.Addr]source.Lease {
	t.Helper()
	got := map[netip.Addr]source.Lease{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for i := from; i < to; i++ {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			l, err := n.Acquire(ctx, source.Request{Key: key(i)})
			if err != nil {
				t.Errorf("pod %d: %v", i, err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if _, ok := got[l.IPv4]; ok {
				t.Errorf("%v was given twice", l.IPv4)
			}
			got[l.IPv4] = l
		})
	}
	wg.Wait()
	return got
}

// agree tells whether the lab's books and the node's are the same, and nothing
// of Berth's is detached or would outlive its instance.
func (n *labNode) agree() bool {
	books := map[netip.Addr]string{}
	for _, e := range n.lab.Cloud.Snapshot().ENIs {
		mine := e.Tags[eni.TagInstanceID] == n.id
		if e.Attachment == nil || e.Attachment.InstanceID != n.id {
			if mine {
				return false
			}
			continue
		}
		if e.Attachment.Status != vpc.Attached || mine && !e.Attachment.DeleteOnTermination {
			return false
		}
		for _, a := range e.Secondary {
			books[a] = e.ID
		}
		for _, p := range e.Prefixes {
			for a := p.Addr(); p.Contains(a); a = a.Next() {
				books[a] = e.ID
			}
		}
	}
	own := n.Snapshot().Addresses
	for _, a := range own {
		if books[a.Addr] != a.ENI {
			return false
		}
	}
	return len(own) == len(books)
}

func TestLabGrowsAndShrinks(t *testing.T) {
	for name, p := range map[string]ipam.Policy{
		"addresses": {WarmIP: 2}, "whole ENIs": ipam.DefaultAWS(), "prefixes": {PrefixDelegation: true, WarmPrefix: 1},
	} {
		t.Run(name, func(t *testing.T) {
			n := startLab(t, labSpec(), p)
			leases := n.pods(t, 0, 20)
			for a, l := range leases {
				if e, ok := n.lab.Cloud.Snapshot().ENI(l.ENI); !ok || a == e.Primary || !e.Owns(a) {
					t.Errorf("%v was given as of %s, which does not have it", a, l.ENI)
				}
			}
			n.until(t, "the books agree with 20 pods", n.agree)
			grown := len(n.Snapshot().Addresses)
			for i := range 20 {
				n.Release(key(i))
			}
			n.until(t, "it shrinks and the books agree", func() bool { return len(n.Snapshot().Addresses) < grown && n.agree() })
			n.until(t, "surplus ENIs go", func() bool { return len(n.Snapshot().Groups) == 1 && n.agree() })
		})
	}
}

// The lab refuses changes to what its listings do not show yet, throttles, and
// loses replies; pods get their addresses all the same and nothing leaks.
func TestLabMisbehaves(t *testing.T) {
	s := labSpec()
	s.Consistency.Writes = true
	s.RateLimits = map[string]spec.RateLimit{"*": {Bucket: 4, Refill: 4}}
	for _, action := range []string{"AssignPrivateIpAddresses", "CreateNetworkInterface", "AttachNetworkInterface", "UnassignPrivateIpAddresses", "DetachNetworkInterface", "DeleteNetworkInterface"} {
		s.Faults = append(s.Faults, spec.Fault{Action: action, Kind: "lostReply", Count: 1})
	}
	n := startLab(t, s, ipam.Policy{WarmIP: 1})
	n.pods(t, 0, 20)
	n.until(t, "the books agree with 20 pods", n.agree)
	n.mu.Lock()
	if n.creates != 2 {
		t.Errorf("%d ENIs were made for 20 pods, want 2", n.creates)
	}
	n.mu.Unlock()
	for i := range 20 {
		n.Release(key(i))
	}
	n.until(t, "all surplus is back", func() bool { return len(n.Snapshot().Addresses) == 1 && n.agree() })
}

func TestLabDeniesAnAction(t *testing.T) {
	s := labSpec()
	s.AccessKeys = []spec.AccessKey{spec.DefaultAccessKey()}
	s.AccessKeys[0].Actions = []string{"ec2:Describe*"}
	n := startLab(t, s, ipam.Policy{WarmIP: 1})
	for deadline := time.Now().Add(time.Minute); ; {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		_, err := n.Acquire(ctx, source.Request{Key: key(1)})
		cancel()
		ex, ok := errors.AsType[*source.Exhausted](err)
		if ok && ex.Reason == "permission" {
			return
		}
		if !ok || time.Now().After(deadline) {
			t.Fatalf("error %v, want reason permission", err)
		}
	}
}

// A daemon that is started again knows what it had, and adopts it.
func TestLabRestart(t *testing.T) {
	lab, err := endpoints.Serve(labSpec())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(lab.Close)
	store := &memStore{}
	n := startOn(t, lab, ipam.Policy{WarmIP: 1}, store, nil)
	leases := n.pods(t, 0, 12)
	n.until(t, "the books agree", n.agree)
	n.stop()
	n = startOn(t, lab, ipam.Policy{WarmIP: 1}, store, leases)
	for a := range n.pods(t, 1000, 1002) {
		if _, held := leases[a]; held {
			t.Errorf("%v was given to a second pod", a)
		}
	}
	n.until(t, "the books agree after the restart", n.agree)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.creates > 1 {
		t.Errorf("%d ENIs were made after the restart", n.creates)
	}
}
