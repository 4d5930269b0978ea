package fleet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/cloudfake"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/test/harness/check"
)

// object is a node as represented by its NodeNetwork: the last published inventory, and a daemon that assigns
// addresses to pods and confirms withdrawals immediately.
type object struct {
	name, instance string

	mu        sync.Mutex // guards all below
	version   int
	inv       eni.Inventory
	used      map[netip.Addr]bool
	withdrawn map[netip.Addr]bool
	leaving   map[string]bool
	committed map[netip.Addr]string // addresses being released, with their ENIs
	detaching map[string]bool       // ENIs being released
	waiting   int
}

func newObject(name, instance string) *object {
	return &object{name: name, instance: instance, used: map[netip.Addr]bool{}, withdrawn: map[netip.Addr]bool{}, leaving: map[string]bool{},
		committed: map[netip.Addr]string{}, detaching: map[string]bool{}}
}

// start assigns an address to a new pod, or makes it wait.
func (o *object) start() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.waiting++
	o.serve()
}

// serve assigns addresses to waiting pods. o.mu is held.
func (o *object) serve() {
	for _, e := range o.inv.ENIs {
		for _, a := range e.Addresses {
			if o.waiting > 0 && e.Serves && !o.leaving[e.ID] && !o.used[a] && !o.withdrawn[a] {
				o.used[a] = true
				o.waiting--
			}
		}
	}
}

// end ends a pod, if one is running.
func (o *object) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for a := range o.used {
		delete(o.used, a)
		return
	}
}

// pods returns how many pods have an address, and how many are waiting.
func (o *object) pods() (with, waiting int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.used), o.waiting
}

// published returns the number of inventories published so far.
func (o *object) published() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.version
}

// inventory returns the last published inventory.
func (o *object) inventory() eni.Inventory {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.inv
}

// has reports whether a pod has an address.
func (o *object) has(a netip.Addr) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.used[a]
}

// available returns the number of addresses for pods.
func (o *object) available() (n int) {
	for _, e := range o.inventory().ENIs {
		if e.Serves {
			n += len(e.Addresses)
		}
	}
	return n
}

// writer is one operator's view of an object. Its writes fail after another operator's write, until it has observed
// the object again.
type writer struct {
	*object
	fleet  *Fleet
	failed error // error of every Publish; may be nil

	seen   int // last version observed
	status eni.Status
}

var errConflict = errors.New("the object was changed by another writer")

// Usage implements eni.Node.
func (w *writer) Usage() eni.Usage {
	w.mu.Lock()
	defer w.mu.Unlock()
	u := eni.Usage{ENIs: map[string]eni.ENIUsage{}, Waiting: w.waiting}
	for _, e := range w.inv.ENIs {
		var of eni.ENIUsage
		for _, a := range e.Addresses {
			switch {
			case w.used[a]:
				of.Used++
			case !w.withdrawn[a]:
				of.Free.Addresses++
				of.Assignable++
			}
		}
		u.ENIs[e.ID] = of
	}
	return u
}

// Publish implements eni.Node.
func (w *writer) Publish(_ context.Context, inv eni.Inventory) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failed != nil {
		return w.failed
	}
	if w.seen != w.version {
		w.seen = w.version
		w.fleet.Invalidate(w.name)
		return errConflict
	}
	w.version++
	w.seen, w.inv = w.version, inv
	clear(w.withdrawn)
	clear(w.leaving)
	w.commit(inv)
	w.serve()
	return nil
}

// commit records the releases of an inventory until they complete. w.mu is held.
func (w *writer) commit(inv eni.Inventory) {
	committed, detaching := map[netip.Addr]string{}, map[string]bool{}
	for _, e := range inv.ENIs {
		for _, a := range e.Addresses {
			if _, ok := w.committed[a]; ok {
				committed[a] = e.ID
			}
		}
		if w.detaching[e.ID] {
			detaching[e.ID] = true
		}
	}
	for _, r := range inv.Releasing {
		if r.Prefix.IsSingleIP() && !w.used[r.Prefix.Addr()] {
			committed[r.Prefix.Addr()] = r.ENI
		}
	}
	for _, l := range inv.Leaving {
		if l.Attached {
			detaching[l.ENI] = true
		}
	}
	w.committed, w.detaching = committed, detaching
	for a := range committed {
		w.withdrawn[a] = true
	}
	maps.Copy(w.leaving, detaching)
}

