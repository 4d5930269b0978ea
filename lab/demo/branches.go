package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"time"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/cloud/vpc"
	"github.com/berthnet/berth/lab/network/echo"
	"github.com/berthnet/berth/lab/portcloud"
	"github.com/berthnet/berth/lab/run/node"
)

// branchProofs are the proofs of a lab whose nodes have trunks.
var branchProofs = []proof{
	in(inOperator, "a pod's first interface is a branch with its own group", branchUp),
	in(inOperator, "EC2 down: the next pod's branch exists before the pod does", branchWarm),
	in(inOperator, "no traffic reaches it, even from its node, until allowed", branchGroups),
	in(inOperator, "berthd and operators killed with -9: its packets still flow", branchKilled),
	in(inOperator, "a network policy closes a pod from the start, and changes", policyLife),
	in(inOperator, "its branch is deleted with the pod, the trunk is not", branchGone),
	in(inOperator, "kernel, records, objects and EC2 agree about branches", agreement),
}

// Pods of the branches demo, and the instance type of its nodes.
const (
	vault    = "vault"    // its group initially allows nothing
	neighbor = "neighbor" // on the vault's node, with an address of the node's ENIs
	// nextVault is another pod with the group of the vault, on the same node.
	nextVault = "next-vault"
	stranger  = "stranger" // like neighbor, on another node
	// branchType is an instance type that supports trunks.
	branchType = "m5.large"
)

// ofBranches reports whether a lab is for the branches demo.
func ofBranches(o lab.Options) bool { return o.Mode == lab.OperatorMode && o.VPCPorts }

// branchLab turns the options of a lab into those for the branches demo.
func branchLab(o lab.Options) lab.Options {
	s := lab.DefaultSpec(2, branchType)
	for i := range s.Instances {
		s.Instances[i].Subnet = s.VPCs[0].Subnets[0].Name // a branch must be in the zone of its trunk
	}
	return lab.Options{
		Dir: o.Dir, BinDir: o.BinDir, KubeAssets: o.KubeAssets, Progress: o.Progress, Mode: lab.OperatorMode, Nodes: 2, Spec: &s, InstanceType: branchType,
		VPCPorts: true, PortCloud: portcloud.NewBranches, NetworkPolicies: true, OperatorCount: 2, RestartOperators: true, OperatorArgs: append([]string{"--branch-cooling=2s", "--listing-interval=2s"}, quickLeases...),
		IPFamilies: ipfamily.Dual,
	}
}

// lacksVLANs returns why this machine cannot run the branches demo, or nil.
func lacksVLANs() error {
	out, err := exec.Command("unshare", "--net", "sh", "-c", "ip link add under type veth peer name peer && ip link add link under name over type vlan id 1").CombinedOutput()
	if bytes.Contains(out, []byte("Unknown device type")) || bytes.Contains(out, []byte("not supported")) {
		return errors.New("this kernel has no VLANs (module 8021q): make demo MODE=branches runs it in a virtual machine")
	}
	if err != nil {
		return fmt.Errorf("check for VLAN support of the kernel: %w: %s", err, out)
	}
	return nil
}

// branches is the lab of the branches demo.
type branches struct {
	lab   *lab.Lab
	nodes []*node.Node
}

// branchOf waits until a pod's PodNIC is Active, and returns its branch.
func (s *branches) branchOf(ctx context.Context, p *node.Pod) (e vpc.ENI) {
	await(ctx, "branch of pod "+p.Name, func() {
		nics, enis := must(s.lab.Kube.PodNICs(ctx)), s.lab.Snapshot().ENIs
		i := slices.IndexFunc(nics, func(n v1alpha1.PodNIC) bool { return n.Status.Pod != nil && n.Status.Pod.UID == p.UID })
		if i < 0 || nics[i].Status.Phase != v1alpha1.PhaseActive {
			fail("no PodNIC is Active")
		}
		k := slices.IndexFunc(enis, func(e vpc.ENI) bool { return e.ID == nics[i].Status.PortID })
		if k < 0 || enis[k].Trunk == nil {
			fail("EC2 has no branch %s", nics[i].Status.PortID)
		}
		e = enis[k]
	})
	return e
}

// addVault adds a pod whose first interface is a branch with a group.
func (s *branches) addVault(ctx context.Context, name, group string) *node.Pod {
	return must(s.nodes[0].AddPod(ctx, name, node.PodOptions{Annotations: map[string]string{
		v1alpha1.AnnotationVPC: lab.BranchVPC, v1alpha1.AnnotationNICs: fmt.Sprintf("[{name: eth0, securityGroups: [%s]}]", group),
	}}))
}

