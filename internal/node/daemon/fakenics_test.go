package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"testing"

	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/daemon/nicpart"
	"github.com/berthnet/berth/internal/retry"
	"github.com/berthnet/berth/internal/source"
)

// switchboard is the node's Open vSwitch and links, which outlive its daemons.
type switchboard struct {
	fakeCalls // its mu guards all
	plugs     map[plugged]attachment.NIC
	reported  map[string]bool           // by port: what the operator heard last, that it is plugged
	holder    map[string]attachment.Key // by port: whose it is then
	records   func() *attachment.Store
	wrong     []string // what was done that may not be
}

// plugged names a port of an attachment.
type plugged struct{ hostLink, port string }

func newSwitchboard() *switchboard {
	return &switchboard{fakeCalls: newFakeCalls(), plugs: map[plugged]attachment.NIC{}, reported: map[string]bool{}, holder: map[string]attachment.Key{}}
}

// fakeNICs is a nicpart.NICs in memory.
type fakeNICs struct {
	*switchboard
	keys    []string
	refuses func(attachment.Request) error
	changed retry.Signal
	news    retry.Signal

	fakeWaits                             // its mu guards all below; another than the switchboard's
	bound     map[string][]attachment.NIC // by pod name: what Acquire gives
	quiet     bool                        // what is plugged carries no packets
	late      bool                        // nobody has brought the links yet
}

var _ nicpart.NICs = (*fakeNICs)(nil)

func newFakeNICs(board *switchboard) *fakeNICs {
	return &fakeNICs{
		switchboard: board, changed: retry.NewSignal(), news: retry.NewSignal(), bound: map[string][]attachment.NIC{},
		fakeWaits: newFakeWaits("port-build"),
	}
}

// bind binds the ports of a pod to this node.
func (f *fakeNICs) bind(pod string, nics ...attachment.NIC) {
	f.change(func() { f.bound[pod] = nics })
}

// hush stops or starts the packets of plugged NICs.
func (f *fakeNICs) hush(quiet bool) { f.change(func() { f.quiet = quiet }) }

// delay removes or creates the links from which NICs are plugged.
func (f *fakeNICs) delay(late bool) { f.change(func() { f.late = late }) }

// lose unplugs everything, like other software.
func (s *switchboard) lose() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.plugs)
}

// plug leaves a port plugged, like a former daemon.
func (s *switchboard) plug(hostLink, port string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.plugs[plugged{hostLink, port}] = attachment.NIC{Port: port}
}

// hear compares the operator's view with the records, as implementations of NICs do where no record
// exists.
func (s *switchboard) hear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for port := range s.reported {
		_, ok := s.records().ByPort(port)
		s.reported[port] = ok
	}
}

