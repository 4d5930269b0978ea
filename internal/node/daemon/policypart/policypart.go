// Package policypart makes network policies a part of the daemon: an ADD returns once the policies of its pod are in force.
// Package networkpolicy receives and enforces them.
package policypart

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/kernel/rtnl"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/daemon/cnierror"
	"github.com/berthnet/berth/internal/node/daemon/part"
	"github.com/berthnet/berth/internal/node/networkpolicy"
	"github.com/berthnet/berth/internal/node/waiters"
	"github.com/berthnet/berth/internal/policy"
	"github.com/berthnet/berth/internal/source"
)

var _ = failpoint.Register("daemon.policies.acquired", "daemon.policies.set", "daemon.policies.announced")

// Enforcer enforces policies. *networkpolicy.Enforcer implements and documents it.
type Enforcer interface {
	Known(ctx context.Context, name policy.PodName, uid string) error
	Unknown(name policy.PodName) string
	Set(ctx context.Context, attachment string, p networkpolicy.Pod) error
	Holds(attachment string, p networkpolicy.Pod) bool
	Remove(attachment string)
	Restore(pods map[string]networkpolicy.Pod)
	Announce(p networkpolicy.Pod) <-chan struct{}
	Condition() source.Condition
	Describe(snap *source.Snapshot, waiting int)
	Run(ctx context.Context) error
}

// Options configure a Part.
type Options struct {
	Enforcer     Enforcer
	Store        *attachment.Store
	Wait         time.Duration // how long an ADD waits until the pod's policies are known
	StartUnknown bool          // after that, the ADD continues with an open pod instead of failing
	TunnelPort   uint16        // UDP, of Egresses
	Metrics      networkpolicy.Metrics
	Log          *slog.Logger
}

// Part applies policies to attachments. It stores nothing in their records: the policies depend on the pod and its addresses.
type Part struct {
	part.None
	Options
	waiters *waiters.Set
	mu      *sync.Mutex // guards the fields below, and waiters
	// announced are ADDs whose addresses are being sent to other nodes.
	announced map[attachment.Key]<-chan struct{}
}

var _ part.Part = Part{}

// New returns a Part.
func New(o Options) Part {
	mu := &sync.Mutex{}
	return Part{Options: o, mu: mu, waiters: waiters.New(mu), announced: map[attachment.Key]<-chan struct{}{}}
}

// announceWait limits how long an ADD waits until other nodes know the pod's addresses. The operator normally answers sooner.
const announceWait = time.Second

// About implements part.Part.
func (p Part) About() part.About {
	return part.About{
		Name: "network policies", Wait: p.Wait, AwaitLimit: announceWait,
		NotAcquired: "the pod's network policies are not known: ", NotPrepared: "the pod's network policies are not in force: ",
		NotServed:         "other nodes do not know the pod's addresses yet: ", // of a cancelled ADD
		FollowsInterfaces: true, ChecksAtOnce: 1,
	}
}

// CheckOptions implements part.Part. Without the UID, a pod cannot be distinguished from an earlier one of the same name.
func (p Part) CheckOptions(req attachment.Request) error {
	if req.Pod.Name != "" && req.Pod.UID == "" {
		return fmt.Errorf("pod %s/%s has no UID: --network-policies needs a container runtime that passes K8S_POD_UID in CNI_ARGS", req.Pod.Namespace, req.Pod.Name)
	}
	return nil
}

// has reports whether an attachment belongs to a pod. Sandboxes outside Kubernetes have no policies.
func has(pod attachment.Pod) bool { return pod.Name != "" && pod.UID != "" }

func nameOf(pod attachment.Pod) policy.PodName {
	return policy.PodName{Namespace: pod.Namespace, Name: pod.Name}
}

// ofASwitch are kinds of plugs whose packets do not pass the node's IP stack.
var ofASwitch = []plug.Kind{plug.OVS, plug.OVSHybrid, plug.Netns, plug.VLAN}

// InsideOf returns the network namespace whose table enforces the policies of an attachment; nil for the node's.
func InsideOf(rec attachment.Record) *networkpolicy.Inside {
	first := rec.First()
	if first == nil || !slices.Contains(ofASwitch, plug.Kind(first.Plug.Type)) {
		return nil
	}
	return &networkpolicy.Inside{Netns: rec.Netns.Path, ID: rtnl.NetnsID{Dev: rec.Netns.Dev, Inode: rec.Netns.Inode}, Links: []string{first.IfName}, Only: true}
}

// tunnelsOf returns the tunnels of an attachment's Egresses, including those that a change is about to remove.
func tunnelsOf(rec attachment.Record, port uint16) (list []netip.AddrPort) {
	for _, a := range rec.Egress.TunnelEnds() {
		list = append(list, netip.AddrPortFrom(a, port))
	}
	return list
}

// podOf returns an attachment as a pod of the Enforcer. Policies apply to the addresses of its own interface: other NICs are in
// separate networks, which may use the same addresses.
func (p Part) podOf(rec attachment.Record) networkpolicy.Pod {
	pod := networkpolicy.Pod{PodName: nameOf(rec.Pod), UID: rec.Pod.UID, Addrs: rec.OwnAddrs(), Tunnels: tunnelsOf(rec, p.TunnelPort), Inside: InsideOf(rec)}
	if local := rec.Lease.NodeLocal; local.IsValid() {
		pod.Local = append(pod.Local, local)
	}
	// The Pod's status has the addresses of the sandbox's first interface, by which policies select it.
	further := slices.ContainsFunc(p.Store.Of(rec.Key.ContainerID), func(o attachment.Record) bool {
		return o.Key != rec.Key && cmp.Or(o.Since.Compare(rec.Since), cmp.Compare(o.Key.IfName, rec.Key.IfName)) < 0
	})
	if further {
		pod.Addrs, pod.Local = nil, append(pod.Addrs, pod.Local...)
	}
	return pod
}

