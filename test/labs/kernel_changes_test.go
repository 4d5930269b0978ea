package labs

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/node/daemon"
	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/cloud/vpc"
	"github.com/berthnet/berth/lab/network/fabric"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/test/harness"
)

// TestKernelChangesByOthersAreRepaired drops packets, flushes Berth's kernel state, and removes sandboxes and links
// of ENIs, like other software does.
func TestKernelChangesByOthersAreRepaired(t *testing.T) {
	t.Parallel()
	few := harness.Few(t, "t3.small")
	l := harness.RaiseQuick(t, lab.NodeMode, lab.Options{Nodes: 2, InstanceType: few.Type, DaemonArgs: append(slices.Clone(lean), "--listing-interval=1h")})
	n, other := l.Nodes()[0], l.Nodes()[1]
	for i := range few.PerENI + 1 { // the last one is on another ENI
		harness.Add(t, n, fmt.Sprintf("p%d", i))
	}
	harness.Add(t, other, "far")
	harness.Settle(t, l)
	for _, f := range harness.Families().Families() {
		t.Run("FORWARD policy DROP for "+f.String(), func(t *testing.T) { forwardDrop(t, n, f) })
	}
	t.Run("flush", func(t *testing.T) { flushes(t, l, n, other) })
	t.Run("sandbox vanishes", func(t *testing.T) { vanishes(t, l, n) })
	t.Run("link of an ENI vanishes", func(t *testing.T) { links(t, l, n, other) })
	harness.Settle(t, l)
}

// forwardDrop sets a FORWARD policy and a rule to DROP, like firewalls do. Conditions name both.
func forwardDrop(t *testing.T, n *node.Node, f ipfamily.Family) {
	family, command := "ip", "iptables"
	if f == ipfamily.IPv6 {
		family, command = "ip6", "ip6tables"
	}
	set := func(policy string, rules ...string) {
		text := fmt.Sprintf("add table %[1]s filter; add chain %[1]s filter FORWARD { type filter hook forward priority 0; policy %[2]s; }; flush chain %[1]s filter FORWARD", family, policy)
		for _, r := range rules {
			text += fmt.Sprintf("; add rule %s filter FORWARD %s", family, r)
		}
		inNetns(t, n.Netns, "nft", text)
	}
	gauge := func(want string) {
		harness.Eventually(t, patience, "metric of the condition", func() error {
			body, err := n.Get(t.Context(), node.MetricsURL)
			if line := `berth_condition{type="` + daemon.ConditionForwarding + `"} ` + want; err == nil && !strings.Contains(body, line) {
				err = fmt.Errorf("metrics lack the line %s", line)
			}
			return err
		})
	}
	condition(t, n, daemon.ConditionForwarding, introspect.True)
	set("drop")
	says := func(reason, command string) {
		c := condition(t, n, daemon.ConditionForwarding, introspect.False)
		if c.Reason != reason || !harness.Says(c.Message, "FORWARD", ": "+command, "pods") {
			t.Errorf("condition has reason %s and message %q", c.Reason, c.Message)
		}
	}
	says("DropPolicy", command+" -P FORWARD ACCEPT")
	gauge("0")
	harness.Add(t, n, "meanwhile") // the administrator's decision, and no reason to reject pods
	harness.Remove(t, n, "meanwhile")
	set("accept")
	condition(t, n, daemon.ConditionForwarding, introspect.True)
	set("accept", "drop")
	says("DropRule", command+" -I FORWARD -i bth+ -j ACCEPT")
	set("accept")
	condition(t, n, daemon.ConditionForwarding, introspect.True)
	gauge("1")
}

