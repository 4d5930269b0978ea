package lab

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/lab/network/fabric"
	"github.com/berthnet/berth/lab/run/cgroup"
	"github.com/berthnet/berth/lab/run/host"
)

// A machine that does not come up can be powered on again.
func TestMachineThatDoesNotComeUpIsDarkAgain(t *testing.T) {
	l := start(t, Options{Nodes: 1})
	name := l.Nodes()[0].Name
	m, err := l.machines.get(name)
	ok(t, err)
	dir := t.TempDir()
	if dirs, err := cgroup.Group("").Directories(); err != nil || len(dirs) > 0 {
		t.Fatalf("a machine without a group would end what is in %v, %v", dirs, err)
	}
	m.host = host.New(host.Options{Name: name, Netns: m.Netns, Disk: filepath.Join(dir, "disk"), Logs: dir, CNIPlugins: filepath.Join(dir, "none")})
	fails := func(want string) {
		t.Helper()
		if err := l.PowerOn(t.Context(), name); err == nil || !strings.Contains(err.Error(), want) {
			t.Fatalf("error %v, want %q", err, want)
		}
		if left, err := ns.List(fabric.Prefix(l.ID) + "node-" + name); err != nil || len(left) > 0 || !m.dark {
			t.Fatalf("left behind: %v, %v; dark: %t", left, err, m.dark)
		}
	}
	if err := l.PowerOn(t.Context(), name); err == nil || !strings.Contains(err.Error(), "it is powered on") {
		t.Fatalf("plugged in twice: %v", err)
	}
	ok(t, l.PowerOff(name))
	for range 2 {
		fails("loopback") // of the plugins, which a booting machine copies
	}
	ok(t, l.PowerOff(name)) // in the dark too

	// A network that cannot be made whole.
	primary := l.Snapshot().InstanceENIs(m.InstanceID)[0]
	ok(t, l.Fabric.AddNode("other"))
	ok(t, l.Fabric.Attach("other", primary))
	fails("it is attached to other")
	ok(t, l.Fabric.RemoveNode("other"))
	fails("loopback")
}
