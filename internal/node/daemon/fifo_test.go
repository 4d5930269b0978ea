package daemon

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/node/heartbeat"
)

// FIFOs at the places of files that are read and written hold up neither a start
// nor an ADD.
func TestFIFOsInPlaceOfStateFiles(t *testing.T) {
	n := newNode(t, "10.0.0.5")
	r := n.restart(nil)
	r.stop()
	for _, name := range []string{
		"attachments/freed.json", "attachments/.new-1", "attachments/cooling-10.0.0.5.json", "attachments/.new-probe",
		usableName, filepath.Base(heartbeat.Path(r.socket)), filepath.Base(heartbeat.Path(r.socket)) + ".new",
	} {
		path := filepath.Join(n.dir, name)
		_ = os.Remove(path)
		must(t, unix.Mkfifo(path, 0o600))
	}
	if heartbeat.Recent(r.socket, n.clock.Boot()) {
		t.Error("a FIFO is a heartbeat")
	}
	r = n.restart(nil)
	defer n.tick()()
	mustAdd(t, r, "a", n.newNetns("a"))
	mustDel(t, r, "a")
}