// Committed implements Node.
func (w *writer) Committed() (out []eni.Release) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for a, id := range w.committed {
		out = append(out, eni.Release{ENI: id, Prefix: netip.PrefixFrom(a, a.BitLen())})
	}
	for id := range w.detaching {
		out = append(out, eni.Release{ENI: id})
	}
	return out
}

// ObserveFailed implements eni.Node.
func (*writer) ObserveFailed(error) {}

// Withdraw implements eni.Node.
func (w *writer) Withdraw(id string, want cloud.Amount) (out []netip.Prefix) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.inv.ENIs {
		for _, a := range e.Addresses {
			if e.ID == id && a != e.PrimaryIPv4 && len(out) < want.Addresses && !w.used[a] && !w.withdrawn[a] {
				w.withdrawn[a] = true
				out = append(out, netip.PrefixFrom(a, a.BitLen()))
			}
		}
	}
	return out
}

// RestoreWithdrawn implements eni.Node.
func (w *writer) RestoreWithdrawn(withdrawn []netip.Prefix) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range withdrawn {
		a := p.Addr()
		if _, ok := w.committed[a]; !ok {
			delete(w.withdrawn, a)
		}
	}
	w.serve()
}

// WithdrawENI implements eni.Node.
func (w *writer) WithdrawENI(id string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.inv.ENIs {
		if e.ID == id && slices.ContainsFunc(e.Addresses, func(a netip.Addr) bool { return w.used[a] }) {
			return false
		}
	}
	w.leaving[id] = true
	return true
}

// Reconciled implements Node.
func (w *writer) Reconciled(s eni.Status) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.status = s
}

// run starts pods and kicks the operator.
func (w *writer) run(pods int) {
	for range pods {
		w.start()
	}
	w.fleet.Kick(w.name)
}

// runFor is run, followed by a pause.
func (w *writer) runFor(pods int, d time.Duration) {
	w.run(pods)
	pass(d)
}

// configure applies other settings.
func (w *writer) configure(t *testing.T, s eni.Settings) {
	t.Helper()
	check.OK(t, w.fleet.Set(w.name, w.instance, s, eni.Inventory{}, w))
}

// fail makes every Publish fail with err, or none if it is nil.
func (w *writer) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failed = err
}

// wantPods checks the number of running pods, and that no pod is waiting.
func (w *writer) wantPods(t *testing.T, want int) {
	t.Helper()
	if with, waiting := w.pods(); with != want || waiting > 0 {
		t.Errorf("%s: %d pods have addresses, want %d; %d pods are waiting, want 0; status %+v", w.name, with, want, waiting, w.last())
	}
}

func (w *writer) last() eni.Status {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.status
}

// world is a VPC with nodes.
type world struct {
	t          *testing.T
	cloud      *cloudfake.Cloud
	objects    []*object
	operators  []*operator
	observer   Observer // of the operators; may be nil
	usePrimary bool     // nodes use primary addresses
	apart      bool     // skip the final comparison of EC2 with the published inventories
}

// bubble runs a test in virtual time, in a VPC with some nodes. At the end it stops the operators and checks that
// EC2 matches the published inventories exactly.
func bubble(t *testing.T, nodes int, test func(t *testing.T, w *world)) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, cloud: cloudfake.New(cloudfake.Options{})}
		w.cloud.State.AddSubnet("subnet-home", "zone-a", "10.0.0.0/16", nil)
		for i := range nodes {
			w.add(i)
		}
		test(t, w)
		for _, p := range w.operators {
			p.stop()
		}
		if !w.apart {
			w.agree()
		}
	})
}

// inBubble returns bubble as a subtest.
func inBubble(nodes int, test func(t *testing.T, w *world)) func(*testing.T) {
	return func(t *testing.T) { bubble(t, nodes, test) }
}

// pass advances virtual time.
func pass(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // in a bubble, where time passes once nothing else can happen
}

func (w *world) add(i int) *object {
	o := newObject(fmt.Sprintf("node-%03d", i), fmt.Sprintf("i-%03d", i))
	w.cloud.State.AddInstance(o.instance, "m5.xlarge", "subnet-home")
	w.objects = append(w.objects, o)
	return o
}

// operator is a running fleet.
type operator struct {
	*Fleet
	world   *world
	writers map[string]*writer
	stop    func()
}

