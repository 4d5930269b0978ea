package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/lab/cloud/vpc"
	"github.com/berthnet/berth/lab/network/fabric"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/lab/run/poll"
)

// Status is the lab at one moment, for people and scripts.
type Status struct {
	ID       string       `json:"id"`
	Dir      string       `json:"dir"`
	PID      int          `json:"pid"`
	EC2URL   string       `json:"ec2URL"`
	VPC      string       `json:"vpc"` // the VPC's primary block
	VPCIPv6  string       `json:"vpcIPv6,omitempty"`
	Families ipfamily.Set `json:"ipFamilies,omitempty"` // of pods' addresses, where they are of ENIs
	Internet netip.Addr   `json:"internetHost"`
	OnPrem   netip.Addr   `json:"onPremHost"`
	Nodes    []NodeStatus `json:"nodes"`
	Loose    []ENIStatus  `json:"detachedENIs"`
	Gateway  fabric.Drops `json:"gatewayDrops"`
	Calls    []CallCount  `json:"ec2Calls"`
	Trouble  string       `json:"trouble,omitempty"`
	Faults   []string     `json:"faults"` // filled by who keeps them

	Mode       Mode             `json:"mode"`
	Kubelets   bool             `json:"kubelets,omitempty"`   // nodes are whole machines
	Kubeconfig string           `json:"kubeconfig,omitempty"` // not in node mode without kubelets, as is the rest
	Operators  []OperatorStatus `json:"operators,omitempty"`

	Pools  []PoolStatus  `json:"pools,omitempty"` // of pool mode, as is the rest
	Blocks []BlockStatus `json:"blocks,omitempty"`

	VPCs []VPCStatus `json:"vpcs,omitempty"` // of port mode, as is the rest
	NICs []NICStatus `json:"nics,omitempty"`
}

// PoolStatus is what stands in an AddressPool.
type PoolStatus struct {
	Name      string `json:"name"`
	Blocks    int64  `json:"blocks"`
	Allocated int64  `json:"allocated"`
	Free      int64  `json:"free"`
	Ready     string `json:"ready"`         // of the condition
	Why       string `json:"why,omitempty"` // when it is not ready, or exhausted
}

// BlockStatus summarizes an AddressBlock, and reports whether the router has
// learned of it.
type BlockStatus struct {
	Name      string `json:"name"`
	Pool      string `json:"pool"`
	Node      string `json:"node"`
	IPv4      string `json:"ipv4,omitempty"`
	IPv6      string `json:"ipv6,omitempty"`
	Announced bool   `json:"announced"`
}

// OperatorStatus is one process of berth-operator.
type OperatorStatus struct {
	Name   string `json:"name"`
	State  string `json:"state"` // leads, stands by, ready when the API does not say which, not ready, down
	Why    string `json:"why,omitempty"`
	PID    int    `json:"pid,omitempty"`
	Starts int    `json:"starts"`
	Log    string `json:"log"`
}

// NetworkStatus is what stands in a NodeNetwork.
type NetworkStatus struct {
	Available int    `json:"available"`
	Used      int    `json:"used"`
	Needed    int    `json:"needed"`
	Releasing int    `json:"releasing"`
	Ready     string `json:"ready"`         // of the condition
	Why       string `json:"why,omitempty"` // of those conditions that are not as they should be
}

// NodeStatus is one node.
type NodeStatus struct {
	Name       string      `json:"name"`
	InstanceID string      `json:"instanceID"`
	Type       string      `json:"type"`
	Zone       string      `json:"zone"`
	Address    netip.Addr  `json:"address,omitzero"` // none in an IPv6-only subnet
	IPv6       netip.Addr  `json:"ipv6,omitzero"`
	Netns      string      `json:"netns"`
	Log        string      `json:"log"`
	Daemon     string      `json:"berthd"` // ready, not ready, down
	Why        string      `json:"why,omitempty"`
	PID        int         `json:"pid,omitempty"`
	Starts     int         `json:"starts"`
	ENIs       []ENIStatus `json:"enis"`
	Pods       []PodStatus `json:"pods"`
	// Network is in operator mode, once the daemon has made it.
	Network *NetworkStatus `json:"network,omitempty"`
}

