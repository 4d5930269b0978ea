package daemon

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/internal/statefile"
	"github.com/berthnet/berth/test/harness/samples"
)

// leave lets a daemon attach pods and stop.
func (n *node) leave(containers ...string) {
	n.t.Helper()
	r := n.restart(nil)
	for _, c := range containers {
		mustAdd(n.t, r, c, n.newNetns(c))
	}
	r.stop()
}

// sweeps lets the kernel remove pods again, and sweeps.
func (n *node) sweeps(r *running) {
	n.t.Helper()
	n.kernel.set("DetachPod", nil)
	n.clock.Advance(kernelTimeout)
	waitFor(n.t, func() bool { // the sweep may not have begun to wait yet
		n.clock.Advance(time.Second)
		_, held := r.source.Holder(n.addrs[0])
		return len(r.Store.Records()) == 0 && !held
	})
	n.wantKernel(n.t, 0, 0)
}

// breakAt lets a failpoint return an error, without undoing what was done before.
func breakAt(t *testing.T, name string) {
	t.Helper()
	restore, err := failpoint.Set(name + "=error")
	must(t, err)
	t.Cleanup(restore)
}

// Whenever a daemon is killed during a DEL, the addresses of the pod cool: a node-local one, too, has no new holder
// before that.
func TestRecoveryFromEveryStepOfDel(t *testing.T) {
	for k, point := range []string{"daemon.del.marked", "daemon.del.cooling", "daemon.del.detached", "daemon.del.unrecorded", "daemon.del.released"} {
		for kind, newNode := range map[string]func(*testing.T) *node{
			"alone": func(t *testing.T) *node { return newNode(t, "10.0.0.5") },
			"local": func(t *testing.T) *node { return newNodeLocal(t, "2001:db8::5", "2001:db8::6") },
		} {
			t.Run(fmt.Sprint(kind, k), func(t *testing.T) { // a short name, as it becomes part of a socket's path
				t.Log(point)
				n := newNode(t)
				n.leave("a")
				released := n.clock.Now() // or later: the clock ticks while a daemon starts
				var lease attachment.Lease
				n.crash(t, point, nil, func(r *running, rec attachment.Record) error {
					lease = rec.Lease
					return r.attachments.del(within(t), keyFor("a"))
				})
				r := n.restart(nil)
				n.wantKernel(t, 0, 0)
				if recs := r.Store.Records(); len(recs) != 0 {
					t.Errorf("records %v", recs)
				}
				if lease.NodeLocal.IsValid() {
					mustAdd(t, r, "b", n.newNetns("b"))
					if got := r.local(t, "b"); got == lease.NodeLocal {
						t.Errorf("%s did not cool", got)
					}
					mustDel(t, r, "b")
				}
				totals := func(what string, free int) {
					t.Helper()
					if got := r.inspector.document().Totals; got.Available != free || got.Cooling != len(n.addrs)-free {
						t.Errorf("%s: totals %+v, want %d available", what, got, free)
					}
				}
				totals("after the restart", 0)
				n.clock.Advance(max(0, 29*time.Second-n.clock.Now().Sub(released)))
				totals("after 29 seconds", 0)
				n.clock.Advance(31 * time.Second)
				totals("after a minute", len(n.addrs))
				waitFor(t, func() bool { // who removes the record may not have begun to wait yet
					n.clock.Advance(time.Second)
					return len(r.Store.CoolingRecords()) == 0
				})
			})
		}
	}
}

func TestRecoveryKeepsLivePodsAndHeals(t *testing.T) {
	n := newNode(t, "10.0.0.5", "10.0.0.6")
	r := n.restart(nil)
	first := mustAdd(t, r, "a", n.newNetns("a"))
	r.stop()
	n.kernel.dropRoutes()
	r = n.restart(nil)
	n.wantKernel(t, 1, 1)
	if again := mustAdd(t, r, "a", "/run/netns/a"); again.String() != first.String() {
		t.Errorf("after the restart %v, before %v", again, first)
	}
	r.wantAddress(t, "b", n.newNetns("b"), "10.0.0.6")
}

