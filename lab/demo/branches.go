package demo

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/cloud/vpc"
	"github.com/berthnet/berth/lab/network/echo"
	"github.com/berthnet/berth/lab/portcloud"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/lab/run/poll"
)

// branchProofs are those of a lab whose nodes have trunks, after the others of operator mode.
var branchProofs = []proof{
	{inOperator, "a pod's first interface is a branch with a group of its own", branchUp},
	{inOperator, "EC2 away: the next pod's branch is there before the pod is", branchWarm},
	{inOperator, "nobody reaches it until its group allows it, nor its own node", branchGroups},
	{inOperator, "berthd and operators killed with -9: its packets go on", branchKilled},
	{inOperator, "its branch goes when the pod does, the trunk stays", branchGone},
	{inOperator, "kernel, records, objects and EC2 agree about branches", agreement},
}

// The cast of the story of branches.
const (
	vault    = "vault"    // whose group lets nobody in at first
	neighbor = "neighbor" // on its node, with an address of the node's ENIs
	// nextVault is like the vault, on its node.
	nextVault = "next-vault"
	stranger  = "stranger" // the same on another node
	// branchType is an instance type that may have a trunk.
	branchType = "m5.large"
)

var branchOperatorArgs = []string{"--branch-cooling=2s", "--listing-interval=2s", "--lease-duration=4s", "--renew-deadline=3s", "--retry-period=500ms"}

// ofBranches tells whether a lab is one of branches.
func ofBranches(o lab.Options) bool { return o.Mode == lab.OperatorMode && o.VPCPorts }

// branchLab is the lab of the branches in the place of another.
func branchLab(o lab.Options) lab.Options {
	s := lab.DefaultSpec(2, branchType)
	for i := range s.Instances {
		s.Instances[i].Subnet = s.VPCs[0].Subnets[0].Name // branches are in a zone
	}
	return lab.Options{
		Dir: o.Dir, BinDir: o.BinDir, KubeAssets: o.KubeAssets, Progress: o.Progress, Mode: lab.OperatorMode, Nodes: 2, Spec: &s, InstanceType: branchType,
		VPCPorts: true, PortCloud: portcloud.NewBranches, OperatorCount: 2, RestartOperators: true, OperatorArgs: branchOperatorArgs,
		IPFamilies: ipfamily.Dual,
	}
}

// lacksVLANs says why no branch can be shown on this machine; nil: they can.
func lacksVLANs() error {
	made := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread, and its namespace with it, ends with the function
		made <- makeVLAN()
	}()
	err := <-made
	if errors.Is(err, unix.EOPNOTSUPP) {
		return errors.New("this kernel has no VLANs (module 8021q): make demo MODE=branches shows it in a virtual machine")
	}
	if err != nil {
		return fmt.Errorf("try whether the kernel has VLANs: %w", err)
	}
	return nil
}

// makeVLAN makes a VLAN in a network namespace of the thread's own.
func makeVLAN() error {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return err
	}
	under, over := netlink.NewLinkAttrs(), netlink.NewLinkAttrs()
	under.Name, over.Name = "under", "over"
	veth := netlink.NewVeth(under)
	veth.PeerName = "peer"
	if err := netlink.LinkAdd(veth); err != nil {
		return err
	}
	over.ParentIndex = veth.Attrs().Index
	return netlink.LinkAdd(&netlink.Vlan{LinkAttrs: over, VlanId: 1, VlanProtocol: netlink.VLAN_PROTOCOL_8021Q})
}