// ENIStatus is one ENI as EC2 and the fabric know it.
type ENIStatus struct {
	ID           string         `json:"id"`
	DeviceIndex  int            `json:"deviceIndex"`
	NetworkCard  int            `json:"networkCard"`
	MAC          string         `json:"mac"`
	Subnet       string         `json:"subnet"`
	Primary      netip.Addr     `json:"primary"`
	Secondary    []netip.Addr   `json:"secondary"`
	Prefixes     []netip.Prefix `json:"prefixes,omitempty"`
	IPv6         []netip.Addr   `json:"ipv6,omitempty"`
	IPv6Prefixes []netip.Prefix `json:"ipv6Prefixes,omitempty"`
	Status       string         `json:"status"`
	Branches     []ENIStatus    `json:"branches,omitempty"` // of a trunk, by VLAN
	VLAN         int            `json:"vlan,omitempty"`     // of a branch, which has no device index
	Drops        fabric.Drops   `json:"drops"`
}

// PodStatus is one pod.
type PodStatus struct {
	Name        string       `json:"name"`
	Namespace   string       `json:"namespace"`
	Addresses   []netip.Addr `json:"addresses"`
	ENI         string       `json:"eni"`
	DeviceIndex int          `json:"deviceIndex"`
	Block       string       `json:"block,omitempty"`
	Container   string       `json:"container"`
	Netns       string       `json:"netns"`
}

// CallCount is how often an EC2 action was called.
type CallCount struct {
	Action string         `json:"action"`
	Count  int            `json:"count"`
	Errors map[string]int `json:"errors,omitempty"`
}

// Status looks at everything.
func (l *Lab) Status(ctx context.Context) (Status, error) {
	snapshot := l.Snapshot()
	s := Status{ID: l.ID, Dir: l.Dir, PID: os.Getpid(), Mode: l.Mode, Kubelets: l.Kubelets != nil, Internet: fabric.InternetHost}
	var drops map[string]fabric.Drops
	if l.Fabric != nil {
		var err error
		if drops, err = l.Fabric.Drops(); err != nil {
			return Status{}, err
		}
		s.EC2URL, s.VPC, s.OnPrem = EC2URL, snapshot.VPCs[0].CIDRs[0].String(), fabric.OnPremHost
		s.Families = l.IPFamilies
		if v6 := snapshot.VPCs[0].IPv6CIDRs; len(v6) > 0 {
			s.VPCIPv6 = v6[0].String()
		}
		s.Gateway, s.Calls = drops["igw"], callCounts(l.Cloud.API.Stats())
	}
	if err := l.Err(); err != nil {
		s.Trouble = err.Error()
	}
	for _, e := range snapshot.ENIs {
		if e.Status() == "available" {
			s.Loose = append(s.Loose, eniStatus(e, snapshot, nil))
		}
	}
	nodes := l.Nodes()
	s.Nodes = make([]NodeStatus, len(nodes))
	var wg sync.WaitGroup
	for i, n := range nodes {
		wg.Go(func() { s.Nodes[i] = nodeStatus(ctx, n, snapshot, drops) })
	}
	wg.Wait()
	if l.Kube != nil {
		s.addCluster(ctx, l)
	}
	return s, nil
}

// addCluster adds objects and operators. An API server that does not answer is reported as trouble.
func (s *Status) addCluster(ctx context.Context, l *Lab) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	s.Kubeconfig = l.Kube.Kubeconfig
	var networks []v1alpha1.NodeNetwork
	var err error
	if l.Mode == OperatorMode || l.Mode == PoolMode {
		networks, err = l.Kube.NodeNetworks(ctx)
	}
	if l.Kubelets != nil {
		err = errors.Join(err, s.addMachines(ctx, l))
	}
	if l.Mode == PoolMode {
		err = errors.Join(err, s.addSite(ctx, l))
	}
	if l.hasPorts() {
		err = errors.Join(err, s.addPorts(ctx, l))
	}
	leader, leaderErr := l.Leader(ctx)
	if err := errors.Join(err, leaderErr); err != nil {
		s.Trouble = strings.TrimPrefix(s.Trouble+"\n"+err.Error(), "\n")
	}
	for i := range networks {
		for k := range s.Nodes {
			if s.Nodes[k].Name == networks[i].Name {
				s.Nodes[k].Network = networkStatus(&networks[i])
			}
		}
	}
	for _, o := range l.operators.list {
		status := operatorStatus(ctx, o)
		switch {
		case status.State != "ready" || leaderErr != nil:
		case o == leader:
			status.State = "leads"
		default:
			status.State = "stands by"
		}
		s.Operators = append(s.Operators, status)
	}
}