// flushes removes one kind of Berth's state after the other, like network managers and firewall reloads do.
func flushes(t *testing.T, l *lab.Lab, n, other *node.Node) {
	far, err := other.Pod("far")
	harness.OK(t, err)
	protocol := fmt.Sprint(datapath.Protocol)
	// each flushes Berth's rules or routes in each family of pods, of which there must be some.
	each := func(object string, which ...string) func() {
		return func() {
			for _, f := range harness.Families().Families() {
				ip := func(does string) string {
					family := map[ipfamily.Family]string{ipfamily.IPv4: "-4", ipfamily.IPv6: "-6"}[f]
					return inNetns(t, n.Netns, append([]string{"ip", "-N", family, object, does}, which...)...)
				}
				if list := ip("list"); !strings.Contains(list, "proto "+protocol) {
					t.Errorf("%s has no Berth state to flush, only %q", f, list)
				}
				ip("flush")
			}
		}
	}
	for what, flush := range map[string]func(){
		"pod routes": each("route", "table", fmt.Sprint(datapath.PodTable)),
		"ENI table":  each("route", "table", fmt.Sprint(datapath.UplinkTableBase+1)),
		"rules":      each("rule", "protocol", protocol),
		"nftables":   func() { inNetns(t, n.Netns, "nft", "flush ruleset") },
		"forwarding": func() {
			inNetns(t, n.Netns, "sysctl", "-qw", "net.ipv4.ip_forward=0", "net.ipv6.conf.all.forwarding=0")
		},
	} {
		t.Run(what, func(t *testing.T) {
			flush()
			for _, p := range n.Pods() {
				harness.Eventually(t, patience, p.Name+" has connectivity again", func() error {
					outside := harness.Asks(t, p.Netns(), fabric.InternetHost, harness.ENIs(l, n)[0].Primary)
					if own := p.Addrs[len(p.Addrs)-1]; own.Is6() {
						outside = errors.Join(outside, harness.Asks(t, p.Netns(), fabric.InternetHost6, own))
					}
					return errors.Join(harness.Talk(t, p, far), outside)
				})
				harness.Eventually(t, patience, "CHECK of "+p.Name, func() error { return n.CheckPod(t.Context(), p.Name) })
			}
		})
	}
	body, err := n.Get(t.Context(), node.MetricsURL)
	harness.OK(t, err)
	if strings.Contains(body, "\nberth_repairs_total 0\n") || !strings.Contains(body, "\nberth_repairs_total ") {
		t.Error("berth_repairs_total is missing or 0")
	}
	harness.Settle(t, l)
}

func vanishes(t *testing.T, l *lab.Lab, n *node.Node) {
	s := harness.NewSandbox(t, n)
	list := harness.Network(t, "1.0.0", "berth", harness.Plugin(n, nil))
	_, err := s.Add(t, list)
	harness.OK(t, err)
	s.Vanish(t)
	harness.Shows(t, n, "attachment is released", func(doc introspect.Document) error {
		for _, a := range doc.Allocated {
			if a.ContainerID == s.ContainerID {
				return fmt.Errorf("attachment %+v still exists", a)
			}
		}
		return nil
	})
	harness.OK(t, s.Del(t, list)) // in case the runtime sends it nevertheless
	harness.Settle(t, l)
}

// TestNodeTakesPodsAfterReboot stops and starts an instance: its pods and cooling addresses are gone, and the node
// accepts pods again by itself.
func TestNodeTakesPodsAfterReboot(t *testing.T) {
	t.Parallel()
	few := harness.Few(t, "t3.small")
	maxENI := fmt.Sprintf("--max-eni=%d", few.Resting()+1)
	l := harness.RaiseQuick(t, lab.NodeMode, lab.Options{Nodes: 1, InstanceType: few.Type, DaemonArgs: []string{"--cooling-period=10m", "--warm-eni-target=0", "--warm-wait=1m", "--shrink-delay=10m", maxENI}})
	n := l.Nodes()[0]
	room := 2 * few.PerENI
	for i := range room - 1 {
		harness.Add(t, n, fmt.Sprintf("p%d", i))
	}
	harness.Remove(t, n, fmt.Sprintf("p%d", room-2))
	harness.OK(t, l.Cloud.Instances.Stop(n.Name))
	harness.Eventually(t, patience, "node is off", func() error { return harness.Equal("nodes", len(l.Nodes()), 0) })
	harness.OK(t, l.Cloud.Instances.Start(n.Name))
	harness.Eventually(t, patience, "node is on", func() error { return harness.Equal("nodes", len(l.Nodes()), 1) })
	n = l.Nodes()[0]
	harness.Ready(t, n)
	doc := harness.Document(t, n)
	if len(doc.Allocated)+len(doc.Cooling) > 0 {
		t.Errorf("after a reboot %v are allocated and %v are cooling, want none", doc.Allocated, doc.Cooling)
	}
	for i := range room { // all addresses of two ENIs, so none may be cooling
		harness.Add(t, n, fmt.Sprintf("q%d", i))
	}
	harness.Settle(t, l)
}

