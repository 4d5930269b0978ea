package enisource

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/cloudfake"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/ec2/eni/plan"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/podevents"
	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/test/harness/sourcetest"
)

const instance = "i-1"

var key = sourcetest.Key

// links is a Datapath whose links appear when a test says so.
type links struct {
	mu      sync.Mutex // guards all below
	missing map[string]bool
	auto    bool // links are there at once
	set     map[string]eni.ENI
	removed []string
	changed map[string]source.LinkChange // as someone else left them
	dumps   int                          // of all links
}

func newLinks() *links {
	return &links{auto: true, set: map[string]eni.ENI{}, missing: map[string]bool{}, changed: map[string]source.LinkChange{}}
}

var errNoLink = fmt.Errorf("%w yet", source.ErrNoLink)

func (l *links) SetENI(_ context.Context, e eni.ENI) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.missing[e.ID] || !l.auto && !e.Primary && l.set[e.ID].ID == "" {
		return errNoLink
	}
	l.set[e.ID] = e
	delete(l.changed, e.ID)
	return nil
}

func (l *links) ChangedLinks(context.Context) (map[string]source.LinkChange, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dumps++
	return maps.Clone(l.changed), nil
}

// lose removes the link of an ENI, and appear adds it, or another.
func (l *links) lose(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.missing[id], l.changed[id] = true, source.LinkGone
}

func (l *links) appear(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.missing, id)
	l.changed[id] = source.LinkReplaced
}

func (l *links) RemoveENI(_ context.Context, id string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.set, id)
	l.removed = append(l.removed, id)
	return nil
}

// memStore is an InventoryStore and Intents that outlive a daemon.
type memStore struct {
	eni.MemoryIntents
	mu    sync.Mutex // guards inv and saved
	inv   eni.Inventory
	saved bool
}

func (m *memStore) Load() (eni.Inventory, bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.inv, m.saved, nil
}

func (m *memStore) Save(inv eni.Inventory) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.inv, m.saved = inv, true
	return nil
}

// node is a machine whose daemon can be killed and started again.
type node struct {
	t          *testing.T
	cloud      *cloudfake.Cloud
	links      *links
	store      *memStore
	policy     ipam.Policy
	tune       func(*eni.Config)
	notifiedMu sync.Mutex
	notified   []string // what became of running pods: "POD CAUSE"; takeNotified reads it
	*Source
	stop    context.CancelFunc
	done    chan struct{}
	mu      sync.Mutex                      // guards leases and cooling while pods start at once
	leases  map[attachment.Key]source.Lease // the records on disk
	cooling map[netip.Addr]time.Time
}

// newNode makes a VPC with one instance; call it in a synctest bubble.
func newNode(t *testing.T, itype string, p ipam.Policy) *node {
	c := cloudfake.New(cloudfake.Options{})
	c.State.AddSubnet("subnet-1", "zone-a", "10.0.0.0/20", nil)
	if p.Families.Has(ipfamily.IPv6) {
		c.State.SetIPv6("subnet-1", "2001:db8::/64")
	}
	c.State.AddInstance(instance, itype, "subnet-1")
	return &node{
		t: t, cloud: c, policy: p, links: newLinks(),
		store: &memStore{}, leases: map[attachment.Key]source.Lease{}, cooling: map[netip.Addr]time.Time{},
	}
}

func (n *node) start() {
	n.t.Helper()
	n.startConfigured()
}

// startConfigured is start with settings that are given before the first pass.
func (n *node) startConfigured(wanted ...Desired) {
	n.t.Helper()
	c := eni.Config{
		Settings: eni.Settings{Policy: n.policy}, Cluster: "test", Cloud: n.cloud, Intents: &n.store.MemoryIntents, Rand: rand.New(rand.NewPCG(1, 2)),
	}
	if n.tune != nil {
		n.tune(&c)
	}
	s, err := New(Options{
		InstanceID: instance, Datapath: n.links, Cooling: ipam.DefaultCooling, Store: n.store, Logger: sourcetest.Logger(n.t.Output()),
		Notify: func(e podevents.News) {
			n.notifiedMu.Lock()
			defer n.notifiedMu.Unlock()
			n.notified = append(n.notified, strings.TrimSpace(e.Pod.Name+" "+e.Cause))
		},
	}, c)
	if err != nil {
		n.t.Fatal(err)
	}
	for a, since := range n.cooling {
		s.RestoreCooling(a, since)
	}
	for k, l := range n.leases {
		if err := s.Restore(source.Request{Key: k}, l); err != nil {
			n.t.Fatal(err)
		}
	}
	for _, w := range wanted {
		s.Configure(w)
	}
	n.t.Logf("%s daemon starts, inventory on file: %+v", time.Now().Format(time.TimeOnly), n.store.inv)
	ctx, cancel := context.WithCancel(n.t.Context())
	n.Source, n.stop, n.done = s, cancel, make(chan struct{})
	go func(done chan struct{}) {
		defer close(done)
		_ = s.Run(ctx)
	}(n.done)
	synctest.Wait()
}

func (n *node) kill() {
	n.stop()
	<-n.done
}

// settle lets virtual time pass until all goroutines rest.
func (n *node) settle(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // virtual time, in a synctest bubble
	synctest.Wait()
}

// startAndSettle starts the daemon, and lets time pass.
func (n *node) startAndSettle(d time.Duration) {
	n.t.Helper()
	n.start()
	n.settle(d)
}