// addMachines adds machines with kubelets, whose daemons and workloads are pods.
func (s *Status) addMachines(ctx context.Context, l *Lab) error {
	for i := range s.Nodes {
		n := &s.Nodes[i]
		m, err := l.machines.whole(n.Name)
		if err != nil {
			continue // it went meanwhile
		}
		n.Log = m.host.Kubelet.LogFile()
		if !m.host.On() {
			n.Daemon = "off"
			continue
		}
		n.Daemon = "ready"
		if _, err := m.Get(ctx, node.ReadyURL); err != nil {
			n.Daemon, n.Why = "not ready", err.Error()
		}
	}
	pods := &corev1.PodList{}
	if err := l.Kube.Client.List(ctx, pods); err != nil {
		return fmt.Errorf("list pods: %w", err)
	}
	for _, p := range pods.Items {
		i := slices.IndexFunc(s.Nodes, func(n NodeStatus) bool { return n.Name == p.Spec.NodeName })
		if i < 0 || p.Spec.HostNetwork || len(p.Status.PodIPs) == 0 {
			continue
		}
		status := PodStatus{Name: p.Name, Namespace: p.Namespace, DeviceIndex: -1}
		for _, ip := range p.Status.PodIPs {
			if a, err := netip.ParseAddr(ip.IP); err == nil {
				status.Addresses = append(status.Addresses, a)
			}
		}
		snapshot := l.Snapshot()
		for _, e := range snapshot.InstanceENIs(s.Nodes[i].InstanceID) {
			status.findENI(append(snapshot.Branches(e.ID), e))
		}
		s.Nodes[i].Pods = append(s.Nodes[i].Pods, status)
	}
	return nil
}

// addSite adds pools and blocks.
func (s *Status) addSite(ctx context.Context, l *Lab) error {
	pools, blocks := &v1alpha1.AddressPoolList{}, &v1alpha1.AddressBlockList{}
	if err := errors.Join(l.Kube.Client.List(ctx, pools), l.Kube.Client.List(ctx, blocks)); err != nil {
		return fmt.Errorf("list pools and blocks: %w", err)
	}
	routes, err := l.Site.Routes(ctx)
	if err != nil {
		return err
	}
	for i := range pools.Items {
		s.Pools = append(s.Pools, poolStatus(&pools.Items[i]))
	}
	for i := range blocks.Items {
		b := &blocks.Items[i]
		announced := !slices.ContainsFunc(BlockCIDRs(b), func(p netip.Prefix) bool { return !routes[p].IsValid() })
		s.Blocks = append(s.Blocks, BlockStatus{Name: b.Name, Pool: b.PoolName, Node: b.NodeName, IPv4: b.IPv4, IPv6: b.IPv6, Announced: announced})
	}
	for i := range s.Nodes {
		n := &s.Nodes[i]
		n.Address = l.Site.Addrs(n.Name).IPv4
		for k := range n.Pods {
			p := &n.Pods[k]
			for b := range blocks.Items {
				if len(p.Addresses) > 0 && InBlock(&blocks.Items[b], p.Addresses[0]) {
					p.Block = blocks.Items[b].Name
				}
			}
		}
	}
	return nil
}

func poolStatus(p *v1alpha1.AddressPool) PoolStatus {
	s := PoolStatus{Name: p.Name, Blocks: p.Status.Blocks.Total, Allocated: p.Status.Blocks.Allocated, Free: p.Status.Blocks.Free}
	s.Ready, s.Why = readiness(p.Status.Conditions)
	return s
}

// readiness returns the status of the condition Ready, and the messages of conditions that report
// a problem: Ready when it is not True, and any other that is True.
func readiness(conditions []metav1.Condition) (ready, why string) {
	ready = "Unknown"
	var bad []string
	for _, c := range conditions {
		if c.Type == v1alpha1.ConditionReady {
			ready = string(c.Status)
		}
		if (c.Type == v1alpha1.ConditionReady) != (c.Status == metav1.ConditionTrue) {
			bad = append(bad, fmt.Sprintf("%s is %s (%s): %s", c.Type, c.Status, c.Reason, c.Message))
		}
	}
	return ready, strings.Join(bad, "; ")
}

func operatorStatus(ctx context.Context, o *Operator) OperatorStatus {
	s := OperatorStatus{Name: o.Name, State: "ready", PID: o.PID(), Starts: o.Starts(), Log: o.LogFile()}
	switch err := o.ready(ctx); {
	case s.PID == 0:
		s.State = "down"
	case err != nil:
		s.State, s.Why = "not ready", err.Error()
	}
	return s
}