// branchOf is the branch of a pod by its PodNIC, once that is Active.
func (s *stage) branchOf(ctx context.Context, p *node.Pod) (e vpc.ENI, err error) {
	err = poll.Until(ctx, func() error {
		nics, err := s.lab.Kube.PodNICs(ctx)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(nics, func(n v1alpha1.PodNIC) bool { return n.Status.Pod != nil && n.Status.Pod.UID == p.UID })
		if i < 0 || nics[i].Status.Phase != v1alpha1.PhaseActive {
			return fmt.Errorf("pod %s has no PodNIC that is Active", p.Name)
		}
		enis := s.lab.Books().ENIs
		k := slices.IndexFunc(enis, func(e vpc.ENI) bool { return e.ID == nics[i].Status.PortID })
		if k < 0 || enis[k].Trunk == nil {
			return fmt.Errorf("EC2 has no branch %s", nics[i].Status.PortID)
		}
		e = enis[k]
		return nil
	})
	return e, err
}

// branchUp makes the pods of the story.
func branchUp(ctx context.Context, s *stage) (string, error) {
	group, err := s.lab.Ports.AddGroup(ctx, vault)
	if err != nil {
		return "", err
	}
	began := time.Now()
	p, err := s.nodes[0].AddPod(ctx, vault, node.PodOptions{Annotations: map[string]string{
		v1alpha1.AnnotationVPC: lab.BranchVPC, v1alpha1.AnnotationNICs: fmt.Sprintf("[{name: eth0, securityGroups: [%s]}]", group),
	}})
	if err != nil {
		return "", err
	}
	took := time.Since(began)
	e, err := s.branchOf(ctx, p)
	if err != nil {
		return "", err
	}
	if own := append([]netip.Addr{e.Primary}, e.IPv6...); !slices.Equal(e.Groups, []string{group}) || len(own) != 2 || !slices.Equal(p.Addrs, own) {
		return "", fmt.Errorf("pod %s has %v, and its branch %v and the groups %v, want %s", vault, p.Addrs, own, e.Groups, group)
	}
	for i, name := range []string{neighbor, stranger} {
		if _, err := s.nodes[i].AddPod(ctx, name, node.PodOptions{}); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%s and %s by VLAN %d of the trunk, after %.1f s", p.Addrs[0], p.Addrs[1], e.Trunk.VLAN, took.Seconds()), nil
}

// branchWarm makes a pod like the vault while EC2 answers nobody, and takes it away again.
func branchWarm(ctx context.Context, s *stage) (string, error) {
	first, e, err := s.vault(ctx)
	if err != nil {
		return "", err
	}
	err = poll.Until(ctx, func() error {
		ports, err := s.lab.Ports.Ports(ctx)
		if err != nil {
			return err
		}
		for _, p := range ports {
			if _, warm := p.WarmFor(); warm && p.Host == s.nodes[0].Name && slices.Equal(p.Groups, e.Groups) {
				return nil
			}
		}
		return fmt.Errorf("no branch is ready for the next pod of %s", s.nodes[0].Name)
	})
	if err != nil {
		return "", err
	}
	s.lab.Cloud.API.Outage(true)
	defer s.lab.Cloud.API.Outage(false)
	began := time.Now()
	next, err := s.nodes[0].AddPod(ctx, nextVault, node.PodOptions{Annotations: map[string]string{
		v1alpha1.AnnotationVPC: lab.BranchVPC, v1alpha1.AnnotationNICs: fmt.Sprintf("[{name: eth0, securityGroups: [%s]}]", e.Groups[0]),
	}})
	if err != nil {
		return "", err
	}
	took := time.Since(began)
	if next.Addr() == first.Addr() {
		return "", fmt.Errorf("%s and %s have %s", vault, nextVault, next.Addr())
	}
	s.lab.Cloud.API.Outage(false)
	return fmt.Sprintf("%s, after %.1f s", next.Addr(), took.Seconds()), s.nodes[0].DelPod(ctx, nextVault)
}

// whoAsks are the network namespaces from which the vault is asked.
func (s *stage) whoAsks() (map[string]string, error) {
	all := map[string]string{"its own node": s.nodes[0].Netns, "another node": s.nodes[1].Netns}
	for i, who := range []string{"a pod of its node", "a pod of another"} {
		p, err := s.nodes[i].Pod([]string{neighbor, stranger}[i])
		if err != nil {
			return nil, err
		}
		all[who] = p.Netns()
	}
	return all, nil
}

// caller is one who asks the vault at an address.
type caller struct {
	who, netns string
	vault      netip.Addr
}

// callers are all who ask the vault, at each of its addresses.
func (s *stage) callers(vault *node.Pod) (list []caller, err error) {
	from, err := s.whoAsks()
	for who, netns := range from {
		for _, a := range vault.Addrs {
			list = append(list, caller{fmt.Sprintf("%s by %s", who, ipfamily.Of(a)), netns, a})
		}
	}
	return list, err
}

// asked is nil if one of those who ask the vault gets an answer.
func asked(ctx context.Context, netns string, vault netip.Addr) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_, err := echo.Ask(ctx, netns, "tcp", netip.AddrPortFrom(vault, echo.Port), netip.Addr{}, "hello")
	return err
}

