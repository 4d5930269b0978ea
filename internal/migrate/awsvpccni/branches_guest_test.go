//go:build guest

package awsvpccni

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/kernel/ns/nstest"
	"github.com/berthnet/berth/internal/kernel/rtnl"
	"github.com/berthnet/berth/internal/migrate"
	"github.com/berthnet/berth/test/harness/check"
)

// branchPod is a pod with a branch interface, whose address, VLAN and MAC address the Amazon VPC CNI's controller would have chosen.
type branchPod struct {
	name, mode, address string
	vlan                int
}

var branchPods = []branchPod{{"strict", "strict", "10.0.2.7", 7}, {"standard", "standard", "10.0.2.8", 8}}

// ipamdSocket is where the plugin of the Amazon VPC CNI expects ipamd.
const ipamdSocket = "/var/run/aws-node/ipamd.sock"

// rawCodec passes messages on as they are.
type rawCodec struct{}

func (rawCodec) Name() string                       { return "proto" }
func (rawCodec) Marshal(v any) ([]byte, error)      { return *v.(*[]byte), nil }
func (rawCodec) Unmarshal(data []byte, v any) error { *v.(*[]byte) = slices.Clone(data); return nil }

// answerAs serves the plugin in place of ipamd, with a pod's branch on a trunk (AddNetworkReply of its rpc.proto).
func answerAs(t *testing.T, p branchPod, trunk int) (end func()) {
	t.Helper()
	check.OK(t, os.MkdirAll(filepath.Dir(ipamdSocket), 0o755))
	listener, err := net.Listen("unix", ipamdSocket)
	check.OK(t, err)
	text := func(b []byte, field protowire.Number, s string) []byte {
		return protowire.AppendString(protowire.AppendTag(b, field, protowire.BytesType), s)
	}
	number := func(b []byte, field protowire.Number, n int) []byte {
		return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), uint64(n))
	}
	address := number(number(text(nil, 1, p.address), 3, -1), 4, 0)
	reply := text(text(number(number(nil, 1, 1), 7, p.vlan), 8, fmt.Sprintf("02:00:00:00:01:%02x", p.vlan)), 9, "10.0.2.1")
	reply = text(text(number(reply, 10, trunk), 6, "10.0.0.0/16"), 2, string(address))
	server := grpc.NewServer(grpc.ForceServerCodec(rawCodec{}), grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		var request []byte
		if err := stream.RecvMsg(&request); err != nil {
			return err
		}
		return stream.SendMsg(&reply)
	}))
	go func() { _ = server.Serve(listener) }()
	return server.Stop
}

// plugin returns the plugin of the Amazon VPC CNI, which hack/tool.sh has built on the host.
func plugin(t *testing.T) string {
	t.Helper()
	cache := cmp.Or(os.Getenv("XDG_CACHE_HOME"), filepath.Join(cmp.Or(os.Getenv("HOME"), "/root"), ".cache"))
	found, err := filepath.Glob(filepath.Join(cache, "berth/tools/amazonvpccni-*/routed-eni-cni-plugin"))
	check.OK(t, err)
	if len(found) == 0 {
		t.Fatalf("no plugin of the Amazon VPC CNI in %s: run hack/tool.sh amazonvpccni routed-eni-cni-plugin on the host", cache)
	}
	return found[len(found)-1]
}

// add has the plugin make a pod.
func (p branchPod) add(t *testing.T, program, netns string, trunk int) {
	t.Helper()
	defer answerAs(t, p, trunk)()
	cmd := exec.CommandContext(t.Context(), program)
	cmd.Env = []string{
		"CNI_COMMAND=ADD", "CNI_CONTAINERID=c-" + p.name, "CNI_NETNS=" + netns, "CNI_IFNAME=eth0", "CNI_PATH=" + filepath.Dir(program),
		"CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=" + p.name + ";K8S_POD_INFRA_CONTAINER_ID=c-" + p.name, "PATH=" + os.Getenv("PATH"),
	}
	cmd.Stdin = strings.NewReader(fmt.Sprintf(`{"cniVersion":"0.4.0","name":"aws-cni","type":"aws-cni","vethPrefix":"eni","mtu":"9001",`+
		`"podSGEnforcingMode":%q,"pluginLogFile":%q,"pluginLogLevel":"DEBUG"}`, p.mode, filepath.Join(t.TempDir(), "plugin.log")))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		t.Fatalf("ADD of %s: %v: %s", p.name, err, &out)
	}
}

// vlanNode is the instance of the test.
type vlanNode struct{}