func (w *world) operator(api cloud.API) *operator {
	w.t.Helper()
	log := slog.New(slog.DiscardHandler)
	if os.Getenv("BERTH_TEST_LOG") != "" {
		log = slog.New(slog.NewTextHandler(w.t.Output(), nil))
	}
	f, err := New(Config{Cluster: "test", Cloud: api, Logger: log, Observer: w.observer})
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := f.Run(ctx); !errors.Is(err, context.Canceled) {
			w.t.Errorf("Run() = %v, want context.Canceled", err)
		}
	}()
	p := &operator{Fleet: f, world: w, writers: map[string]*writer{}, stop: func() { cancel(); <-done }}
	w.operators = append(w.operators, p)
	return p
}

// set adds a node, seeded with its published inventory.
func (p *operator) set(t *testing.T, o *object, s eni.Settings) *writer {
	t.Helper()
	o.mu.Lock()
	wr := &writer{object: o, fleet: p.Fleet, seen: o.version}
	seed := o.inv
	o.mu.Unlock()
	p.writers[o.name] = wr
	check.OK(t, p.Set(o.name, o.instance, s, seed, wr))
	return wr
}

// setAll adds all nodes.
func (p *operator) setAll(s eni.Settings) {
	p.world.t.Helper()
	for _, o := range p.world.objects {
		p.set(p.world.t, o, s)
	}
}

func settings(minimum, free int) eni.Settings {
	p := ipam.DefaultCilium()
	p.MinAllocate, p.PreAllocate = minimum, free
	return eni.Settings{InstanceType: "m5.xlarge", Policy: p}
}

// agree checks that the published inventories match the cloud exactly, that none of Berth's ENIs is detached, and
// that no pod lost its address. Trunks and branches are not published.
func (w *world) agree() {
	w.t.Helper()
	truth := map[string]cloud.ENI{}
	for _, e := range w.cloud.State.Truth() {
		if e.Attachment == nil && e.Tags[eni.TagCluster] != "test" {
			continue // foreign
		}
		if e.Type == cloud.InterfaceBranch || e.Type == cloud.InterfaceTrunk && e.Attachment != nil {
			continue
		}
		truth[e.ID] = e
		if e.Attachment == nil {
			w.t.Errorf("%s of instance %s is detached", e.ID, e.Tags[eni.TagInstanceID])
		}
	}
	published := 0
	for _, o := range w.objects {
		for _, e := range o.inventory().ENIs {
			published++
			got, want := slices.Clone(e.Addresses), w.forPods(truth[e.ID])
			slices.SortFunc(got, netip.Addr.Compare)
			slices.SortFunc(want, netip.Addr.Compare)
			if !slices.Equal(got, want) {
				w.t.Errorf("%s: %s has %v in EC2, but %v is published", o.name, e.ID, want, got)
			}
		}
	}
	w.kept()
	if published != len(truth) {
		w.t.Errorf("%d ENIs in EC2, but %d are published", len(truth), published)
	}
}

// forPods returns the addresses of an ENI for pods.
func (w *world) forPods(e cloud.ENI) []netip.Addr {
	if w.usePrimary && e.Attachment.DeviceIndex > 0 {
		return append(slices.Clone(e.Addresses), e.Primary)
	}
	return slices.Clone(e.Addresses)
}

// kept checks that no pod lost its address.
func (w *world) kept() {
	w.t.Helper()
	has := map[netip.Addr]string{}
	for _, e := range w.cloud.State.Truth() {
		for _, a := range w.forPods(e) {
			if e.Attachment != nil {
				has[a] = e.Attachment.InstanceID
			}
		}
	}
	for _, o := range w.objects {
		o.mu.Lock()
		for a := range o.used {
			if has[a] != o.instance {
				w.t.Errorf("%s: address %v of a pod no longer belongs to the node", o.name, a)
			}
		}
		o.mu.Unlock()
	}
}

// leftBehind creates a detached ENI for an instance, with the given creation time.
func (w *world) leftBehind(cluster, instance string, made time.Time) cloud.ENI {
	w.t.Helper()
	return w.make(cluster, instance, made, func(*cloud.CreateENI) {})
}