// Acquire implements part.Part. It holds no address while it waits.
func (p Part) Acquire(ctx context.Context, req attachment.Request, _ *attachment.Record) (bool, error) {
	if !has(req.Pod) {
		return false, nil
	}
	name := nameOf(req.Pod)
	missing := func() *source.Exhausted { return waiters.Missing("policies-unknown", "%s", p.Enforcer.Unknown(name)) }
	defer p.waiters.Note(req, missing)()
	began := time.Now()
	wait, cancel := context.WithTimeout(ctx, p.Wait)
	defer cancel()
	err := p.Enforcer.Known(wait, name, req.Pod.UID)
	p.Metrics.Waited(time.Since(began), err)
	switch {
	case err == nil:
		return true, failpoint.Hit("daemon.policies.acquired")
	case p.StartUnknown && ctx.Err() == nil:
		p.Log.Warn("a pod starts before its network policies are known, open to everyone", "namespace", req.Pod.Namespace, "pod", req.Pod.Name, "err", err)
		return true, nil
	}
	ex := missing()
	ex.Err = err
	return false, ex
}

// Why implements part.Part.
func (p Part) Why(key attachment.Key) *source.Exhausted { return p.waiters.Why(key) }

// Prepare implements part.Part: policies are in force before the pod has an interface. In the meantime, the pod's addresses are
// sent to other nodes, which takes longest. A running pod keeps its former addresses until its interfaces have been changed.
func (p Part) Prepare(ctx context.Context, rec attachment.Record) error {
	if !has(rec.Pod) {
		return nil
	}
	pod := p.podOf(rec)
	pod.Changes = rec.State == attachment.Ready
	if done := p.Enforcer.Announce(pod); done != nil {
		p.mu.Lock()
		p.announced[rec.Key] = done
		p.mu.Unlock()
	}
	if err := p.Enforcer.Set(ctx, rec.Key.String(), pod); err != nil {
		return &source.Exhausted{Reason: "policies-not-in-force", Message: err.Error(), Err: err}
	}
	return failpoint.Hit("daemon.policies.set")
}

// SetUp implements part.Part, for addresses that changed since Prepare, and tunnels before and after they change.
func (p Part) SetUp(ctx context.Context, rec attachment.Record) (attachment.Record, error) {
	if !has(rec.Pod) {
		return rec, nil
	}
	pod := p.podOf(rec)
	if p.Enforcer.Holds(rec.Key.String(), pod) {
		return rec, nil
	}
	if err := p.Enforcer.Set(ctx, rec.Key.String(), pod); err != nil {
		return rec, cnierror.Because(err, types.ErrTryAgainLater, "policies-not-in-force", "putting the pod's network policies in force")
	}
	p.Enforcer.Announce(pod)
	return rec, nil
}

// Await implements part.Part, so that the pod's first connection reaches pods that allow it. If that takes too long, the pod starts
// anyway: its early packets are dropped, and TCP retransmits them.
func (p Part) Await(ctx context.Context, rec attachment.Record) error {
	p.mu.Lock()
	done := p.announced[rec.Key]
	delete(p.announced, rec.Key)
	p.mu.Unlock()
	if done == nil {
		return nil
	}
	select {
	case <-done:
		return failpoint.Hit("daemon.policies.announced")
	case <-ctx.Done():
	}
	if cause := context.Cause(ctx); !errors.Is(cause, context.DeadlineExceeded) && !errors.Is(cause, part.ErrDraining) {
		return cause
	}
	p.Log.Info("a pod starts before all nodes know its addresses", rec.ForLog()...)
	return nil
}

// Checks implements part.Part.
func (Part) Checks(rec attachment.Record) (checks bool, service string) { return has(rec.Pod), "" }

// Check implements part.Part.
func (p Part) Check(_ context.Context, rec attachment.Record) error {
	if !has(rec.Pod) || p.Enforcer.Holds(rec.Key.String(), p.podOf(rec)) {
		return nil
	}
	return errors.New("network policies are enforced for other addresses or tunnels than the pod's")
}

// Inspect implements part.Part.
func (p Part) Inspect(context.Context) []source.Condition {
	return []source.Condition{p.Enforcer.Condition()}
}

// Gone implements part.Part.
func (p Part) Gone(rec attachment.Record) {
	p.mu.Lock()
	delete(p.announced, rec.Key)
	p.mu.Unlock()
	p.Enforcer.Remove(rec.Key.String())
}

// TakeUp implements part.Part.
func (p Part) TakeUp(ready []attachment.Record) {
	pods := map[string]networkpolicy.Pod{}
	for _, rec := range ready {
		switch {
		case has(rec.Pod):
			pods[rec.Key.String()] = p.podOf(rec)
		case rec.Pod.Name != "":
			p.Log.Warn("a running pod without a UID has no network policies until it is replaced", rec.ForLog()...)
		}
	}
	p.Enforcer.Restore(pods)
}

// Describe implements part.Part.
func (p Part) Describe(snap *source.Snapshot) {
	p.mu.Lock()
	waiting := p.waiters.Len()
	p.mu.Unlock()
	p.Enforcer.Describe(snap, waiting)
}

// Run implements part.Part.
func (p Part) Run(ctx context.Context) error { return p.Enforcer.Run(ctx) }