func (vlanNode) Identity(context.Context) (cloud.Identity, error) {
	return cloud.Identity{InstanceID: "i-1", InstanceType: "m5.large", VPCCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")}}, nil
}

func (vlanNode) AttachedENIs(context.Context) ([]cloud.AttachedENI, error) { return nil, nil }

// left lists what the Amazon VPC CNI has on the node for branches.
func left(t *testing.T) (list []string) {
	t.Helper()
	rules, err := netlink.RuleList(netlink.FAMILY_V4)
	check.OK(t, err)
	for _, r := range rules {
		if r.Protocol != unix.RTPROT_KERNEL && !(r.Priority == 0 && r.Table == unix.RT_TABLE_LOCAL) {
			list = append(list, rtnl.RuleOf(r).String())
		}
	}
	links, err := netlink.LinkList()
	check.OK(t, err)
	for _, l := range links {
		if l.Type() == "vlan" {
			list = append(list, l.Attrs().Name)
		}
	}
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	check.OK(t, err)
	for _, r := range routes {
		if r.Table > branchTables && r.Table < unix.RT_TABLE_DEFAULT {
			list = append(list, r.String())
		}
	}
	return list
}

// Pods with branch interfaces, as the Amazon VPC CNI's own plugin makes them in both enforcing modes, are told apart and must be replaced.
// Finish waits for that, and then removes their VLANs, rules and routes, and puts the rule for local addresses back.
func TestBranchPodsOfThePlugin(t *testing.T) {
	program := plugin(t)
	node, err := rtnl.OpenNetns(nstest.New(t, nstest.Unique("node")))
	check.OK(t, err)
	t.Cleanup(func() { _ = node.Close() })
	runtime.LockOSThread() // the thread ends with the test
	check.OK(t, netns.Set(node))
	var pods []string
	for _, p := range branchPods {
		pods = append(pods, nstest.Unique(p.name))
		check.OK(t, ns.Create(pods[len(pods)-1]))
	}
	t.Cleanup(func() {
		for _, p := range pods {
			_ = ns.Remove(p)
		}
	})
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "eth1"
	trunk := netlink.NewVeth(attrs)
	trunk.PeerName = "fabric"
	check.OK(t, errors.Join(netlink.LinkAdd(trunk), netlink.LinkSetUp(trunk)))
	link, err := netlink.LinkByName("eth1")
	check.OK(t, err)
	local := func(priority int) *netlink.Rule {
		r := netlink.NewRule()
		r.Family, r.Priority, r.Table = unix.AF_INET, priority, unix.RT_TABLE_LOCAL
		return r
	}
	check.OK(t, errors.Join(netlink.RuleAdd(local(localRule)), netlink.RuleDel(local(0)))) // as ipamd does in enforcing mode strict
	for i, p := range branchPods {
		p.add(t, program, ns.Path(pods[i]), link.Attrs().Index)
	}
	n, err := New(Options{
		Metadata: vlanNode{}, RunDir: filepath.Dir(ipamdSocket), CNICache: t.TempDir(), NetnsDirs: []string{ns.Dir}, Proc: "/proc",
		Clock: clock.Real{}, Log: slog.New(slog.DiscardHandler),
	})
	check.OK(t, err)
	defer func() { check.OK(t, n.Close()) }()
	n.o.Config.StateDir, n.files.conf = t.TempDir(), t.TempDir()

	plan, err := n.Plan(t.Context())
	check.OK(t, err)
	check.Equal(t, len(plan.Pods), len(branchPods), "pods of the plan %+v", plan.Pods)
	for _, p := range plan.Pods {
		if p.Fate != migrate.Replace || !strings.Contains(p.Why, "branch interface") {
			t.Errorf("fate of %s = %s, %q", p.HostLink, p.Fate, p.Why)
		}
	}
	before := left(t)
	if _, err := n.Finish(t.Context()); err == nil || !strings.Contains(err.Error(), "2 pods are still the Amazon VPC CNI's") {
		t.Errorf("finish before the pods are replaced: %v, want a refusal", err)
	}
	check.Equal(t, left(t), before, "state after the refusal")
	t.Logf("of the plugin: %s", strings.Join(before, "; "))

	for _, name := range pods { // evicted, without a call of the former plugin
		check.OK(t, ns.Remove(name))
	}
	nstest.Within(t, "the pods' links go", func() bool {
		_, err := netlink.LinkByName(plan.Pods[0].HostLink)
		_, other := netlink.LinkByName(plan.Pods[1].HostLink)
		return rtnl.IsNoLink(err) && rtnl.IsNoLink(other)
	})
	r, err := n.Finish(t.Context())
	check.OK(t, err)
	if gone := left(t); len(gone) > 0 || len(r.Changed) < 6 {
		t.Errorf("left after finish: %s; changed: %s", strings.Join(gone, "; "), strings.Join(r.Changed, "; "))
	}
	rules, err := netlink.RuleList(netlink.FAMILY_V4)
	check.OK(t, err)
	if !slices.ContainsFunc(rules, func(r netlink.Rule) bool { return r.Priority <= 0 && r.Table == unix.RT_TABLE_LOCAL }) {
		t.Errorf("the rule for local addresses is not back: %v", rules)
	}
}
