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

// leave starts a daemon that attaches pods and stops.
func (n *node) leave(containers ...string) {
	n.t.Helper()
	r := n.restart(nil)
	for _, c := range containers {
		mustAdd(n.t, r, c, n.newNetns(c))
	}
	r.stop()
}

// sweeps stops the kernel failures and runs a sweep.
func (n *node) sweeps(r *running) {
	n.t.Helper()
	n.kernel.set("DetachPod", nil)
	n.clock.Advance(kernelTimeout)
	waitFor(n.t, func() bool { // the sweep may not have reached its timer yet
		n.clock.Advance(time.Second)
		_, held := r.source.Holder(n.addrs[0])
		return len(r.Store.Records()) == 0 && !held
	})
	n.wantKernel(n.t, 0, 0)
}

// breakAt makes a failpoint return an error without undoing earlier steps.
func breakAt(t *testing.T, name string) {
	t.Helper()
	restore, err := failpoint.Set(name + "=error")
	must(t, err)
	t.Cleanup(restore)
}

// If a daemon is killed at any step of a DEL, the addresses of the pod cool, including a node-local one, before
// another pod gets them.
func TestRecoveryFromEveryStepOfDel(t *testing.T) {
	for k, point := range []string{"daemon.del.marked", "daemon.del.cooling", "daemon.del.detached", "daemon.del.unrecorded", "daemon.del.released"} {
		for kind, newNode := range map[string]func(*testing.T) *node{
			"alone": func(t *testing.T) *node { return newNode(t, "10.0.0.5") },
			"local": func(t *testing.T) *node { return newNodeLocal(t, "2001:db8::5", "2001:db8::6") },
		} {
			t.Run(fmt.Sprint(kind, k), func(t *testing.T) { // a short name, because it becomes part of a socket path
				t.Log(point)
				n := newNode(t)
				n.leave("a")
				released := n.clock.Now() // or later, because the clock ticks while a daemon starts
				var lease attachment.Lease
				n.crash(t, point, nil, func(r *running, rec attachment.Record) error {
					lease = rec.Lease
					return r.attachments.del(within(t), keyFor("a"))
				})
				r := n.restart(nil)
				n.wantKernel(t, 0, 0)
				if recs := r.Store.Records(); len(recs) != 0 {
					t.Errorf("records = %v, want none", recs)
				}
				if lease.NodeLocal.IsValid() {
					mustAdd(t, r, "b", n.newNetns("b"))
					if got := r.local(t, "b"); got == lease.NodeLocal {
						t.Errorf("%s was assigned again without cooling", got)
					}
					mustDel(t, r, "b")
				}
				totals := func(what string, free int) {
					t.Helper()
					if got := r.inspector.document().Totals; got.Available != free || got.Cooling != len(n.addrs)-free {
						t.Errorf("%s: totals = %+v, want %d available and the rest cooling", what, got, free)
					}
				}
				totals("after the restart", 0)
				n.clock.Advance(max(0, 29*time.Second-n.clock.Now().Sub(released)))
				totals("after 29 seconds", 0)
				n.clock.Advance(31 * time.Second)
				totals("after a minute", len(n.addrs))
				waitFor(t, func() bool { // the removal of the record may not have reached its timer yet
					n.clock.Advance(time.Second)
					return len(r.Store.CoolingRecords()) == 0
				})
			})
		}
	}
}

func TestRecoveryKeepsAndRepairsRunningPods(t *testing.T) {
	n := newNode(t, "10.0.0.5", "10.0.0.6")
	r := n.restart(nil)
	first := mustAdd(t, r, "a", n.newNetns("a"))
	r.stop()
	n.kernel.dropRoutes()
	r = n.restart(nil)
	n.wantKernel(t, 1, 1)
	if again := mustAdd(t, r, "a", "/run/netns/a"); again.String() != first.String() {
		t.Errorf("reply after the restart = %v, want %v", again, first)
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
		t.Errorf("records = %v, cooling = %v; want none", recs, cools)
	}
	if doc := r.inspector.document(); doc.Totals.Available != 2 {
		t.Errorf("totals = %+v, want both addresses available", doc.Totals)
	}
}

