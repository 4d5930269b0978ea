package daemon

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/berthnet/berth/internal/node/daemon/cnierror"
	"github.com/berthnet/berth/internal/node/heartbeat"
	"github.com/berthnet/berth/internal/rpc"
)

// The daemon rejects names that no runtime should give, and keeps nothing of them.
func TestNamesAreBounded(t *testing.T) {
	n := newNode(t, "10.0.0.5", "10.0.0.6")
	r := n.restart(nil)
	ns := n.newNetns("a")
	long := strings.Repeat("x", 100<<10)
	for name, change := range map[string]func(*rpc.AddRequest){
		"K8S_POD_NAME is 102400 bytes":      func(a *rpc.AddRequest) { a.Pod.Name = long },
		"K8S_POD_NAME is 254 bytes":         func(a *rpc.AddRequest) { a.Pod.Name = long[:254] },
		"K8S_POD_NAMESPACE is 64 bytes":     func(a *rpc.AddRequest) { a.Pod.Namespace = long[:64] },
		"K8S_POD_UID is 129 bytes":          func(a *rpc.AddRequest) { a.Pod.Uid = long[:129] },
		"CNI_CONTAINERID is 1025 bytes":     func(a *rpc.AddRequest) { a.Attachment.ContainerId = long[:1025] },
		"CNI_IFNAME is 16 bytes":            func(a *rpc.AddRequest) { a.Attachment.IfName = long[:16] },
		"name of the network is 254 bytes":  func(a *rpc.AddRequest) { a.Attachment.Network = long[:254] },
		"CNI_NETNS is 4096 bytes":           func(a *rpc.AddRequest) { a.Netns = long[:4096] },
		`K8S_POD_NAME is "a\x1b[2Jb"`:       func(a *rpc.AddRequest) { a.Pod.Name = "a\x1b[2Jb" },
		`K8S_POD_NAME is "a\u202eb"`:        func(a *rpc.AddRequest) { a.Pod.Name = "a\u202eb" },
		`K8S_POD_NAMESPACE is "a b"`:        func(a *rpc.AddRequest) { a.Pod.Namespace = "a b" },
		`K8S_POD_UID is "a\n"`:              func(a *rpc.AddRequest) { a.Pod.Uid = "a\n" },
		`CNI_CONTAINERID is "a\u009b"`:      func(a *rpc.AddRequest) { a.Attachment.ContainerId = "a\u009b" },
		`CNI_CONTAINERID is "a/b"`:          func(a *rpc.AddRequest) { a.Attachment.ContainerId = "a/b" },
		`CNI_IFNAME is "e\x1bth"`:           func(a *rpc.AddRequest) { a.Attachment.IfName = "e\x1bth" },
		`CNI_IFNAME is "eth%d"`:             func(a *rpc.AddRequest) { a.Attachment.IfName = "eth%d" },
		"CNI_CONTAINERID is empty":          func(a *rpc.AddRequest) { a.Attachment.ContainerId = "" },
		"CNI_CONTAINERID is empt":           func(a *rpc.AddRequest) { a.Attachment = nil },
		"CNI_NETNS is empty":                func(a *rpc.AddRequest) { a.Netns = "" },
		`CNI_IFNAME is "../x"`:              func(a *rpc.AddRequest) { a.Attachment.IfName = "../x" },
		`CNI_IFNAME is ".."`:                func(a *rpc.AddRequest) { a.Attachment.IfName = ".." },
		`name of the network is "berth\x00`: func(a *rpc.AddRequest) { a.Attachment.Network = "berth\x00" },
		`CNI_NETNS is "/run/\x1bnetns"`:     func(a *rpc.AddRequest) { a.Netns = "/run/\x1bnetns" },
	} {
		req := addOf("a", ns)
		change(req)
		if message := r.refused(t, req, types.ErrInvalidEnvironmentVariables).GetMessage(); !strings.HasPrefix(message, name) || len(message) > 4200 {
			t.Errorf("%s: %.200s", name, message)
		}
	}
	if left := r.Store.Records(); len(left) > 0 {
		t.Errorf("records %v", left)
	}
	req := addOf("A-z_0.9", ns)
	req.Pod = &rpc.Pod{Namespace: long[:63], Name: long[:253], Uid: "Café_1"}
	if _, err := r.client.Add(within(t), req); err != nil {
		t.Errorf("good names: %v", err)
	}
}

// Two container IDs may have the same link name, which has 60 bits of a hash: an attacker who chooses
// both finds such a pair in a minute. The second is rejected, and the first is not affected.
func TestContainersWhoseLinksHaveOneName(t *testing.T) {
	const first, second = "43ab58336120444", "bde7e43ba73ff85"
	n := newNode(t, "10.0.0.5", "10.0.0.6")
	key := keyFor(first)
	key.Network, key.IfName = "net", "eth0"
	late := key
	late.ContainerID = second
	if hostLinkName(key) != hostLinkName(late) {
		t.Fatalf("%s and %s: not the pair that it was", hostLinkName(key), hostLinkName(late))
	}
	r := n.restart(nil)
	defer n.tick()()
	a, b := n.newNetns("a"), n.newNetns("b")
	add := addOf(first, a)
	add.Attachment.Network, add.Attachment.IfName = "net", "eth0"
	if _, err := r.client.Add(within(t), add, grpc.WaitForReady(true)); err != nil {
		t.Fatal(err)
	}
	links, routes := n.kernel.all.State()
	for range 2 {
		other := addOf(second, b)
		other.Attachment.Network, other.Attachment.IfName = "net", "eth0"
		r.refused(t, other, cnierror.CodeRecord)
		if err := r.attachments.del(within(t), late); err != nil {
			t.Errorf("DEL of the late one: %v", err)
		}
		waitFor(t, func() bool { return r.reaper.count() == 0 })
		if l, ro := n.kernel.all.State(); len(l) != len(links) || len(ro) != len(routes) {
			t.Fatalf("the first one has links %v and routes %v, had %v and %v", l, ro, links, routes)
		}
	}
	if err := r.attachments.check(within(t), key, a, nil); err != nil {
		t.Error(err)
	}
}

