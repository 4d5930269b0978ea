package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/daemon/egresspart"
	"github.com/berthnet/berth/internal/retry"
	"github.com/berthnet/berth/internal/source"
)

// tunnels are the egress in pods' namespaces, and the operator's view of it. Both outlive daemons.
type tunnels struct {
	fakeCalls // its mu guards the fields below
	has       map[attachment.Netns]setUp
	reported  map[attachment.Key]heard
	records   func() *attachment.Store
	wrong     []string      // contract violations
	serves    chan struct{} // closed once gateways serve; nil: they always do
	waited    int           // number of ADDs that waited for gateways
}

// setUp is the egress of one namespace.
type setUp struct {
	egress        attachment.Egress
	addrs, others []netip.Addr
}

// heard is the last report of a sandbox to the operator.
type heard struct {
	state    string // Coming, SetUp or Failed; Gone is not stored
	egresses []string
	addrs    []netip.Addr
}

func newTunnels() *tunnels {
	return &tunnels{fakeCalls: newFakeCalls(), has: map[attachment.Netns]setUp{}, reported: map[attachment.Key]heard{}}
}

// fakeEgress is an egresspart.Egress in memory.
type fakeEgress struct {
	*tunnels
	news retry.Signal

	fakeWaits                               // its mu, separate from that of tunnels, guards the fields below
	wants     map[string]*attachment.Egress // desired egress by pod name; a missing entry is unknown
	open      bool                          // pods without an entry have no egress and need not wait
}

var _ egresspart.Egress = (*fakeEgress)(nil)

func newFakeEgress(t *tunnels) *fakeEgress {
	return &fakeEgress{tunnels: t, news: retry.NewSignal(), fakeWaits: newFakeWaits("egress-unknown"), wants: map[string]*attachment.Egress{}, open: true}
}

// says sets the egress that the operator assigns to a pod.
func (f *fakeEgress) says(pod string, e *attachment.Egress) {
	f.change(func() { f.wants[pod] = e })
	f.news.Set()
}

func (f *fakeEgress) Annotations() []string { return []string{"egress.berth.dev/"} }

func (f *fakeEgress) CheckOptions(req attachment.Request) error {
	if value, ok := req.Options.Annotations["egress.berth.dev/internet"]; ok && value == "" {
		return errors.New("annotation egress.berth.dev/internet is empty, expected names of Egresses")
	}
	return nil
}

func (f *fakeEgress) Acquire(ctx context.Context, req attachment.Request) (e *attachment.Egress, err error) {
	err = f.until(ctx, req.Key, "no EgressClient shows yet which Egresses the pod uses", func() (ok bool) {
		e, ok = f.wants[req.Pod.Name]
		return ok || f.open
	})
	return e, err
}

// nsOf returns a record's namespace, regardless of its path.
func nsOf(rec attachment.Record) attachment.Netns {
	rec.Netns.Path = ""
	return rec.Netns
}

func setUpOf(rec attachment.Record) setUp {
	e := *rec.Egress
	e.State, e.Former = attachment.EgressSetUp, nil
	return setUp{e, rec.OwnAddrs(), rec.OtherAddrs()}
}

func (f *fakeEgress) Apply(ctx context.Context, rec attachment.Record) error {
	err := f.enter(ctx, "Apply")
	defer f.tunnels.mu.Unlock()
	if err != nil {
		return err
	}
	if stored, ok := f.records().Get(rec.Key); !ok || !reflect.DeepEqual(stored.Egress.Settled(), rec.Egress.Settled()) {
		f.wrong = append(f.wrong, fmt.Sprintf("Apply(%s) with %v, which is not recorded", rec.Key, rec.EgressNames()))
	}
	if rec.Egress.Settled() == nil {
		delete(f.has, nsOf(rec))
		return nil
	}
	f.has[nsOf(rec)] = setUpOf(rec)
	return nil
}

func (f *fakeEgress) Check(ctx context.Context, rec attachment.Record) error {
	err := f.enter(ctx, "Check")
	defer f.tunnels.mu.Unlock()
	if err != nil {
		return err
	}
	if have := f.has[nsOf(rec)]; !reflect.DeepEqual(have, setUpOf(rec)) {
		return fmt.Errorf("the namespace has %+v", have)
	}
	return nil
}

func (f *fakeEgress) Clear(ctx context.Context, rec attachment.Record) error {
	err := f.enter(ctx, "Clear")
	defer f.tunnels.mu.Unlock()
	if err == nil {
		delete(f.has, nsOf(rec))
	}
	return err
}

func (f *fakeEgress) Supported(ctx context.Context) error {
	err := f.enter(ctx, "Supported")
	defer f.tunnels.mu.Unlock()
	return err
}

func (f *fakeEgress) DesiredChanged() <-chan struct{} { return f.news }

func (f *fakeEgress) Desired(rec attachment.Record) (*attachment.Egress, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	wanted, known := f.wants[rec.Pod.Name]
	return wanted, known && !reflect.DeepEqual(wanted.Settled(), rec.Egress.Settled())
}

func (f *fakeEgress) Restore(ready []attachment.Record) {
	f.tunnels.mu.Lock()
	defer f.tunnels.mu.Unlock()
	for key := range f.reported {
		if !slices.ContainsFunc(ready, func(rec attachment.Record) bool { return rec.Key == key }) {
			delete(f.reported, key)
		}
	}
	for _, rec := range ready {
		if rec.Egress == nil || rec.Egress.State == attachment.EgressSetUp {
			f.hear(rec, "SetUp")
		}
	}
}

// hear reports an attachment to the operator. The tunnels' mu is held.
func (f *fakeEgress) hear(rec attachment.Record, state string) {
	delete(f.reported, rec.Key)
	if names := rec.EgressNames(); len(names) > 0 {
		f.reported[rec.Key] = heard{state, names, rec.OwnAddrs()}
	}
}

