package lab

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/lab/cloud/spec"
	"github.com/berthnet/berth/lab/cloud/vpc"
	"github.com/berthnet/berth/lab/network/echo"
	"github.com/berthnet/berth/lab/network/fabric"
	"github.com/berthnet/berth/lab/run/node"
)

// start raises a lab without daemons.
func start(t *testing.T, o Options) *Lab {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("a lab makes network namespaces: run its tests as root")
	}
	if o.Dir == "" {
		o.Dir = t.TempDir()
	}
	o.NoDaemons = true
	l, err := Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if err := l.Err(); err != nil {
			t.Error(err)
		}
		if left, err := ns.List(fabric.Prefix(l.ID)); err != nil || len(left) > 0 {
			t.Errorf("left behind: %v, %v", left, err)
		}
	})
	return l
}

func reach(t *testing.T, path string, to netip.Addr, wait time.Duration) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	_, err := echo.Ask(ctx, path, "udp", netip.AddrPortFrom(to, echo.Port), netip.Addr{}, "x")
	return err
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestTheCloudIsThereForEveryNode(t *testing.T) {
	l := start(t, Options{Nodes: 3})
	for _, n := range l.Nodes() {
		id, err := n.Get(t.Context(), "http://169.254.169.254/latest/meta-data/instance-id")
		ok(t, err)
		if id != n.InstanceID {
			t.Errorf("the metadata of %s have instance ID %s, want %s", n.Name, id, n.InstanceID)
		}
		if _, err := n.Get(t.Context(), EC2URL); err == nil || !strings.Contains(err.Error(), " 40") {
			t.Errorf("the EC2 endpoint answers %v to a request without an action", err)
		}
	}
	if _, err := ns.Get(t.Context(), l.Fabric.NodePath("node-1"), "http://169.254.169.254/latest/meta-data/mac"); err != nil {
		t.Error(err)
	}
	for _, host := range []netip.Addr{fabric.InternetHost, fabric.OnPremHost} {
		ok(t, reach(t, l.Nodes()[0].Netns, host, time.Minute))
	}
}

func TestALostReplyClosesTheConnection(t *testing.T) {
	l := start(t, Options{Nodes: 1})
	l.Cloud.API.Outage(true)
	_, err := l.Nodes()[0].Get(t.Context(), EC2URL)
	if !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("got %v, want the connection closed without an answer", err)
	}
}

func TestEventsOfTheCloudBecomeLinksAndMachines(t *testing.T) {
	fake := clock.NewFake(time.Now())
	l := start(t, Options{Nodes: 1, CloudOptions: []vpc.Option{vpc.WithClock(fake)}})
	n := l.Nodes()[0]
	l.Cloud.SetDelays(spec.Delays{Link: spec.Duration(time.Minute)})
	self, _ := l.Snapshot().Instance(n.InstanceID)
	e, err := l.Cloud.ENIs.Create(vpc.CreateRequest{SubnetID: self.SubnetID, Addresses: vpc.AddressRequest{IPv4Count: 2}})
	ok(t, err)
	_, err = l.Cloud.ENIs.Attach(vpc.AttachRequest{ENIID: e.ID, InstanceID: n.InstanceID, DeviceIndex: 1})
	ok(t, err)
	if links(t, n, "ens6") {
		t.Error("the link was there at once, before the link delay")
	}
	fake.Advance(time.Minute)
	eventually(t, "ens6 appears", func() bool { return links(t, n, "ens6") })

	machine, err := l.Cloud.Instances.Launch(spec.Instance{Name: "late", Type: "m5.large", Subnet: "b", Role: "node"})
	ok(t, err)
	l.WaitEvents()
	_, err = l.Node("late")
	ok(t, err)
	ok(t, reach(t, n.Netns, primaryOf(l, machine.ID), time.Minute))

	ok(t, l.Cloud.Instances.Stop("late"))
	l.WaitEvents()
	if err := reach(t, n.Netns, primaryOf(l, machine.ID), 200*time.Millisecond); err == nil {
		t.Error("a stopped instance answers")
	}
	ok(t, l.Cloud.Instances.Start("late"))
	l.WaitEvents()
	ok(t, reach(t, n.Netns, primaryOf(l, machine.ID), time.Minute))
	ok(t, l.Cloud.Instances.Terminate("late"))
	l.WaitEvents()
	if _, err := l.Node("late"); err == nil {
		t.Error("a terminated instance is still a node")
	}
	if names, _ := ns.List(fabric.Prefix(l.ID) + "node-late"); len(names) > 0 {
		t.Errorf("a terminated instance's namespace remains: %v", names)
	}
}

func primaryOf(l *Lab, instanceID string) netip.Addr {
	return l.Snapshot().InstanceENIs(instanceID)[0].Primary
}

func links(t *testing.T, n *node.Node, name string) bool {
	t.Helper()
	found := false
	ok(t, ns.Do(n.Netns, func() error {
		b, err := os.ReadFile("/proc/thread-self/net/dev")
		found = strings.Contains(string(b), " "+name+":")
		return err
	}))
	return found
}

// eventually polls, as the kernel does not notify.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	const patience = 5 * time.Minute
	for end := time.Now().Add(patience); !is(); {
		if time.Now().After(end) {
			t.Fatalf("%s: not after %v", what, patience)
		}
		<-time.After(5 * time.Millisecond)
	}
}

// TestSweepAfterSIGKILL raises a lab in a process that is killed, and sweeps.
func TestSweepAfterSIGKILL(t *testing.T) {
	const childDir = "VPCLAB_TEST_CHILD_DIR"
	if dir := os.Getenv(childDir); dir != "" { // this is the child
		l, err := Start(t.Context(), Options{Dir: dir, NoDaemons: true})
		if err != nil {
			t.Fatal(err)
		}
		// A process of the node that outlives the lab, as a user's exec would.
		ok(t, ns.Do(l.Nodes()[0].Netns, func() error { return exec.Command("sleep", "600").Start() }))
		_ = os.WriteFile(dir+"/raised", nil, 0o600)
		select {}
	}
	dir := t.TempDir()
	child := exec.Command(os.Args[0], "-test.run=^TestSweepAfterSIGKILL$")
	child.Env = append(os.Environ(), childDir+"="+dir)
	ok(t, child.Start())
	eventually(t, "the child raises its lab", func() bool { _, err := os.Stat(dir + "/raised"); return err == nil })
	ok(t, child.Process.Kill())
	_ = child.Wait()
	id := IDOf(dir)
	before, err := ns.List(fabric.Prefix(id))
	ok(t, err)
	if len(before) < 4 {
		t.Fatalf("the killed lab left %v; the test wants something to sweep", before)
	}
	removed, err := Sweep(dir, id)
	ok(t, err)
	if !slices.Contains(removed, before[0]) {
		t.Errorf("sweep says that it removed %v", removed)
	}
	left, err := ns.List(fabric.Prefix(id))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	// A lab of the same directory can be raised after a crash without a sweep, too.
	start(t, Options{Dir: dir})
}

func TestIDOf(t *testing.T) {
	for dir, want := range map[string]string{
		"/run/vpclab/lab":  "lab",
		"/run/vpclab/demo": "demo",
	} {
		if got := IDOf(dir); got != want {
			t.Errorf("IDOf(%s) = %s, want %s", dir, got, want)
		}
	}
	a, b := IDOf("/tmp/a/lab"), IDOf("/tmp/b/lab")
	if a == b || len(a) != 8 {
		t.Errorf("labs in different directories have IDs %s and %s", a, b)
	}
}