// Acquire records the lease, as a daemon does.
func (n *node) Acquire(ctx context.Context, r source.Request) (source.Lease, error) {
	l, err := n.Source.Acquire(ctx, r)
	n.mu.Lock()
	defer n.mu.Unlock()
	if err == nil {
		n.leases[r.Key] = l
		n.t.Logf("%s %s got %v of %s", time.Now().Format(time.TimeOnly), r.Pod.Name, l.Addrs(), l.ENI)
	}
	return l, err
}

// add starts a pod and fails the test if it gets no address in time.
func (n *node) add(i int, within time.Duration) source.Lease {
	n.t.Helper()
	return sourcetest.Add(n.t, n, i, within)
}

func (n *node) try(i int, within time.Duration) (source.Lease, error) {
	return sourcetest.Try(n.t, n, sourcetest.Request(i), within)
}

// fails starts a pod that gets no address in time, for a reason.
func (n *node) fails(i int, within time.Duration, reason string) error {
	n.t.Helper()
	l, err := n.try(i, within)
	if ex, ok := errors.AsType[*source.Exhausted](err); !ok || ex.Reason != reason {
		n.t.Fatalf("pod %d: %v, %v; want reason %s", i, l, err, reason)
	}
	return err
}

// del ends a pod.
func (n *node) del(i int) {
	l := n.leases[key(i)]
	delete(n.leases, key(i))
	n.Release(key(i))
	for _, a := range l.Addrs() {
		n.cooling[a] = time.Now()
	}
}

// delAll ends the pods from..to.
func (n *node) delAll(from, to int) {
	for i := from; i < to; i++ {
		n.del(i)
	}
}

// burst starts pods from..to all at once and waits for them.
func (n *node) burst(from, to int, within time.Duration) (failed int) {
	n.t.Helper()
	_, why := sourcetest.Burst(n.t, n, from, to, within)
	return len(why)
}

// addAll is a burst of pods that must all get an address in time.
func (n *node) addAll(from, to int, within time.Duration) {
	n.t.Helper()
	if failed := n.burst(from, to, within); failed > 0 {
		n.t.Errorf("%d of %d pods have no address within %v", failed, to-from, within)
	}
}

// layout returns the number of pods that each ENI has addresses for, by device index, as EC2 has them.
func (n *node) layout() string {
	list := n.cloud.State.Truth()
	slices.SortFunc(list, func(x, y cloud.ENI) int { return index(x) - index(y) })
	var out []string
	for _, e := range list {
		if e.Attachment == nil {
			out = append(out, "detached")
			continue
		}
		a := cloud.Amount{Addresses: len(e.Addresses), Prefixes: len(e.Prefixes), IPv6Prefixes: len(e.IPv6Prefixes)}
		if !primary(e) { // there they are the instance's own
			a.IPv6 = len(e.IPv6)
		}
		out = append(out, fmt.Sprint(plan.Pods(n.policy.Families, a)))
	}
	return strings.Join(out, ",")
}

func primary(e cloud.ENI) bool { return e.Attachment != nil && e.Attachment.DeviceIndex == 0 }

func index(e cloud.ENI) int {
	if e.Attachment == nil {
		return 99
	}
	return e.Attachment.DeviceIndex
}

// check compares the node with EC2: every lease's address is assigned to the ENI that it names, no
// address has two pods, no cooling address was handed out, and no free address is unknown to EC2.
func (n *node) check() {
	n.t.Helper()
	truth := n.cloud.State.Truth()
	owner := func(a netip.Addr) string {
		for _, e := range truth {
			own := primary(e) && slices.Contains(e.IPv6, a)
			if slices.ContainsFunc(things(e), func(p netip.Prefix) bool { return p.Contains(a) }) && !own {
				return e.ID
			}
		}
		return ""
	}
	holder := map[netip.Addr]attachment.Key{}
	for k, l := range n.leases {
		for _, a := range l.Addrs() {
			if other, ok := holder[a]; ok {
				n.t.Errorf("%v is held by %v and %v", a, k, other)
			}
			holder[a] = k
			if owner(a) != l.ENI {
				n.t.Errorf("%v has %v of %s, EC2 says %q", k, a, l.ENI, owner(a))
			}
			if since, ok := n.cooling[a]; ok && time.Since(since) < ipam.DefaultCooling {
				n.t.Errorf("%v got %v, released %v ago", k, a, time.Since(since))
			}
		}
	}
	for _, a := range n.Snapshot().Addresses {
		if a.State == source.Warm && owner(a.Addr) == "" {
			n.t.Errorf("%v is warm here and not assigned at EC2", a.Addr)
		}
	}
}

// things returns what EC2 has assigned to an ENI besides its primary address.
func things(e cloud.ENI) []netip.Prefix {
	return slices.Concat(cloud.HostPrefixes(e.Addresses), e.Prefixes, cloud.HostPrefixes(e.IPv6), e.IPv6Prefixes)
}

func (n *node) wantLayout(want string) {
	n.t.Helper()
	if got := n.layout(); got != want {
		n.t.Errorf("addresses per ENI: %s, want %s", got, want)
	}
}

// changes are the calls that change something at EC2.
var changes = []string{"CreateENI", "AttachENI", "DetachENI", "DeleteENI", "SetDeleteOnTermination",
	"AssignAddresses", "UnassignAddresses", "Tag"}