func (f *fakeEgress) Announce(rec attachment.Record) {
	f.tunnels.mu.Lock()
	defer f.tunnels.mu.Unlock()
	if stored, ok := f.records().Get(rec.Key); !ok || stored.State != attachment.Pending {
		f.wrong = append(f.wrong, fmt.Sprintf("Announce(%s), but its record is %+v", rec.Key, stored))
	}
	if have, ok := f.has[nsOf(rec)]; ok {
		f.wrong = append(f.wrong, fmt.Sprintf("Announce(%s), but it already has %+v", rec.Key, have))
	}
	f.hear(rec, "Coming")
}

func (f *fakeEgress) Await(ctx context.Context, rec attachment.Record) error {
	f.tunnels.mu.Lock()
	serves := f.serves
	if have, ok := f.has[nsOf(rec)]; !ok || f.reported[rec.Key].state != "Coming" {
		f.wrong = append(f.wrong, fmt.Sprintf("Await(%s), but it has %+v and was reported as %+v", rec.Key, have, f.reported[rec.Key]))
	}
	f.waited++
	f.tunnels.mu.Unlock()
	if serves == nil {
		return nil
	}
	select {
	case <-serves:
		return nil
	case <-ctx.Done():
		return errors.New("gateway nat1 does not serve it")
	}
}

func (f *fakeEgress) SetUp(rec attachment.Record) {
	f.tunnels.mu.Lock()
	defer f.tunnels.mu.Unlock()
	if rec.State != attachment.Ready || rec.Egress != nil && rec.Egress.State != attachment.EgressSetUp {
		f.wrong = append(f.wrong, fmt.Sprintf("SetUp(%s), but its state is %s and its egress %+v", rec.Key, rec.State, rec.Egress))
	}
	if have, ok := f.has[nsOf(rec)]; ok != (rec.Egress != nil) || ok && !reflect.DeepEqual(have, setUpOf(rec)) {
		f.wrong = append(f.wrong, fmt.Sprintf("SetUp(%s) with %+v, but the namespace has %+v", rec.Key, rec.Egress, have))
	}
	f.hear(rec, "SetUp")
}

func (f *fakeEgress) Failed(rec attachment.Record, _ error) {
	f.tunnels.mu.Lock()
	defer f.tunnels.mu.Unlock()
	f.hear(rec, "Failed")
}

func (f *fakeEgress) Ended(rec attachment.Record) {
	f.tunnels.mu.Lock()
	defer f.tunnels.mu.Unlock()
	if _, ok := f.records().Get(rec.Key); ok {
		f.wrong = append(f.wrong, fmt.Sprintf("Ended(%s), but it has a record", rec.Key))
	}
	delete(f.reported, rec.Key)
}

func (f *fakeEgress) Run(ctx context.Context) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

// lose removes all egress, as other software may do.
func (t *tunnels) lose() {
	t.mu.Lock()
	defer t.mu.Unlock()
	clear(t.has)
}

// agree returns an error if namespaces or the operator's view differ from the ready records, all of which must
// have the given Egresses, or if the contract was violated.
func (t *tunnels) agree(names ...string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, w := range t.wrong {
		return errors.New(w)
	}
	count := 0
	for _, rec := range t.records().Records() {
		got := rec.EgressNames()
		have, ok := t.has[nsOf(rec)]
		switch {
		case rec.State != attachment.Ready || !slices.Equal(got, names) || rec.Egress != nil && rec.Egress.State != attachment.EgressSetUp:
			return fmt.Errorf("%s is %s with %+v, want ready with %v", rec.Key, rec.State, rec.Egress, names)
		case ok != (rec.Egress != nil), ok && !reflect.DeepEqual(have, setUpOf(rec)):
			return fmt.Errorf("%s has recorded egress %+v, but its namespace has %+v", rec.Key, rec.Egress, have)
		case !reflect.DeepEqual(t.reported[rec.Key].egresses, got), len(got) > 0 && t.reported[rec.Key].state != "SetUp":
			return fmt.Errorf("operator has %+v for %s, want %+v", t.reported[rec.Key], rec.Key, rec.Egress)
		}
		if ok {
			count++
		}
	}
	if count != len(t.has) {
		return fmt.Errorf("%d namespaces have egress, want %d: %v", len(t.has), count, t.has)
	}
	return nil
}

// want asserts agree.
func (t *tunnels) want(tb testing.TB, names ...string) {
	tb.Helper()
	if err := t.agree(names...); err != nil {
		tb.Error(err)
	}
}

// settles waits until agree returns nil.
func (t *tunnels) settles(tb testing.TB, names ...string) {
	tb.Helper()
	var err error
	defer func() {
		if tb.Failed() {
			tb.Log(err)
		}
	}()
	waitFor(tb, func() bool { err = t.agree(names...); return err == nil })
}

// testEgress returns the egress of a client of Egresses in namespace internet, each with two gateways.
func testEgress(names ...string) *attachment.Egress {
	e := &attachment.Egress{}
	for i, name := range names {
		gateway := func(k int) attachment.EgressGateway {
			return attachment.EgressGateway{ID: 2*i + k, UID: fmt.Sprint(name, k), Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 9, byte(i), byte(k)})}, Chosen: true}
		}
		e.Egresses = append(e.Egresses, attachment.UsedEgress{
			Namespace: "internet", Name: name, UID: "uid-" + name, Destinations: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{203, 0, byte(i), 0}), 24)},
			Gateways: []attachment.EgressGateway{gateway(1), gateway(2)},
		})
	}
	return e
}

func (f *fakeEgress) Describe(*source.Snapshot) {}