// branchUp adds the demo's pods.
func branchUp(ctx context.Context, s *stage) string {
	group := must(s.lab.Ports.AddGroup(ctx, vault))
	began := time.Now()
	p := s.branches.addVault(ctx, vault, group)
	took := since(began)
	e := s.branches.branchOf(ctx, p)
	if own := append([]netip.Addr{e.Primary}, e.IPv6...); !slices.Equal(e.Groups, []string{group}) || len(own) != 2 || !slices.Equal(p.Addrs, own) {
		fail("pod %s has %v, and its branch has %v and the groups %v, want %s", vault, p.Addrs, own, e.Groups, group)
	}
	for i, name := range []string{neighbor, stranger} {
		must(s.nodes[i].AddPod(ctx, name, node.PodOptions{}))
	}
	return fmt.Sprintf("%s with %s on VLAN %d of the trunk, after %s", p.Addrs[0], p.Addrs[1], e.Trunk.VLAN, took)
}

// branchWarm adds another pod with that group while EC2 is down, and deletes it.
func branchWarm(ctx context.Context, s *stage) string {
	first := must(s.nodes[0].Pod(vault))
	groups := s.branches.branchOf(ctx, first).Groups
	await(ctx, "branch for the next pod of "+s.nodes[0].Name, func() {
		if !slices.ContainsFunc(must(s.lab.Ports.Ports(ctx)), func(p portcloud.Port) bool {
			_, warm := p.WarmFor()
			return warm && p.Host == s.nodes[0].Name && slices.Equal(p.Groups, groups)
		}) {
			fail("no warm branch exists")
		}
	})
	s.lab.Cloud.API.Outage(true)
	defer s.lab.Cloud.API.Outage(false)
	began := time.Now()
	next := s.branches.addVault(ctx, nextVault, groups[0])
	took := since(began)
	if next.Addr() == first.Addr() {
		fail("pods %s and %s both have %s", vault, nextVault, next.Addr())
	}
	s.lab.Cloud.API.Outage(false)
	check(s.nodes[0].DelPod(ctx, nextVault))
	return fmt.Sprintf("%s, after %s", next.Addr(), took)
}

// caller sends requests to an address of the vault from a network namespace.
type caller struct {
	who, netns string
	vault      netip.Addr
}

// ask returns nil if there is a reply.
func (c caller) ask(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_, err := echo.Ask(ctx, c.netns, "tcp", port(c.vault), netip.Addr{}, "hello")
	return err
}

// callers returns nodes and pods that call the vault, at each of its addresses.
func (s *branches) callers() (list []caller) {
	for who, netns := range map[string]string{
		"its own node": s.nodes[0].Netns, "another node": s.nodes[1].Netns,
		"a pod on its node": must(s.nodes[0].Pod(neighbor)).Netns(), "a pod on another node": must(s.nodes[1].Pod(stranger)).Netns(),
	} {
		for _, a := range must(s.nodes[0].Pod(vault)).Addrs {
			list = append(list, caller{fmt.Sprintf("%s over %s", who, ipfamily.Of(a)), netns, a})
		}
	}
	return list
}

// branchGroups calls the pod before and after its group allows callers.
func branchGroups(ctx context.Context, s *stage) string {
	callers := s.branches.callers()
	for _, c := range callers {
		if c.ask(ctx) == nil {
			fail("%s gets a reply although the group does not allow it", c.who)
		}
	}
	group := s.branches.branchOf(ctx, must(s.nodes[0].Pod(vault))).Groups[0]
	check(s.lab.Ports.Allow(ctx, group, portcloud.Rule{Protocol: "tcp"}))
	for _, c := range callers {
		await(ctx, c.who+" gets a reply", func() { check(c.ask(ctx)) })
	}
	return fmt.Sprintf("%d requests over IPv4 and IPv6: none answered, then all", len(callers))
}

// branchKilled calls the pod while no program of Berth runs.
func branchKilled(ctx context.Context, s *stage) string {
	check(s.nodes[0].Kill())
	for _, o := range s.lab.Operators() {
		check(o.Kill())
	}
	answers := 0
	for range 20 {
		for _, c := range s.branches.callers() {
			checkf(c.ask(ctx), "%s got no reply", c.who)
			answers++
		}
	}
	revive(ctx, s.lab, s.lab.Operators()...)
	check(errors.Join(s.nodes[0].Start(), s.nodes[0].WaitReady(ctx)))
	return fmt.Sprintf("%d of %d requests answered in the meantime", answers, answers)
}

// branchGone deletes the pod.
func branchGone(ctx context.Context, s *stage) string {
	e := s.branches.branchOf(ctx, must(s.nodes[0].Pod(vault)))
	check(s.nodes[0].DelPod(ctx, vault))
	began := time.Now()
	has := func(id string) bool {
		return slices.ContainsFunc(s.lab.Snapshot().ENIs, func(o vpc.ENI) bool { return o.ID == id })
	}
	await(ctx, "deletion of the branch", func() {
		if has(e.ID) {
			fail("EC2 still has %s", e.ID)
		}
		if !has(e.Trunk.TrunkID) {
			fail("EC2 has no trunk %s", e.Trunk.TrunkID)
		}
	})
	return fmt.Sprintf("%s deleted %s after the pod, including its cooling period", e.ID, since(began))
}