// want asserts which ports are plugged, that no contract was violated, and the operator's view of each
// port.
func (s *switchboard) want(t testing.TB, ports ...string) {
	t.Helper()
	waitFor(t, func() bool { // the operator hears of it after it is recorded
		s.mu.Lock()
		defer s.mu.Unlock()
		for port, is := range s.reported {
			if is != slices.Contains(ports, port) {
				return false
			}
		}
		return true
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	got := []string{}
	for p := range s.plugs {
		got = append(got, p.port)
	}
	slices.Sort(got)
	if !slices.Equal(got, ports) {
		t.Errorf("plugged are %v, want %v", got, ports)
	}
	for _, w := range s.wrong {
		t.Error(w)
	}
}

func (f *fakeNICs) Annotations() []string { return f.keys }

func (f *fakeNICs) CheckOptions(req attachment.Request) error {
	if f.refuses == nil {
		return nil
	}
	return f.refuses(req)
}

func (f *fakeNICs) Acquire(ctx context.Context, req attachment.Request) (nics []attachment.NIC, err error) {
	if err := f.enter(ctx, "Acquire"); err != nil {
		f.switchboard.mu.Unlock()
		return nil, err
	}
	f.switchboard.mu.Unlock()
	err = f.until(ctx, req.Key, "NIC eth1: port p-1 is bound to no node", func() (ok bool) {
		nics = slices.Clone(f.bound[req.Pod.Name])
		return !slices.ContainsFunc(nics, func(n attachment.NIC) bool { return n.Plug.Type == "" })
	})
	return nics, err
}

func (f *fakeNICs) Expect(ctx context.Context, rec attachment.Record) error {
	return f.until(ctx, rec.Key, "NIC eth1: port p-1 has no link", func() bool { return !f.late })
}

func (f *fakeNICs) Await(ctx context.Context, rec attachment.Record) error {
	return f.until(ctx, rec.Key, "NIC eth1: port p-1 is BUILD", func() bool { return !f.quiet })
}

func (f *fakeNICs) Plug(ctx context.Context, rec attachment.Record, nic attachment.NIC) (attachment.NIC, error) {
	err := f.enter(ctx, "Plug")
	defer f.switchboard.mu.Unlock()
	if err != nil {
		return nic, err
	}
	stored, ok := f.records().Get(rec.Key)
	if !ok || !slices.ContainsFunc(stored.NICs, func(n attachment.NIC) bool { return n.Port == nic.Port }) {
		f.wrong = append(f.wrong, fmt.Sprintf("%s is plugged for %s, which has no record of it", nic.Port, rec.Key))
	}
	for p := range f.plugs {
		if p.port == nic.Port && p.hostLink != rec.HostLink {
			f.wrong = append(f.wrong, fmt.Sprintf("%s is plugged for %s and for %s", nic.Port, p.hostLink, rec.HostLink))
		}
	}
	nic.HostLink, nic.HostMAC = "tap"+nic.Port, []byte{2, 0, 0, 0, 1, 1}
	f.plugs[plugged{rec.HostLink, nic.Port}] = nic
	return nic, nil
}

func (f *fakeNICs) Unplug(ctx context.Context, rec attachment.Record, nic attachment.NIC) error {
	err := f.enter(ctx, "Unplug")
	defer f.switchboard.mu.Unlock()
	if err != nil {
		return err
	}
	delete(f.plugs, plugged{rec.HostLink, nic.Port})
	return nil
}

func (f *fakeNICs) Check(ctx context.Context, rec attachment.Record, nic attachment.NIC) error {
	err := f.enter(ctx, "Check")
	defer f.switchboard.mu.Unlock()
	if err != nil {
		return err
	}
	if _, ok := f.plugs[plugged{rec.HostLink, nic.Port}]; !ok {
		return errors.New("is not plugged")
	}
	return nil
}

func (f *fakeNICs) Drifted() <-chan struct{} { return f.changed }

// LinkChanged causes a check of all NICs.
func (f *fakeNICs) LinkChanged(string, net.HardwareAddr) { f.changed.Set() }

func (f *fakeNICs) DesiredChanged() <-chan struct{} { return f.news }

func (f *fakeNICs) TakeDrift() ([]string, bool) { return nil, true }

// Wanted returns what bind set.
func (f *fakeNICs) Desired(rec attachment.Record) (nics []attachment.NIC, differ bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	bound, ok := f.bound[rec.Pod.Name]
	if !ok {
		return rec.NICs, false
	}
	for _, n := range bound {
		if n.Plug.Type == "" {
			continue
		}
		n.State, n.Later = attachment.Plugging, true
		if at := slices.IndexFunc(rec.NICs, n.Is); at >= 0 {
			if old := rec.NICs[at]; slices.Equal(old.Addresses, n.Addresses) {
				n = old
			} else if n.HostLink, n.HostMAC = old.HostLink, old.HostMAC; old.State != attachment.Plugging {
				n.State = attachment.Changing
			}
		}
		nics, differ = append(nics, n), differ || n.State != attachment.Plugged
	}
	return nics, differ || len(nics) != len(rec.NICs)
}

func (f *fakeNICs) Plugged(rec attachment.Record) { f.report(rec, true) }

func (f *fakeNICs) Unplugged(rec attachment.Record) {
	f.report(rec, false)
	f.switchboard.mu.Lock()
	defer f.switchboard.mu.Unlock()
	for p := range f.plugs {
		if p.hostLink == rec.HostLink {
			f.wrong = append(f.wrong, fmt.Sprintf("%s is reported as unplugged, and has %s", rec.Key, p.port))
		}
	}
}

// report reports to the operator that an attachment has its NICs plugged but those that are being plugged, or none.
func (f *fakeNICs) report(rec attachment.Record, plugged bool) {
	f.switchboard.mu.Lock()
	defer f.switchboard.mu.Unlock()
	for port, key := range f.holder {
		if key == rec.Key {
			f.reported[port] = false
			delete(f.holder, port)
		}
	}
	for _, n := range rec.NICs {
		switch {
		case !plugged:
			f.reported[n.Port] = false
		case n.State != attachment.Plugging:
			f.reported[n.Port], f.holder[n.Port] = true, rec.Key
		}
	}
}

func (f *fakeNICs) Plugs(ctx context.Context) (links []string, err error) {
	err = f.enter(ctx, "Plugs")
	defer f.switchboard.mu.Unlock()
	for p := range f.plugs {
		links = append(links, p.hostLink)
	}
	return links, err
}

func (f *fakeNICs) Sweep(ctx context.Context, keep func(hostLink, port string) bool) error {
	err := f.enter(ctx, "Sweep")
	defer f.switchboard.mu.Unlock()
	for p := range f.plugs {
		if err == nil && !keep(p.hostLink, p.port) {
			delete(f.plugs, p)
		}
	}
	// Ports that the operator believes to be plugged, and no record has.
	for port := range f.reported {
		if _, ok := f.records().ByPort(port); !ok && err == nil {
			f.reported[port] = false
		}
	}
	return err
}

func (f *fakeNICs) Run(ctx context.Context) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

func (f *fakeNICs) Describe(*source.Snapshot) {}
