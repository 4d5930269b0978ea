package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/kernel/rtnl"
	"github.com/berthnet/berth/internal/node/foreign"
)

// otherNetworks is a node with pods of other pod networks.
type otherNetworks struct {
	*machine
	dir    string // of the checkpoint
	spaces string // with links to network namespaces
	conf   string // of configs

	mu      sync.Mutex // guards the fields below
	configs []foreign.Config
	runs    map[foreign.System]bool
}

func newOtherNetworks(t *testing.T, addrs int) *otherNetworks {
	o := &otherNetworks{machine: newMachine(t, addrs), dir: t.TempDir(), conf: t.TempDir(), spaces: t.TempDir(), runs: map[foreign.System]bool{}}
	o.foreign = foreign.NewObserver(foreign.Options{
		Checkpoints: o.dir, ConfDir: o.conf, Netns: o.spaces, Clock: clock.Real{}, Log: slog.New(slog.DiscardHandler),
		Configs: func() ([]foreign.Config, error) {
			o.mu.Lock()
			defer o.mu.Unlock()
			return o.configs, nil
		},
		Answers: func(context.Context) map[foreign.System]bool {
			o.mu.Lock()
			defer o.mu.Unlock()
			return maps.Clone(o.runs)
		},
	})
	return o
}

// comes makes the Amazon VPC CNI start, and then put its configuration on the node.
func (o *otherNetworks) comes(socket, conf bool) {
	o.t.Helper()
	o.mu.Lock()
	if o.runs[foreign.AmazonVPCCNI] = socket; conf {
		o.configs = append([]foreign.Config{{File: "/etc/cni/net.d/10-aws.conflist", Plugins: []string{"aws-cni"}}}, o.configs...)
	}
	o.mu.Unlock()
	if socket {
		must(o.t, os.WriteFile(filepath.Join(o.dir, "ipamd.sock"), nil, 0o600))
	}
	if conf {
		must(o.t, os.WriteFile(filepath.Join(o.conf, "10-aws.conflist"), nil, 0o600))
	}
}

// Another pod network that starts on a node is reported within seconds, although neither a pod of its nor a repair calls for a look.
func TestReturningNetworkIsReported(t *testing.T) {
	o := newOtherNetworks(t, 2)
	o.configs = []foreign.Config{{File: "/etc/cni/net.d/10-berth.conflist", Plugins: []string{"berth"}}}
	s := o.start(time.Nanosecond)
	reported := func(healthy bool, what string) {
		t.Helper()
		began := time.Now()
		waitFor(t, func() bool {
			c, ok := s.conditions.get(ConditionSole)
			return ok && c.Healthy == healthy && strings.Contains(c.Message, what)
		})
		if took := time.Since(began); took > s.repairer.interval/2 {
			t.Errorf("reported after %v, as if only repairs looked", took)
		}
	}
	reported(true, "")
	o.comes(true, false)
	reported(false, "the daemon of Amazon VPC CNI runs")
	o.comes(true, true)
	reported(false, "new pods get their addresses from Amazon VPC CNI")
}

// pod makes a pod of another network: a veth, an address in the pod, and a route to it.
func (o *otherNetworks) pod(addr, link, alias string, table int) {
	o.t.Helper()
	path, inPod := newSpace(o.t)
	ns, err := rtnl.OpenNetns(path)
	must(o.t, err)
	defer func() { _ = ns.Close() }()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = link
	v := netlink.NewVeth(attrs)
	v.PeerName, v.PeerNamespace = "eth0", netlink.NsFd(ns)
	must(o.t, o.net.LinkAdd(v))
	host, err := o.net.LinkByName(link)
	must(o.t, err)
	must(o.t, o.net.LinkSetUp(host))
	must(o.t, o.net.LinkSetAlias(host, alias))
	peer, err := inPod.LinkByName("eth0")
	must(o.t, err)
	must(o.t, inPod.LinkSetUp(peer))
	a := netip.MustParseAddr(addr)
	must(o.t, inPod.AddrAdd(peer, &netlink.Addr{IPNet: rtnl.IPNet(rtnl.HostPrefix(a))}))
	must(o.t, o.net.RouteAdd(&netlink.Route{LinkIndex: host.Attrs().Index, Dst: rtnl.IPNet(rtnl.HostPrefix(a)), Table: table, Scope: netlink.SCOPE_LINK}))
}

// remember replaces the checkpoint of the Amazon VPC CNI.
func (o *otherNetworks) remember(at time.Time, addrs ...string) {
	o.t.Helper()
	var list []string
	for i, a := range addrs {
		list = append(list, fmt.Sprintf(`{"networkName":"aws-cni","containerID":"c%d","ifName":"eth0","ipv4":"%s","allocationTimestamp":%d,`+
			`"metadata":{"k8sPodNamespace":"default","k8sPodName":"web-%d"}}`, i, a, at.UnixNano(), i))
	}
	file := filepath.Join(o.dir, foreign.CheckpointName)
	must(o.t, os.WriteFile(file+".tmp", []byte(`{"version":"vpc-cni-ipam/1","allocations":[`+strings.Join(list, ",")+`]}`), 0o600))
	must(o.t, os.Rename(file+".tmp", file))
}

