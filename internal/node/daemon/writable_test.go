package daemon

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/berthnet/berth/internal/node/daemon/cnierror"
	"github.com/berthnet/berth/internal/rpc"
)

// TestRecordsThatCannotBeWritten fills the folder of records, and makes it read-only. Both are
// reported, pods are not evicted, and the daemon recovers.
func TestRecordsThatCannotBeWritten(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("this test mounts a file system and needs root")
	}
	n := newNode(t, "10.0.0.5", "10.0.0.6", "10.0.0.7")
	n.onSmallDisk()
	r := n.restart(nil)
	defer n.tick()()
	recovered := func() bool { n.clock.Advance(writableInterval / 10); return r.writable.err() == nil }
	mustAdd(t, r, "before", n.newNetns("before"))
	ns := n.newNetns("a")
	for _, tt := range []struct {
		reason     string
		begin, end func() error
	}{
		{"NoSpace", n.fill, n.empty},
		{"ReadOnly", func() (err error) {
			waitFor(t, func() bool { // the probe may have its file open
				err = unix.Mount("", n.dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, "")
				return !errors.Is(err, unix.EBUSY)
			})
			return err
		},
			func() error { return unix.Mount("", n.dir, "", unix.MS_REMOUNT, "") }},
	} {
		waitFor(t, recovered)
		must(t, tt.begin())
		r.refused(t, addOf("a", ns), cnierror.CodeRecord)
		waitFor(t, func() bool { return r.writable.err() != nil })
		c, _ := r.conditions.get(ConditionWritable)
		if c.Reason != tt.reason || !strings.Contains(c.Message, filepath.Join(n.dir, "attachments")) {
			t.Errorf("condition %+v", c)
		}
		if code, body := get(r.front.monitoringHandler(), "x", "/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, c.Message) {
			t.Errorf("/readyz: %d %s", code, body)
		}
		if _, err := r.client.Status(within(t), &rpc.StatusRequest{}); err != nil {
			t.Errorf("STATUS: %v", err)
		}
		must(t, tt.end())
	}
	waitFor(t, recovered)
	mustAdd(t, r, "a", ns)
	mustDel(t, r, "before")
}

// A daemon starts on a full disk, as after a crash there.
func TestStartOnAFullDisk(t *testing.T) {
	n := newNode(t, "10.0.0.5")
	n.onSmallDisk()
	must(t, n.fill())
	lock, err := AcquireLock(t.Context(), n.dir, n.clock, slog.New(slog.DiscardHandler))
	must(t, err)
	defer func() { must(t, lock.Release()) }()
	l, err := Listen(filepath.Join(n.dir, "berthd.sock"))
	must(t, err)
	must(t, l.Close())
	r := n.restart(nil)
	if _, err := r.client.Status(within(t), &rpc.StatusRequest{}, grpc.WaitForReady(true)); err != nil {
		t.Errorf("STATUS: %v", err)
	}
}

// onSmallDisk mounts a small file system for the node's folder.
func (n *node) onSmallDisk() {
	n.t.Helper()
	must(n.t, unix.Mount("tmpfs", n.dir, "tmpfs", 0, "size=64k"))
	n.t.Cleanup(func() {
		if err := unix.Unmount(n.dir, unix.MNT_DETACH); err != nil {
			n.t.Error(err)
		}
	})
}

func (n *node) filler() string { return filepath.Join(n.dir, "filler") }

// fill fills the small disk.
func (n *node) fill() error {
	if err := os.WriteFile(n.filler(), make([]byte, 128<<10), 0o600); !errors.Is(err, unix.ENOSPC) {
		return fmt.Errorf("the folder is not full: %w", err)
	}
	return nil
}

func (n *node) empty() error { return os.Remove(n.filler()) }

// TestPodsAreRemovedOnAFullDisk: DEL and GC succeed where no record can be written, also for a damaged
// record. The address is withheld, across a restart, too, until there is space again and it has
// cooled.
func TestPodsAreRemovedOnAFullDisk(t *testing.T) {
	n := newNode(t, "10.0.0.5", "10.0.0.6", "10.0.0.7")
	n.onSmallDisk()
	r := n.restart(nil)
	for _, c := range []string{"a", "b", "damaged"} {
		mustAdd(t, r, c, n.newNetns(c))
	}
	r.stop()
	damaged := filepath.Join(n.dir, "attachments", "attachment-"+hostLinkName(keyFor("damaged"))+".json")
	must(t, os.Truncate(damaged, 200))
	r = n.restart(nil)
	must(t, n.fill())
	stop := n.tick()
	removed := func() {
		t.Helper()
		mustDel(t, r, "a")
		mustDel(t, r, "damaged")
		if _, err := r.client.GC(within(t), &rpc.GCRequest{Network: "berth"}, grpc.WaitForReady(true)); err != nil {
			t.Errorf("GC: %v", err)
		}
		waitFor(t, func() bool { return r.reaper.count() == 0 })
		n.wantKernel(t, 0, 0)
		if doc := r.inspector.document(); doc.Totals.Available != 0 {
			t.Errorf("totals %+v: an address of a removed pod is free", doc.Totals)
		}
	}
	removed()
	removed() // again is no error
	r.refused(t, addOf("a", n.newNetns("new")), cnierror.CodeRecord)
	stop()
	r.stop()
	r = n.restart(nil)
	stop = n.tick()
	removed()
	stop()
	must(t, n.empty())
	waitFor(t, func() bool {
		n.clock.Advance(sweepInterval)
		return len(r.Store.Records()) == 0 && len(r.quarantine.all()) == 0
	})
	waitFor(t, func() bool {
		n.clock.Advance(30 * time.Second)
		return r.inspector.document().Totals.Available == 3
	})
}
