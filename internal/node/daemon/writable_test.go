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

// Records cannot be written, first because the disk is full, then because it is read-only. Both are
// reported, pods are not evicted, and the daemon recovers.
func TestUnwritableRecordsAreReported(t *testing.T) {
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
			waitFor(t, func() bool { // the probe may still have its file open
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
			t.Errorf("condition = %+v, want reason %s and the directory", c, tt.reason)
		}
		if code, body := get(r.front.monitoringHandler(), "x", "/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, c.Message) {
			t.Errorf("/readyz = %d %s, want 503 with the condition's message", code, body)
		}
		if _, err := r.client.Status(within(t), &rpc.StatusRequest{}); err != nil {
			t.Errorf("STATUS failed: %v", err)
		}
		must(t, tt.end())
	}
	waitFor(t, recovered)
	mustAdd(t, r, "a", ns)
	mustDel(t, r, "before")
}

// A daemon starts on a full disk, for example after a crash.
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
		t.Errorf("STATUS failed: %v", err)
	}
}

// onSmallDisk mounts a small file system at the node's directory.
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

// fill fills the small disk. It fills it again if the daemon's test record was there, whose removal frees space.
func (n *node) fill() error {
	f, err := os.OpenFile(n.filler(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	for full := 0; full < 2; full++ {
		if _, err := f.Write(make([]byte, 128<<10)); !errors.Is(err, unix.ENOSPC) {
			return fmt.Errorf("the directory is not full: %w", err)
		}
		if there, err := filepath.Glob(filepath.Join(n.dir, "attachments", "*probe*")); err != nil || len(there) > 0 {
			full = -1
		}
	}
	return nil
}

func (n *node) empty() error { return os.Remove(n.filler()) }

// DEL and GC succeed if no record can be written, also for a damaged
// record. The address is withheld, even across a restart, until there is space again and it has
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
			t.Errorf("GC failed: %v", err)
		}
		waitFor(t, func() bool { return r.reaper.count() == 0 })
		n.wantKernel(t, 0, 0)
		if doc := r.inspector.document(); doc.Totals.Available != 0 {
			t.Errorf("totals = %+v, want no free address of a removed pod", doc.Totals)
		}
	}
	removed()
	removed() // repeating it is not an error
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