// No pod gets an address that a pod of another network on the node has, by a route in any table or by the checkpoint of the
// Amazon VPC CNI. It becomes available once that pod is gone. Both hold across restarts.
func TestAddressesOfOtherPodNetworks(t *testing.T) {
	o := newOtherNetworks(t, 5) // 10.0.1.1 to 10.0.1.5
	o.pod("10.0.1.1", "eni0d7763386da", "", unix.RT_TABLE_MAIN)
	o.pod("10.0.1.2", "veth5b6c70fb", "COIL:default:ab12:eth0", foreign.CoilPodTable)
	o.remember(time.Now(), "10.0.1.1", "10.0.1.3")
	o.configs = []foreign.Config{{File: "/etc/cni/net.d/10-aws.conflist", Plugins: []string{"aws-cni"}}, {File: "/etc/cni/net.d/10-berth.conflist", Plugins: []string{"berth"}}}
	o.runs[foreign.AmazonVPCCNI] = true
	s := o.start(time.Nanosecond)
	if got := s.attached(t, "a", mustSpace(t)).Lease.IPv4.String(); got != "10.0.1.4" {
		t.Errorf("the first pod got %s, want 10.0.1.4", got)
	}
	s.conditions.want(t, ConditionExclusive, false, "held by others, and withheld from pods: 10.0.1.1 (Amazon VPC CNI, pod default/web-0), "+
		"10.0.1.2 (Coil, link veth5b6c70fb, table 116), 10.0.1.3 (Amazon VPC CNI, pod default/web-1)")
	s.conditions.want(t, ConditionSole, false, "new pods get their addresses from Amazon VPC CNI: the runtime uses /etc/cni/net.d/10-aws.conflist, which sorts before 10-berth.conflist; "+
		"Amazon VPC CNI still holds 2 addresses and its daemon runs; Coil still holds 1 address")
	if _, _, byOthers := s.repairer.addresses.counts(); byOthers[foreign.AmazonVPCCNI] != 2 || byOthers[foreign.Coil] != 1 {
		t.Errorf("counted %v, want 2 of the Amazon VPC CNI and 1 of Coil", byOthers)
	}

	// A pod that the other network starts while Berth runs.
	o.pod("10.0.1.5", "lxc0123456789ab", "", unix.RT_TABLE_MAIN)
	waitFor(t, func() bool {
		routes, err := s.net.ForeignRoutes(t.Context())
		return err == nil && len(routes) == 3
	})
	full := func(container string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if rec, err := s.attach(ctx, container, mustSpace(t)); err == nil {
			t.Fatalf("a pod got %v, which another pod network has", rec.Lease.Addrs())
		}
	}
	full("b")
	s.stop()
	s = o.start(time.Nanosecond) // what the daemon knew of others is read again
	full("b")

	// Its pods end, one after the other.
	o.remember(time.Now(), "10.0.1.1")
	if got := s.attached(t, "b", mustSpace(t)).Lease.IPv4.String(); got != "10.0.1.3" {
		t.Errorf("after it left the checkpoint a pod got %s, want 10.0.1.3", got)
	}
	for addr, link := range map[string]string{"10.0.1.2": "veth5b6c70fb", "10.0.1.5": "lxc0123456789ab"} {
		full("c")
		o.deleteLink(link)
		if got := s.attached(t, link, mustSpace(t)).Lease.IPv4.String(); got != addr {
			t.Errorf("after its link was gone a pod got %s, want %s", got, addr)
		}
	}
	o.configs, o.runs = o.configs[1:], nil
	s.stop()
	o.remember(time.Now())
	o.deleteLink("eni0d7763386da")
	s = o.start(time.Nanosecond)
	if got := s.attached(t, "d", mustSpace(t)).Lease.IPv4.String(); got != "10.0.1.1" {
		t.Errorf("after a restart a pod got %s, want 10.0.1.1", got)
	}
	s.conditions.want(t, ConditionExclusive, true, "")
}

// A pod of another network that gives itself all addresses of the node keeps nobody from getting them, except those that
// the checkpoint of its daemon has.
func TestClaimsOfPodsAreIgnored(t *testing.T) {
	o := newOtherNetworks(t, 4) // 10.0.1.1 to 10.0.1.4
	path, inPod := newSpace(t)
	must(t, os.Symlink(path, filepath.Join(o.spaces, "greedy")))
	must(t, os.WriteFile(filepath.Join(o.spaces, "unmounted"), nil, 0o600))
	lo, err := inPod.LinkByName("lo")
	must(t, err)
	must(t, inPod.LinkSetUp(lo))
	all := &netlink.Route{LinkIndex: lo.Attrs().Index, Dst: rtnl.IPNet(netip.MustParsePrefix("10.0.1.0/24")), Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL, Scope: netlink.SCOPE_HOST}
	must(t, inPod.RouteAdd(all))
	o.remember(time.Now().Add(-time.Hour), "10.0.1.2", "192.0.2.1")
	s := o.start(time.Nanosecond)
	var got []string
	for _, container := range []string{"a", "b", "c"} {
		got = append(got, s.attached(t, container, mustSpace(t)).Lease.IPv4.String())
	}
	if want := "[10.0.1.1 10.0.1.3 10.0.1.4]"; fmt.Sprint(got) != want {
		t.Errorf("pods got %v, want %s", got, want)
	}
	s.conditions.want(t, ConditionExclusive, false, "10.0.1.2 (Amazon VPC CNI, pod default/web-0)")
	must(t, inPod.RouteDel(all))
	must(t, s.repairer.lookAtAddresses(t.Context()))
	if got := s.attached(t, "d", mustSpace(t)).Lease.IPv4.String(); got != "10.0.1.2" {
		t.Errorf("once its pod is gone a pod got %s, want 10.0.1.2", got)
	}
}