// FIFOs in place of files block neither a start nor an ADD.
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

// newChainedNode returns a node whose pods' interfaces are another network's.
func newChainedNode(t *testing.T) *node {
	n := newEgressNode(t)
	n.chained = true
	return n
}

func chainedAdd(container, netns string, addrs ...string) *rpc.AddRequest {
	req := addOf(container, netns)
	req.Previous = &rpc.Previous{Addresses: addrs}
	return req
}

// A pod of another network gets egress and nothing else; its addresses are that network's.
func TestChainedPod(t *testing.T) {
	n := newChainedNode(t)
	r := n.restart(nil)
	r.egress.says("pod-a", testEgress("nat"))
	ns := n.newNetns("a")
	add := func(addrs ...string) *rpc.AddReply {
		t.Helper()
		reply, err := r.client.Add(within(t), chainedAdd("a", ns, addrs...))
		must(t, err)
		return reply
	}
	if reply := add("10.4.0.7/24", "2001:db8:4::7/64"); !reply.GetChained() || reply.GetSandbox() != nil || len(reply.GetAddresses()) != 2 {
		t.Errorf("the reply is %v", reply)
	}
	n.tunnels.want(t, "internet/nat")
	n.wantKernel(t, 0, 0)
	if reported := n.tunnels.reported[keyFor("a")]; len(reported.addrs) != 2 || reported.addrs[0].String() != "10.4.0.7" {
		t.Errorf("the operator heard %+v", reported)
	}
	check := checkOf("a")
	check.Addresses = []string{"10.4.0.7/24", "2001:db8:4::7/64"}
	_, err := r.client.Check(within(t), check)
	must(t, err)
	check.Addresses = []string{"10.4.0.8/24"}
	_, err = r.client.Check(within(t), check)
	wantFailure(t, err, cnierror.CodeMismatch)

	// Another daemon takes it up, the same ADD again sets up what somebody removed, and one
	// with other addresses follows them.
	r = n.restart(r)
	r.egress.says("pod-a", testEgress("nat"))
	n.tunnels.lose()
	add("10.4.0.7/24", "2001:db8:4::7/64")
	n.tunnels.want(t, "internet/nat")
	add("10.4.0.9/24")
	n.tunnels.want(t, "internet/nat")
	if reported := n.tunnels.reported[keyFor("a")]; len(reported.addrs) != 1 || reported.addrs[0].String() != "10.4.0.9" {
		t.Errorf("the operator heard %+v", reported)
	}
	if view := r.inspector.podView(within(t), "default", "pod-a").Attachments; len(view) != 1 || view[0].Address.String() != "10.4.0.9" || view[0].Fault != "" || !view[0].Checked {
		t.Errorf("/ip-manager/pod has %+v", view)
	}
	// It becomes a client, and stops being one, while it runs.
	r.egress.says("pod-a", nil)
	n.tunnels.settles(t)
	r.egress.says("pod-a", testEgress("partner"))
	n.tunnels.settles(t, "internet/partner")

	mustDel(t, r, "a")
	mustDel(t, r, "a")
	n.tunnels.want(t)
	if len(r.Store.CoolingRecords()) != 0 {
		t.Error("another network's address cools")
	}
	add("10.4.0.7/24")
	_, err = r.client.GC(within(t), &rpc.GCRequest{Network: "berth"})
	must(t, err)
	if len(r.Store.Records()) != 0 {
		t.Error("GC left it")
	}
}

// An ADD of the wrong kind is rejected, and leaves nothing.
func TestADDForAnotherDaemon(t *testing.T) {
	chained := newChainedNode(t)
	r := chained.restart(nil)
	if f := r.refused(t, addOf("a", chained.newNetns("a")), types.ErrInvalidNetworkConfig); !strings.Contains(f.GetMessage(), "at the end of another network's list") {
		t.Errorf("the ADD says %v", f)
	}
	for says, addrs := range map[string][]string{"has no address of interface eth0": nil, `"x" is not a CIDR`: {"x"}, `"fe80::1%eth0/64" is not a CIDR`: {"fe80::1%eth0/64"}} {
		if f := r.refused(t, chainedAdd("a", "/run/netns/a", addrs...), types.ErrInvalidNetworkConfig); !strings.Contains(f.GetMessage(), says) {
			t.Errorf("the ADD says %v, want %q", f, says)
		}
	}
	own := newEgressNode(t, "10.0.0.5")
	r = own.restart(nil)
	if f := r.refused(t, chainedAdd("a", own.newNetns("a"), "10.4.0.7/24"), types.ErrInvalidNetworkConfig); !strings.Contains(f.GetMessage(), "run berthd with --ipam=none") {
		t.Errorf("the ADD says %v", f)
	}
	if len(r.Store.Records()) != 0 || own.tunnels.count("Apply") != 0 {
		t.Error("the ADD left something")
	}
}