func networkStatus(o *v1alpha1.NodeNetwork) *NetworkStatus {
	s := &NetworkStatus{
		Available: int(o.Status.ENI.Available), Used: int(o.Status.IPAM.UsedCount), Needed: int(o.Status.ENI.Needed),
		Releasing: len(o.Spec.IPAM.Releasing),
	}
	s.Ready, s.Why = readiness(o.Status.Conditions)
	return s
}

func callCounts(calls map[string]vpc.CallStats) []CallCount {
	var out []CallCount
	for _, action := range slices.Sorted(maps.Keys(calls)) {
		out = append(out, CallCount{action, calls[action].Count, calls[action].Errors})
	}
	return out
}

func nodeStatus(ctx context.Context, n *node.Node, snapshot vpc.Snapshot, drops map[string]fabric.Drops) NodeStatus {
	i, _ := snapshot.Instance(n.InstanceID)
	s := NodeStatus{
		Name: n.Name, InstanceID: n.InstanceID, Type: i.Type, Zone: i.Zone,
		Netns: n.Netns, Log: n.LogFile(), PID: n.PID(), Starts: n.Starts(), Daemon: "down",
	}
	if s.PID != 0 {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		s.Daemon = "ready"
		if _, err := n.Get(ctx, node.ReadyURL); err != nil {
			s.Daemon, s.Why = "not ready", err.Error()
		}
	}
	enis := snapshot.InstanceENIs(n.InstanceID)
	for _, e := range enis {
		if e.Attachment.Primary() {
			s.Address = e.Primary
			if len(e.IPv6) > 0 {
				s.IPv6 = e.IPv6[0]
			}
		}
		status := eniStatus(e, snapshot, drops[e.ID])
		for _, b := range snapshot.Branches(e.ID) {
			status.Branches = append(status.Branches, eniStatus(b, snapshot, drops[b.ID]))
			enis = append(enis, b)
		}
		s.ENIs = append(s.ENIs, status)
	}
	for _, p := range n.Pods() {
		s.Pods = append(s.Pods, podStatus(p, enis))
	}
	return s
}

func eniStatus(e vpc.ENI, snapshot vpc.Snapshot, drops fabric.Drops) ENIStatus {
	s := ENIStatus{
		ID: e.ID, MAC: e.MAC.String(), Primary: e.Primary, Secondary: e.Secondary, Prefixes: e.Prefixes,
		IPv6: e.IPv6, IPv6Prefixes: e.IPv6Prefixes, Status: e.Status(), Drops: drops, DeviceIndex: -1,
	}
	if sub, ok := snapshot.Subnet(e.SubnetID); ok {
		s.Subnet = sub.Name
	}
	if e.Trunk != nil {
		s.VLAN = e.Trunk.VLAN
	}
	if e.Attachment != nil {
		s.DeviceIndex, s.NetworkCard, s.Status = e.Attachment.DeviceIndex, e.Attachment.NetworkCard, string(e.Attachment.Status)
	}
	return s
}

func podStatus(p *node.Pod, enis []vpc.ENI) PodStatus {
	s := PodStatus{Name: p.Name, Namespace: p.Namespace, Addresses: p.Addrs, Container: p.ContainerID, Netns: p.Netns(), DeviceIndex: -1}
	s.findENI(enis)
	return s
}

// findENI finds the ENI or branch of a pod's first address.
func (s *PodStatus) findENI(enis []vpc.ENI) {
	for _, e := range enis {
		if len(s.Addresses) == 0 || !s.Addresses[0].IsValid() || !e.Owns(s.Addresses[0]) {
			continue
		}
		if s.ENI = e.ID; e.Attachment != nil {
			s.DeviceIndex = e.Attachment.DeviceIndex
		}
	}
}

// Document fetches a node's introspection document from inside the node.
func Document(ctx context.Context, n *node.Node) (introspect.Document, error) {
	var doc introspect.Document
	body, err := n.Get(ctx, node.IntrospectionURL)
	if err != nil {
		return doc, err
	}
	if err := json.Unmarshal([]byte(body), &doc); err != nil {
		return doc, fmt.Errorf("read the introspection document: %w", err)
	}
	return doc, nil
}

// WaitAvailable waits until a node has that many free addresses, or ctx ends.
func WaitAvailable(ctx context.Context, n *node.Node, want int) error {
	return poll.Until(ctx, func() error {
		doc, err := Document(ctx, n)
		if err == nil && doc.Totals.Available < want {
			err = fmt.Errorf("%s has %d addresses available, expected %d", n.Name, doc.Totals.Available, want)
		}
		return err
	})
}
