package daemon

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/berthnet/berth/internal/rpc"
)

// TestRecordsThatCannotBeWritten fills the folder of records, and makes it
// read-only. Both are told, pods are not evicted for it, and the daemon goes on
// when they are over.
func TestRecordsThatCannotBeWritten(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("this test mounts a file system and needs root")
	}
	n := newNode(t, "10.0.0.5", "10.0.0.6", "10.0.0.7")
	if err := unix.Mount("tmpfs", n.dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(n.dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	r := n.restart(nil)
	defer n.tick()()
	recovered := func() bool { n.clock.Advance(writableInterval / 10); return r.writable() == nil }
	mustAdd(t, r, "before", n.newNetns("before"))
	ns := n.newNetns("a")
	for _, tt := range []struct {
		reason     string
		begin, end func() error
	}{
		{"NoSpace", func() error {
			err := os.WriteFile(filepath.Join(n.dir, "filler"), make([]byte, 64<<10), 0o600)
			if err == nil {
				t.Error("the folder is not full")
			}
			return nil
		}, func() error { return os.Remove(filepath.Join(n.dir, "filler")) }},
		{"ReadOnly", func() error { return unix.Mount("", n.dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, "") },
			func() error { return unix.Mount("", n.dir, "", unix.MS_REMOUNT, "") }},
	} {
		waitFor(t, recovered)
		if err := tt.begin(); err != nil {
			t.Fatal(err)
		}
		_, err := r.client.Add(within(t), addOf("a", ns), grpc.WaitForReady(true))
		wantFailure(t, err, CodeRecord)
		waitFor(t, func() bool { return r.writable() != nil })
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
		if err := tt.end(); err != nil {
			t.Fatal(err)
		}
	}
	waitFor(t, recovered)
	mustAdd(t, r, "a", ns)
	mustDel(t, r, "before")
}