// vault is the pod of that name, and its branch.
func (s *stage) vault(ctx context.Context) (*node.Pod, vpc.ENI, error) {
	p, err := s.nodes[0].Pod(vault)
	if err != nil {
		return nil, vpc.ENI{}, err
	}
	e, err := s.branchOf(ctx, p)
	return p, e, err
}

// branchGroups asks the pod before and after its group lets callers in.
func branchGroups(ctx context.Context, s *stage) (string, error) {
	p, e, err := s.vault(ctx)
	if err != nil {
		return "", err
	}
	callers, err := s.callers(p)
	if err != nil {
		return "", err
	}
	for _, c := range callers {
		if err := asked(ctx, c.netns, c.vault); err == nil {
			return "", fmt.Errorf("%s gets an answer, and the group lets nobody in", c.who)
		}
	}
	if err := s.lab.Ports.Allow(ctx, e.Groups[0], portcloud.Rule{Protocol: "tcp"}); err != nil {
		return "", err
	}
	for _, c := range callers {
		if err := until(ctx, c.who+" gets an answer", func() error { return asked(ctx, c.netns, c.vault) }); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%d questions, by IPv4 and IPv6: none answered, then all", len(callers)), nil
}

// branchKilled has the pod answer while nobody of Berth runs.
func branchKilled(ctx context.Context, s *stage) (string, error) {
	p, _, err := s.vault(ctx)
	if err != nil {
		return "", err
	}
	callers, err := s.callers(p)
	if err != nil {
		return "", err
	}
	if err := s.nodes[0].Kill(); err != nil {
		return "", err
	}
	for _, o := range s.lab.Operators() {
		if err := o.Kill(); err != nil {
			return "", err
		}
	}
	answers := 0
	for range 20 {
		for _, c := range callers {
			if err := asked(ctx, c.netns, c.vault); err != nil {
				return "", fmt.Errorf("%s got no answer: %w", c.who, err)
			}
			answers++
		}
	}
	for _, o := range s.lab.Operators() {
		if err := revive(o); err != nil {
			return "", err
		}
	}
	if err := errors.Join(s.nodes[0].Start(), s.nodes[0].WaitReady(ctx)); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d of %d answers meanwhile", answers, answers), nil
}

// branchGone deletes the pod.
func branchGone(ctx context.Context, s *stage) (string, error) {
	_, e, err := s.vault(ctx)
	if err != nil {
		return "", err
	}
	if err := s.nodes[0].DelPod(ctx, vault); err != nil {
		return "", err
	}
	began := time.Now()
	err = poll.Until(ctx, func() error {
		enis := s.lab.Books().ENIs
		if slices.ContainsFunc(enis, func(o vpc.ENI) bool { return o.ID == e.ID }) {
			return fmt.Errorf("EC2 has %s still", e.ID)
		}
		if !slices.ContainsFunc(enis, func(o vpc.ENI) bool { return o.ID == e.Trunk.TrunkID }) {
			return fmt.Errorf("EC2 has no trunk %s", e.Trunk.TrunkID)
		}
		return nil
	})
	return fmt.Sprintf("%s deleted %.1f s after the pod, cooled", e.ID, time.Since(began).Seconds()), err
}