// condition waits until a condition has a status, and returns it.
func condition(t *testing.T, n *node.Node, kind, status string) (found introspect.Condition) {
	t.Helper()
	harness.Shows(t, n, kind+" is "+status, func(doc introspect.Document) error {
		for _, c := range doc.Conditions {
			if c.Type == kind && c.Status == status {
				found = c
				return nil
			}
		}
		return fmt.Errorf("conditions = %+v", doc.Conditions)
	})
	return found
}

// linksPresent is the condition for ENI links.
const linksPresent = "ENILinksPresent"

// detach detaches an ENI behind Berth's back, and waits until it is attached again. Daemons list ENIs only once an
// hour here, so only the missing link reveals it.
func detach(t *testing.T, l *lab.Lab, e vpc.ENI) {
	t.Helper()
	before := e.Attachment.ID
	harness.OK(t, l.Cloud.ENIs.Detach(before, true))
	harness.Eventually(t, patience, e.ID+" is reattached", func() error {
		now, ok := l.Snapshot().ENI(e.ID)
		if !ok || now.Attachment == nil || now.Attachment.ID == before {
			return fmt.Errorf("ENI = %+v, want a new attachment", now)
		}
		return nil
	})
}

// links removes the link of an ENI from a node, first alone and then with its attachment.
func links(t *testing.T, l *lab.Lab, n, other *node.Node) {
	far, err := other.Pod("far")
	harness.OK(t, err)
	used := harness.ENIs(l, n)[1]
	i := slices.IndexFunc(n.Pods(), func(p *node.Pod) bool { return used.Owns(p.Addr()) })
	p := n.Pods()[i]
	works := func() {
		t.Helper()
		condition(t, n, linksPresent, introspect.True)
		harness.Eventually(t, patience, p.Name+" has connectivity again", func() error { return harness.Talk(t, p, far) })
	}

	move(t, n.Netns, p.Netns(), used)
	if c := condition(t, n, linksPresent, introspect.False); !harness.Says(c.Message, used.ID) {
		t.Errorf("condition message = %q, want it to name the ENI", c.Message)
	}
	if got := harness.Add(t, n, "meanwhile"); used.Owns(got.Addr()) {
		t.Errorf("a pod got %v on an ENI without a link", got.Addr())
	}
	move(t, p.Netns(), n.Netns, used)
	works()
	harness.Remove(t, n, "meanwhile")

	detach(t, l, used)
	works()
	harness.Settle(t, l)
}

// move moves the link of an ENI into another network namespace.
func move(t *testing.T, from, to string, e vpc.ENI) {
	t.Helper()
	target, err := os.Open(to)
	harness.OK(t, err)
	defer target.Close()
	harness.OK(t, ns.Netlink(from, func(h *netlink.Handle) error {
		list, err := h.LinkList()
		if err != nil {
			return err
		}
		for _, link := range list {
			if bytes.Equal(link.Attrs().HardwareAddr, e.MAC) {
				return h.LinkSetNsFd(link, int(target.Fd()))
			}
		}
		return fmt.Errorf("no link has the MAC address of %s", e.ID)
	}))
}