// No egress state survives a reboot: such records are dropped like those without egress, even if NICs of another
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
		t.Errorf("records = %v, want only that of the NIC", recs)
	}
	if got := r.source.Cancels(); got != 0 {
		t.Errorf("restored and cancelled %d leases of pods without NICs, want 0", got)
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

func TestDamagedRecordOfRunningPod(t *testing.T) {
	n := newNode(t, "10.0.0.5", "10.0.0.6")
	n.leave("a")
	n.damage("a", 30)
	for range 2 { // quarantined at the first start, found in quarantine at the second
		r := n.restart(nil)
		n.wantKernel(t, 1, 1)
		r.conditions.want(t, ConditionRecords, false, hostLinkName(keyFor("a")))
		if holder, ok := r.source.Holder(n.addrs[0]); !ok {
			t.Errorf("the address of the damaged record is not held; holder = %v", holder)
		}
		r.stop()
	}
	r := n.restart(nil)
	defer n.tick()()
	mustDel(t, r, "a")
	must(t, r.reaper.await(within(t), hostLinkName(keyFor("a")), attachment.Netns{}))
	n.wantKernel(t, 0, 0)
	if _, ok := r.Store.Cooling(n.addrs[0]); !ok {
		t.Error("the address of the deleted pod is not cooling")
	}
	r.conditions.want(t, ConditionRecords, true, "")
}

// Files whose names contain no valid link name belong to no attachment, and are kept for inspection.
func TestDamagedRecordWithoutValidLinkName(t *testing.T) {
	n := newNode(t, "10.0.0.5", "10.0.0.6", "10.0.0.7")
	n.leave("a")
	dir := filepath.Join(n.dir, "attachments")
	odd := []string{
		"attachment-eth0.json", "attachment-.json", "attachment-a b.json", "attachment-bth.json.bad",
		"attachment-" + strings.Repeat("x", 238) + ".json", // too long for a file name with the suffix .bad
	}
	for i, name := range odd {
		text := "{" // followed by the address of a pod, and a free one
		if i < 2 {
			text = fmt.Sprintf(`{"lease":{"ipv4":"10.0.0.%d"}`, 5+i)
		}
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	for range 2 {
		r := n.restart(nil)
		r.conditions.want(t, ConditionRecords, true, "")
		if holder, ok := r.source.Holder(n.addrs[0]); !ok || holder != keyFor("a") {
			t.Errorf("holder of the pod's address = %v, want %v", holder, keyFor("a"))
		}
		if _, cools := r.Store.Cooling(n.addrs[1]); !cools {
			t.Error("the free address of the damaged record is not cooling")
		}
		n.wantKernel(t, 1, 1)
		r.stop()
	}
	kept, err := filepath.Glob(filepath.Join(dir, "*.kept"))
	if err != nil || len(kept) != len(odd) {
		t.Errorf("kept files = %q, error %v; want %d", kept, err, len(odd))
	}
}

func TestDamagedRecordOfDeletedPod(t *testing.T) {
	n := newNode(t, "10.0.0.5")
	n.leave("a")
	n.damage("a", 90)
	n.kernel = newFakeKernel()
	r := n.restart(nil)
	if doc := r.inspector.document(); doc.Totals.Cooling != 1 {
		t.Errorf("totals = %+v, want the address cooling", doc.Totals)
	}
	left, err := filepath.Glob(filepath.Join(n.dir, "attachments", "*.bad"))
	if err != nil || len(left) != 0 {
		t.Errorf("directory has %v, error %v; want no files", left, err)
	}
}

// An attachment whose namespace is gone is released after the grace period, unless the runtime lists its sandbox or,
// if the runtime cannot be queried, its link exists. A pod with only NICs has no link as evidence.
func TestVanishedSandbox(t *testing.T) {
	for name, tt := range map[string]struct {
		listed    map[string]bool // sandboxes listed by the runtime; nil: no runtime
		linkGone  bool
		nicsAlone bool
		released  bool
	}{
		"no runtime, link gone":               {linkGone: true, released: true},
		"no runtime, link exists":             {},
		"runtime does not list it":            {listed: map[string]bool{}, released: true},
		"runtime still lists it":              {listed: map[string]bool{"a": true}, linkGone: true},
		"runtime lists another":               {listed: map[string]bool{"b": true}, linkGone: true, released: true},
		"runtime lists it, link exists":       {listed: map[string]bool{"a": true}},
		"NICs only, no runtime":               {nicsAlone: true, linkGone: true},
		"NICs only, runtime lists it":         {nicsAlone: true, listed: map[string]bool{"a": true}, linkGone: true},
		"NICs only, runtime does not list it": {nicsAlone: true, listed: map[string]bool{}, linkGone: true, released: true},
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
				t.Fatal("the attachment was released before the grace period")
			}
			n.clock.Advance(time.Minute)
			d.sweeper.sweep(within(t))
			if released := len(d.Store.Records()) == 0; released != tt.released {
				t.Errorf("released = %v, want %v", released, tt.released)
			}
		})
	}
}