func TestRecoveryRemovesLinksWithoutRecord(t *testing.T) {
	n := newNode(t, "10.0.0.5", "10.0.0.6")
	n.leave("a")
	must(t, os.RemoveAll(filepath.Join(n.dir, "attachments")))
	r := n.restart(nil)
	n.wantKernel(t, 0, 0)
	r.wantAddress(t, "b", n.newNetns("b"), "10.0.0.6")
}

func TestRecoveryAfterReboot(t *testing.T) {
	n := newNode(t, "10.0.0.5", "10.0.0.6")
	r := n.restart(nil)
	mustAdd(t, r, "a", n.newNetns("a"))
	mustAdd(t, r, "b", n.newNetns("b"))
	mustDel(t, r, "b")
	r.stop()
	n.ident.BootID, n.kernel = "boot-2", newFakeKernel()
	r = n.restart(nil)
	if recs, cools := r.Store.Records(), r.Store.CoolingRecords(); len(recs)+len(cools) != 0 {
		t.Errorf("records %v, cooling %v", recs, cools)
	}
	if doc := r.inspector.document(); doc.Totals.Available != 2 {
		t.Errorf("totals %+v, want both addresses available", doc.Totals)
	}
}

// Nothing of egress outlives a reboot: records are forgotten as those without it, also when NICs of another
// attachment cannot be unplugged.
func TestRebootWithEgress(t *testing.T) {
	n := newPortNode(t, "10.0.0.5", "10.0.0.6", "10.0.0.7", "10.0.0.8")
	n.tunnels = newTunnels()
	r := n.restart(nil)
	r.nics.bind("pod-a", testNIC("eth1", "p-1"))
	for _, pod := range []string{"a", "b", "c", "d"} {
		if pod != "a" {
			r.egress.says("pod-"+pod, testEgress("nat"))
		}
		mustAdd(t, r, pod, n.newNetns(pod))
	}
	r.stop()
	n.ident.BootID, n.kernel = "boot-2", newFakeKernel()
	n.board.set("Unplug", plug.ErrUnreachable)
	r = n.restart(nil)
	if recs := r.Store.Records(); len(recs) != 1 || len(recs[0].NICs) != 1 {
		t.Errorf("records %v, want that of the NIC", recs)
	}
	if got := r.source.Cancels(); got != 0 {
		t.Errorf("%d leases of pods without NICs were restored", got)
	}
	n.board.set("Unplug", nil)
}

func TestRecoveryIgnoresAnotherInstance(t *testing.T) {
	n := newNode(t, "10.0.0.5")
	n.leave("a")
	n.ident.InstanceID, n.kernel = "i-2", newFakeKernel()
	r := n.restart(nil)
	r.wantAddress(t, "b", n.newNetns("b"), "10.0.0.5")
}

// damage truncates the record of a container to a percentage.
func (n *node) damage(container string, keep int) {
	n.t.Helper()
	path := filepath.Join(n.dir, "attachments", "attachment-"+hostLinkName(keyFor(container))+".json")
	data, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, data[:len(data)*keep/100], 0o600)
	}
	must(n.t, err)
}

func TestDamagedRecordOfALivePod(t *testing.T) {
	n := newNode(t, "10.0.0.5", "10.0.0.6")
	n.leave("a")
	n.damage("a", 30)
	for range 2 { // quarantined at the first start, found so at the second
		r := n.restart(nil)
		n.wantKernel(t, 1, 1)
		r.conditions.want(t, ConditionRecords, false, hostLinkName(keyFor("a")))
		if holder, ok := r.source.Holder(n.addrs[0]); !ok {
			t.Errorf("its address is not held, holder %v", holder)
		}
		r.stop()
	}
	r := n.restart(nil)
	defer n.tick()()
	mustDel(t, r, "a")
	must(t, r.reaper.await(within(t), hostLinkName(keyFor("a")), attachment.Netns{}))
	n.wantKernel(t, 0, 0)
	if _, ok := r.Store.Cooling(n.addrs[0]); !ok {
		t.Error("its address does not cool")
	}
	r.conditions.want(t, ConditionRecords, true, "")
}