// make creates a detached ENI for an instance, with modifications of the request.
func (w *world) make(cluster, instance string, made time.Time, change func(*cloud.CreateENI)) cloud.ENI {
	w.t.Helper()
	q := cloud.CreateENI{SubnetID: "subnet-home", Description: eni.Description(instance), Tags: map[string]string{
		eni.TagCluster: cluster, eni.TagOwner: eni.Owner, eni.TagInstanceID: instance, eni.TagCreatedAt: made.UTC().Format(time.RFC3339),
	}}
	change(&q)
	e, err := w.cloud.CreateENI(w.t.Context(), q)
	if err != nil {
		w.t.Fatal(err)
	}
	return e
}

// attached returns the ENIs for pods that the operator created and attached, according to EC2.
func (w *world) attached() []cloud.ENI {
	return slices.DeleteFunc(w.secondary(), func(e cloud.ENI) bool { return e.Type == cloud.InterfaceTrunk })
}

// trunks returns the trunks attached to an instance.
func (w *world) trunks(instance string) []cloud.ENI {
	return slices.DeleteFunc(w.secondary(), func(e cloud.ENI) bool {
		return e.Type != cloud.InterfaceTrunk || e.Attachment.InstanceID != instance
	})
}

// secondary returns the attached ENIs other than the primary ones.
func (w *world) secondary() []cloud.ENI {
	return slices.DeleteFunc(w.cloud.State.Truth(), func(e cloud.ENI) bool { return e.Attachment == nil || e.Attachment.DeviceIndex == 0 })
}

// api is a cloud with hooks for tests; nil hooks do nothing.
type api struct {
	*cloudfake.Cloud
	listing   func(cloud.ENIFilter)                    // called before ENIs are listed
	listed    func([]cloud.ENI)                        // modifies listings
	instances func([]string) ([]cloud.Instance, error) // replaces Instances
	subnets   func([]cloud.Subnet)                     // modifies subnets
	created   func(cloud.CreateENI, *cloud.ENI)        // modifies the reply to CreateENI
	assigned  func(id string, got []netip.Prefix)      // modifies the reply to AssignAddresses
	attaching func(id string) error                    // called before an ENI is attached
	taking    <-chan struct{}                          // blocks UnassignAddresses and DetachENI until closed
}

func (a *api) ENIs(ctx context.Context, f cloud.ENIFilter) ([]cloud.ENI, error) {
	if a.listing != nil {
		a.listing(f)
	}
	list, err := a.Cloud.ENIs(ctx, f)
	if a.listed != nil {
		a.listed(list)
	}
	return list, err
}

func (a *api) Instances(ctx context.Context, ids []string) ([]cloud.Instance, error) {
	if a.instances != nil {
		return a.instances(ids)
	}
	return a.Cloud.Instances(ctx, ids)
}

func (a *api) Subnets(ctx context.Context, f cloud.SubnetFilter) ([]cloud.Subnet, error) {
	list, err := a.Cloud.Subnets(ctx, f)
	if a.subnets != nil {
		a.subnets(list)
	}
	return list, err
}

func (a *api) CreateENI(ctx context.Context, q cloud.CreateENI) (cloud.ENI, error) {
	e, err := a.Cloud.CreateENI(ctx, q)
	if a.created != nil && err == nil {
		a.created(q, &e)
	}
	return e, err
}

func (a *api) AttachENI(ctx context.Context, id, instanceID string, index int) (string, error) {
	if a.attaching != nil {
		if err := a.attaching(id); err != nil {
			return "", err
		}
	}
	return a.Cloud.AttachENI(ctx, id, instanceID, index)
}

func (a *api) AssignAddresses(ctx context.Context, id string, n cloud.Amount) ([]netip.Prefix, error) {
	got, err := a.Cloud.AssignAddresses(ctx, id, n)
	if a.assigned != nil && err == nil {
		a.assigned(id, got)
	}
	return got, err
}

func (a *api) UnassignAddresses(ctx context.Context, id string, things []netip.Prefix) error {
	if a.taking != nil {
		<-a.taking
		ctx = context.WithoutCancel(ctx)
	}
	return a.Cloud.UnassignAddresses(ctx, id, things)
}

func (a *api) DetachENI(ctx context.Context, id string) error {
	if a.taking != nil {
		<-a.taking
		ctx = context.WithoutCancel(ctx)
	}
	return a.Cloud.DetachENI(ctx, id)
}

const minute = time.Minute