func TestReappearedNamespaceRestartsGracePeriod(t *testing.T) {
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
		t.Error("the grace period did not restart")
	}
}

func TestSweepFinishesFailedUndo(t *testing.T) {
	n := newNode(t, "10.0.0.5")
	r := n.restart(nil)
	defer n.tick()()
	breakAt(t, "daemon.add.wired")
	n.kernel.set("DetachPod", errors.New("busy"))
	if _, err := r.attach(within(t), "a", n.newNetns("a")); err == nil {
		t.Fatal("ADD succeeded, want an error")
	}
	if holder, ok := r.source.Holder(n.addrs[0]); !ok || holder != keyFor("a") {
		t.Fatal("the address was released while its link exists")
	}
	n.sweeps(r)
}

func TestFailedUndoAtStartupHoldsTheAddress(t *testing.T) {
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
		t.Errorf("holder of the address = %v, %v, want %v while its link exists", holder, ok, rec.Key)
	}
	n.sweeps(r)
}

func TestEveryFailpointIsHit(t *testing.T) {
	// The crash tests take the list from failpoint.Names, so a failpoint that is never
	// reached would test nothing.
	n := newPortNode(t, "10.0.0.5", "10.0.0.6")
	n.tunnels = newTunnels()
	r := n.restart(nil)
	r.nics.bind("", testNIC("eth1", "p-1"))
	defer n.tick()()
	for _, name := range failpoint.Names() {
		if !strings.HasPrefix(name, "daemon.") || strings.HasPrefix(name, policyFailpoints) {
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
					t.Errorf("ADD = %v, want failpoint.ErrHit", addErr)
				}
			} else if !errors.Is(errors.Join(addErr, delErr), failpoint.ErrHit) {
				t.Errorf("failpoint was not hit: ADD = %v, DEL = %v", addErr, delErr)
			}
			if err := r.attachments.del(within(t), keyFor(name)); err != nil {
				t.Errorf("second DEL failed: %v", err)
			}
			if left := r.Store.Records(); len(left) != 0 {
				t.Errorf("records = %v, want none", left)
			}
			n.board.want(t)
			n.tunnels.want(t)
			n.clock.Advance(31 * time.Second)
		})
	}
}

func TestCoolingRecordOfHeldAddressIsRemoved(t *testing.T) {
	n := newNode(t, "10.0.0.5")
	r := n.restart(nil)
	mustAdd(t, r, "a", n.newNetns("a"))
	must(t, r.Store.PutCooling(attachment.Cooling{Addr: netip.MustParseAddr("10.0.0.5"), Key: keyFor("a"), ReleasedBoot: n.clock.Boot()}))
	r = n.restart(r)
	if len(r.Store.CoolingRecords()) != 0 || len(r.Store.Records()) != 1 {
		t.Errorf("cooling = %v, records = %v; want none and one", r.Store.CoolingRecords(), r.Store.Records())
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
		t.Errorf("29 s after the release: addresses = %+v, want one cooling", got)
	}
	n.clock.Advance(time.Minute)
	if got := d.source.Snapshot().Addresses; len(got) != 1 || got[0].State != source.Warm {
		t.Errorf("after the cooling period: addresses = %+v, want one warm", got)
	}
}

// The most recently released address is not leased first after a restart, even long after it has
// cooled.
func TestLongestFreeAddressIsLeasedFirstAfterARestart(t *testing.T) {
	for name, between := range map[string]struct {
		ended bool // the daemon was running when cooling ended
	}{"cooled before the restart": {true}, "cooled while no daemon ran": {false}} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, "10.0.0.5", "10.0.0.6", "10.0.0.7")
			r := n.restart(nil)
			first := mustAdd(t, r, "a", n.newNetns("a"))
			must(t, r.attachments.del(within(t), keyFor("a")))
			if between.ended {
				waitFor(t, func() bool { // the removal of the record may not have reached its timer yet
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
				t.Errorf("cooling = %v, want none", r.Store.CoolingRecords())
			}
			var got []string
			for _, name := range []string{"b", "c", "d"} {
				mustAdd(t, r, name, n.newNetns(name))
				rec, _ := r.Store.Get(keyFor(name))
				got = append(got, rec.Lease.Addrs()[0].String())
			}
			if got[0] != "10.0.0.6" || got[1] != "10.0.0.7" || got[2] != "10.0.0.5" {
				t.Errorf("leased %v, want the first pod's %v last", got, first)
			}
		})
	}
}

// Files of every release can be read, and written files have every field that earlier releases
// read.
func TestStoredUsableMark(t *testing.T) {
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