// Files whose names fit no link belong to no attachment, and stay for people.
func TestDamagedRecordOfNoPossibleLink(t *testing.T) {
	n := newNode(t, "10.0.0.5", "10.0.0.6", "10.0.0.7")
	n.leave("a")
	dir := filepath.Join(n.dir, "attachments")
	odd := []string{
		"attachment-eth0.json", "attachment-.json", "attachment-a b.json", "attachment-bth.json.bad",
		"attachment-" + strings.Repeat("x", 238) + ".json", // with .bad too long for a file's name
	}
	for i, name := range odd {
		text := "{" // and the address of a pod, and one that nobody has
		if i < 2 {
			text = fmt.Sprintf(`{"lease":{"ipv4":"10.0.0.%d"}`, 5+i)
		}
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	for range 2 {
		r := n.restart(nil)
		r.conditions.want(t, ConditionRecords, true, "")
		if holder, ok := r.source.Holder(n.addrs[0]); !ok || holder != keyFor("a") {
			t.Errorf("the pod's address is held by %v", holder)
		}
		if _, cools := r.Store.Cooling(n.addrs[1]); !cools {
			t.Error("the other address does not cool")
		}
		n.wantKernel(t, 1, 1)
		r.stop()
	}
	kept, err := filepath.Glob(filepath.Join(dir, "*.kept"))
	if err != nil || len(kept) != len(odd) {
		t.Errorf("kept %q, %v", kept, err)
	}
}

func TestDamagedRecordOfAPodThatIsGone(t *testing.T) {
	n := newNode(t, "10.0.0.5")
	n.leave("a")
	n.damage("a", 90)
	n.kernel = newFakeKernel()
	r := n.restart(nil)
	if doc := r.inspector.document(); doc.Totals.Cooling != 1 {
		t.Errorf("totals %+v, want its address cooling", doc.Totals)
	}
	left, err := filepath.Glob(filepath.Join(n.dir, "attachments", "*.bad"))
	if err != nil || len(left) != 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

// An attachment whose namespace is gone is released after the grace period: unless the runtime lists its sandbox or,
// where the runtime cannot be asked, its link exists. A pod of NICs alone has no link as evidence.
func TestVanishedSandbox(t *testing.T) {
	for name, tt := range map[string]struct {
		listed    map[string]bool // by the runtime
		linkGone  bool
		nicsAlone bool
		released  bool
	}{
		"no runtime, link gone":                    {linkGone: true, released: true},
		"no runtime, link lives":                   {},
		"runtime does not list it":                 {listed: map[string]bool{}, released: true},
		"runtime lists it still":                   {listed: map[string]bool{"a": true}, linkGone: true},
		"runtime lists another":                    {listed: map[string]bool{"b": true}, linkGone: true, released: true},
		"runtime and kernel agree so":              {listed: map[string]bool{"a": true}},
		"NICs alone, no runtime":                   {nicsAlone: true, linkGone: true},
		"NICs alone, the runtime lists it":         {nicsAlone: true, listed: map[string]bool{"a": true}, linkGone: true},
		"NICs alone, the runtime does not list it": {nicsAlone: true, listed: map[string]bool{}, linkGone: true, released: true},
	} {
		t.Run(name, func(t *testing.T) {
			n := newPortNode(t, "10.0.0.5")
			n.listed = tt.listed
			d := n.assemble()
			if tt.nicsAlone {
				d.source.Nothing = true
				d.nics.bind("", testNIC("eth0", "p-0"))
			}
			ns := n.newNetns("a")
			d.attached(t, "a", ns)
			n.removeNetns(ns)
			if tt.linkGone {
				must(t, n.kernel.ReapLinks(t.Context(), []string{hostLinkName(keyFor("a"))}))
			}
			d.sweeper.sweep(within(t))
			if len(d.Store.Records()) != 1 {
				t.Fatal("released without grace")
			}
			n.clock.Advance(time.Minute)
			d.sweeper.sweep(within(t))
			if released := len(d.Store.Records()) == 0; released != tt.released {
				t.Errorf("released: %v, want %v", released, tt.released)
			}
		})
	}
}

func TestReleasedNamespaceComesBackInTime(t *testing.T) {
	n := newNode(t, "10.0.0.5")
	d := n.assemble()
	ns := n.newNetns("a")
	d.attached(t, "a", ns)
	saved := n.netns[ns]
	n.removeNetns(ns)
	d.sweeper.sweep(within(t))
	n.netns[ns] = saved
	n.clock.Advance(time.Minute)
	d.sweeper.sweep(within(t))
	n.removeNetns(ns)
	d.sweeper.sweep(within(t))
	if len(d.Store.Records()) != 1 {
		t.Error("the grace period did not begin anew")
	}
}

func TestUndoThatFailsIsFinishedByTheSweep(t *testing.T) {
	n := newNode(t, "10.0.0.5")
	r := n.restart(nil)
	defer n.tick()()
	breakAt(t, "daemon.add.wired")
	n.kernel.set("DetachPod", errors.New("busy"))
	if _, err := r.attach(within(t), "a", n.newNetns("a")); err == nil {
		t.Fatal("ADD succeeded")
	}
	if holder, ok := r.source.Holder(n.addrs[0]); !ok || holder != keyFor("a") {
		t.Fatal("the address was given back while its link lives")
	}
	n.sweeps(r)
}

func TestUndoThatFailsAtTheStartHoldsTheAddress(t *testing.T) {
	n := newNode(t, "10.0.0.5")
	d := n.assemble()
	rec := recordOf("a", attachment.Lease{IPv4: n.addrs[0]})
	must(t, d.Store.Put(rec))
	n.kernel.all.Edit(func(links map[string]datapath.Pod, _ map[netip.Addr]string) { links[rec.HostLink] = datapath.Pod{} })
	n.kernel.set("DetachPod", errors.New("busy"))
	r := n.restart(nil)
	defer n.tick()()
	waitFor(t, func() bool { return r.front.admitted() != nil })
	if holder, ok := r.source.Holder(n.addrs[0]); !ok || holder != rec.Key {
		t.Errorf("the address is free while its link lives: held by %v, %v", holder, ok)
	}
	n.sweeps(r)
}

func TestEveryFailpointIsHit(t *testing.T) {
	// The crash tests take the list from failpoint.Names: a point that no
	// path reaches would test nothing.
	n := newPortNode(t, "10.0.0.5", "10.0.0.6")
	n.tunnels = newTunnels()
	r := n.restart(nil)
	r.nics.bind("", testNIC("eth1", "p-1"))
	defer n.tick()()
	for _, name := range failpoint.Names() {
		if !strings.HasPrefix(name, "daemon.") {
			continue
		}
		t.Run(name, func(t *testing.T) {
			spec := name + "=error@1"
			if strings.HasPrefix(name, "daemon.undo.") {
				spec += ",daemon.add.wired=error@1"
			}
			restore, err := failpoint.Set(spec)
			must(t, err)
			defer restore()
			ns := n.newNetns(name)
			r.egress.change(func() { r.egress.wants[""] = testEgress("nat") })
			rec, addErr := r.attach(within(t), name, ns)
			if addErr == nil {
				r.nics.bind("", testNIC("eth1", "p-1"), testNIC("eth2", "p-2"))
				addErr = r.changeNICs(within(t), rec.Key)
				r.nics.bind("", testNIC("eth1", "p-1"))
				addErr = errors.Join(addErr, r.changeNICs(within(t), rec.Key))
				r.egress.change(func() { r.egress.wants[""] = testEgress("partner") })
				addErr = errors.Join(addErr, r.changeEgress(within(t), rec.Key))
			}
			delErr := r.attachments.del(within(t), keyFor(name))
			if strings.HasPrefix(name, "daemon.undo.") {
				if !errors.Is(addErr, failpoint.ErrHit) {
					t.Errorf("ADD: %v", addErr)
				}
			} else if !errors.Is(errors.Join(addErr, delErr), failpoint.ErrHit) {
				t.Errorf("not hit: ADD %v, DEL %v", addErr, delErr)
			}
			if err := r.attachments.del(within(t), keyFor(name)); err != nil {
				t.Errorf("second DEL: %v", err)
			}
			if left := r.Store.Records(); len(left) != 0 {
				t.Errorf("left %v", left)
			}
			n.board.want(t)
			n.tunnels.want(t)
			n.clock.Advance(31 * time.Second)
		})
	}
}

func TestCoolingRecordOfAHeldAddressIsStale(t *testing.T) {
	n := newNode(t, "10.0.0.5")
	r := n.restart(nil)
	mustAdd(t, r, "a", n.newNetns("a"))
	must(t, r.Store.PutCooling(attachment.Cooling{Addr: netip.MustParseAddr("10.0.0.5"), Key: keyFor("a"), ReleasedBoot: n.clock.Boot()}))
	r = n.restart(r)
	if len(r.Store.CoolingRecords()) != 0 || len(r.Store.Records()) != 1 {
		t.Errorf("cooling %v, records %v", r.Store.CoolingRecords(), r.Store.Records())
	}
	n.wantKernel(t, 1, 1)
}

// stalling is the clock of a machine that stalls after each reading.
type stalling struct{ *clock.Fake }

func (s stalling) Now() time.Time {
	defer s.Advance(10 * time.Second)
	return s.Fake.Now()
}

func (s stalling) Boot() time.Duration {
	defer s.Advance(10 * time.Second)
	return s.Fake.Boot()
}

func TestStalledRecoveryCoolsLongEnough(t *testing.T) {
	n := newNode(t, "10.0.0.5")
	d := n.assemble()
	start := n.clock.Now()
	must(t, d.Store.PutCooling(attachment.Cooling{Addr: n.addrs[0], Key: keyFor("a"), ReleasedBoot: n.clock.Boot()}))
	n.clock.Advance(5 * time.Second)
	d.Clock = stalling{n.clock}
	(&recovery{d: d.Daemon}).cooling(t.Context())
	n.clock.Advance(29*time.Second - n.clock.Now().Sub(start))
	if got := d.source.Snapshot().Addresses; len(got) != 1 || got[0].State != source.Cooling {
		t.Errorf("29 s after the release of an address: %+v", got)
	}
	n.clock.Advance(time.Minute)
	if got := d.source.Snapshot().Addresses; len(got) != 1 || got[0].State != source.Warm {
		t.Errorf("the address never cooled: %+v", got)
	}
}

// The address that was released last is not leased first after a restart, even long after it has
// cooled.
func TestLongestFreeFirstAfterARestart(t *testing.T) {
	for name, between := range map[string]struct {
		ended bool // the daemon saw the end of cooling
	}{"cooled before the restart": {true}, "cooled while no daemon ran": {false}} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, "10.0.0.5", "10.0.0.6", "10.0.0.7")
			r := n.restart(nil)
			first := mustAdd(t, r, "a", n.newNetns("a"))
			must(t, r.attachments.del(within(t), keyFor("a")))
			if between.ended {
				waitFor(t, func() bool { // who removes the record may not have begun to wait yet
					n.clock.Advance(10 * time.Second)
					return len(r.Store.CoolingRecords()) == 0
				})
			} else {
				r.stop()
				r = nil
				n.clock.Advance(32 * time.Second)
			}
			r = n.restart(r)
			if len(r.Store.CoolingRecords()) != 0 {
				t.Errorf("cooling %v", r.Store.CoolingRecords())
			}
			var got []string
			for _, name := range []string{"b", "c", "d"} {
				mustAdd(t, r, name, n.newNetns(name))
				rec, _ := r.Store.Get(keyFor(name))
				got = append(got, rec.Lease.Addrs()[0].String())
			}
			if got[0] != "10.0.0.6" || got[1] != "10.0.0.7" || got[2] != "10.0.0.5" {
				t.Errorf("handed out %v, the first pod had %v", got, first)
			}
		})
	}
}

// Files of every release are readable, and files that are written have everything that each release
// reads.
func TestStoredMark(t *testing.T) {
	samples.Check(t,
		samples.Format{Files: usableName, Type: reflect.TypeFor[usableFile](), Again: func(data []byte) ([]byte, error) {
			var f usableFile
			if err := statefile.Decode(data, &f); err != nil {
				return nil, err
			}
			return statefile.Encode(f)
		}},
	)
}
