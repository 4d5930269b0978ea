package demo

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/cloud/spec"
	"github.com/berthnet/berth/lab/cloud/vpc"
	"github.com/berthnet/berth/lab/run/node"
)

// watermark is the number of free addresses that a node keeps in operator mode.
const watermark = 2

// smallSubnet has 11 addresses. spareSubnet is the only other subnet of its zone.
const (
	smallSubnet = "small"
	spareSubnet = "spare"
)

func labSpec(nodes int, instanceType string) spec.Spec {
	s := lab.DefaultSpec(nodes, instanceType)
	s.VPCs[0].Subnets = append(slices.Clone(s.VPCs[0].Subnets),
		spec.Subnet{Name: smallSubnet, Zone: "lab-1c", CIDR: netip.MustParsePrefix("10.0.8.0/28")},
		spec.Subnet{Name: spareSubnet, Zone: "lab-1c", CIDR: netip.MustParsePrefix("10.0.9.0/24")},
	)
	return s
}

// join checks that only the operator calls EC2: the nodes' role permits no call.
func join(ctx context.Context, s *stage) string {
	for _, n := range s.nodes {
		if o := must(s.lab.Kube.NodeNetwork(ctx, n.Name)); o.Spec.InstanceID != n.InstanceID {
			fail("NodeNetwork %s belongs to %s, want %s", o.Name, o.Spec.InstanceID, n.InstanceID)
		}
	}
	cloud := s.lab.Cloud
	calls := cloud.API.CallLog()
	for _, c := range calls {
		if c.Principal != calls[0].Principal {
			fail("EC2 was called by %s and %s", calls[0].Principal, c.Principal)
		}
	}
	_, key, ok := cloud.Keys.RoleCredentials(s.nodes[0].InstanceID)
	if !ok {
		fail("%s has no role", s.nodes[0].Name)
	}
	for action := range cloud.API.Stats() {
		v := cloud.API.Admit(vpc.Call{Action: action, Principal: key.Principal})
		if v.Err == nil || v.Err.Code != "UnauthorizedOperation" {
			fail("EC2 allows %s of %s to call %s", key.Principal.ARN, s.nodes[0].Name, action)
		}
	}
	return fmt.Sprintf("%d NodeNetworks; %d EC2 calls, all by the operator; EC2 denies each of %d actions to the nodes' role",
		len(s.nodes), len(calls), len(cloud.API.Stats()))
}

// burst binds pods to every node, and waits until the nodes have addresses for them, before the first ADD.
func burst(ctx context.Context, s *stage) string {
	available := func() (sum int) {
		for _, o := range must(s.lab.Kube.NodeNetworks(ctx)) {
			sum += s.addressesOf(&o)
		}
		return sum
	}
	before, after, began := available(), 0, time.Now()
	for _, n := range s.nodes {
		check(lab.BindPods(ctx, n, names("pod", s.size.pods)...))
	}
	await(ctx, "addresses for bound pods without a sandbox", func() {
		after = available()
		if want := len(s.nodes) * (s.size.pods + watermark); after < want {
			fail("%d addresses, want %d", after, want)
		}
	})
	return fmt.Sprintf("%d pods bound to %d nodes: from %d to %d addresses in %s, before any ADD",
		len(s.nodes)*s.size.pods, len(s.nodes), before, after, since(began))
}

// addressesOf counts the available addresses of a NodeNetwork in the demo's main family. In dual stack, a prefix
// provides the IPv6 addresses, whose number is not comparable.
func (s *stage) addressesOf(o *v1alpha1.NodeNetwork) (n int) {
	for text := range o.Spec.IPAM.Available {
		address, _, _ := strings.Cut(text, "/")
		if a, err := netip.ParseAddr(address); err == nil && ipfamily.Of(a) == s.lead() {
			n++
		}
	}
	return n
}

// awaitNetwork waits until check succeeds for a node's NodeNetwork.
func (s *stage) awaitNetwork(ctx context.Context, n *node.Node, check func(*v1alpha1.NodeNetwork)) {
	await(ctx, "NodeNetwork "+n.Name, func() { check(must(s.lab.Kube.NodeNetwork(ctx, n.Name))) })
}

// awaitCondition waits until a node's NodeNetwork has a condition whose message contains a word.
func (s *stage) awaitCondition(ctx context.Context, n *node.Node, kind, status, word string) {
	s.awaitNetwork(ctx, n, func(o *v1alpha1.NodeNetwork) {
		for _, c := range o.Status.Conditions {
			if c.Type == kind && string(c.Status) == status && strings.Contains(c.Message, word) {
				return
			}
		}
		fail("condition is not %s=%s: %+v", kind, status, o.Status.Conditions)
	})
}

// killOperators kills both operators under traffic, while a new node needs addresses: pods start with warm addresses.
// Then a standby starts and takes over.
func killOperators(ctx context.Context, s *stage) string {
	n := s.launch(ctx, s.next())
	s.warm(ctx, n)
	far, leader := s.first(s.nodes[1]), awaitLeader(ctx, s.lab)
	figures, t := underTraffic(ctx, func(ctx context.Context, t *traffic) string {
		t.fromPods(ctx, s.nodes[0], s.internet(), far.Addr())
		for _, o := range s.lab.Operators() {
			check(o.Kill())
		}
		began := time.Now()
		s.add(ctx, n, names("warm", watermark))
		warm := time.Since(began)
		for _, o := range s.lab.Operators() {
			if o != leader {
				check(o.Start())
			}
		}
		standby := awaitLeader(ctx, s.lab)
		took := time.Since(began)
		s.add(ctx, n, names("grown", s.addresses-2*watermark))
		t.flow(ctx)
		return fmt.Sprintf("%d pods from warm addresses in %s without an operator; %s leads after %.1f s, %d more pods after %s",
			watermark, ms(warm), standby.Name, took.Seconds(), s.addresses-2*watermark, since(began))
	})
	revive(ctx, s.lab, leader)
	return fmt.Sprintf("%s; %d replies, 0 lost", figures, t.answered.Load())
}

// warm waits until a node has its warm addresses.
func (s *stage) warm(ctx context.Context, n *node.Node) {
	check(lab.WaitAvailable(ctx, n, watermark))
}

// withoutAPI adds and deletes pods while the API server is down, and waits until the NodeNetwork shows it.
func withoutAPI(ctx context.Context, s *stage) string {
	n := s.nodes[2]
	check(lab.BindPods(ctx, n, "no-api"))
	s.warm(ctx, n)
	check(s.lab.WaitReports(ctx))
	leaving := n.Pods()[0]
	served := s.serveWithoutAPI(ctx, n, "no-api", leaving.Name)
	began, p := time.Now(), must(n.Pod("no-api"))
	s.awaitNetwork(ctx, n, func(o *v1alpha1.NodeNetwork) {
		used := o.Status.IPAM.Used
		if used[p.Addr().String()].UID != p.UID || used[leaving.Addr().String()].UID == leaving.UID {
			fail("addresses in use: %v", used)
		}
	})
	shown := time.Since(began)
	revive(ctx, s.lab)
	return fmt.Sprintf("%s; its NodeNetwork shows the change %s after the API server is back", served, ms(shown))
}

// serveWithoutAPI kills the API server, adds a pod, deletes another, and starts the server. It returns how long ADD
// and DEL took.
func (s *stage) serveWithoutAPI(ctx context.Context, n *node.Node, coming, leaving string) string {
	check(s.lab.Kube.KillAPIServer())
	var added, deleted time.Duration
	err := attempt(func() {
		began := time.Now()
		must(n.AddPod(ctx, coming, node.PodOptions{}))
		added, began = time.Since(began), time.Now()
		check(n.DelPod(ctx, leaving))
		deleted = time.Since(began)
	})
	check(s.lab.Kube.StartAPIServer(ctx))
	check(err)
	return fmt.Sprintf("ADD %s, DEL %s without the API server", ms(added), ms(deleted))
}

// fullSubnet launches a node whose object allows only a nearly full subnet, reads its condition, and allows another.
func fullSubnet(ctx context.Context, s *stage) string {
	cloud := s.lab.Cloud
	// The node and its ENI use 2 of the 7 remaining addresses.
	pods, room, filled := 6, 5, 3
	if s.lead() == ipfamily.IPv6 { // IPv6 addresses do not run out, but each ENI needs an IPv4 address
		pods, room, filled = 7, 6, 8
	}
	filler := must(cloud.ENIs.Create(vpc.CreateRequest{
		SubnetID: subnet(s.lab, smallSubnet), Addresses: vpc.AddressRequest{IPv4Count: filled},
	}))
	defer func() { check(cloud.ENIs.Delete(filler.ID)) }()
	i := s.next()
	i.ID, i.Subnet = "i-0123456789abcdef0", smallSubnet
	o := &v1alpha1.NodeNetwork{Spec: v1alpha1.NodeNetworkSpec{InstanceID: i.ID, InstanceType: i.Type}}
	o.Name = i.Name
	o.Spec.ENI.PreAllocate, o.Spec.ENI.SubnetIDs = new(int32(watermark)), []string{subnet(s.lab, smallSubnet)}
	o.Spec.ENI.IPFamilies = string(s.lab.PodFamilies()) // a user's setting takes precedence over the daemon's
	check(s.lab.Kube.Client.Create(ctx, o))
	n := s.launch(ctx, i)
	up := s.start(func() { s.add(ctx, n, names("pod", pods)) })
	s.awaitCondition(ctx, n, v1alpha1.ConditionInDeficit, "True", "subnet")
	await(ctx, "pods of "+n.Name, func() {
		if got := len(n.Pods()); got != room {
			fail("%d pods are running, want %d", got, room)
		}
	})
	running, reason := len(n.Pods()), ""
	for _, c := range must(s.lab.Kube.NodeNetwork(ctx, n.Name)).Status.Conditions {
		if c.Type == v1alpha1.ConditionInDeficit {
			reason = c.Reason + ": " + strings.SplitN(c.Message, "\n", 2)[0]
		}
	}
	began := time.Now()
	check(s.lab.Kube.EditNodeNetwork(ctx, n.Name, func(o *v1alpha1.NodeNetwork) {
		o.Spec.ENI.SubnetIDs = append(o.Spec.ENI.SubnetIDs, subnet(s.lab, spareSubnet))
	}))
	up()
	s.awaitCondition(ctx, n, v1alpha1.ConditionInDeficit, "False", "")
	return fmt.Sprintf("%s: %d of %d pods, %q; all up %s after its object names another subnet", n.Name, running, pods, reason, since(began))
}

func subnet(l *lab.Lab, name string) string {
	for _, sub := range l.Snapshot().Subnets {
		if sub.Name == name {
			return sub.ID
		}
	}
	return ""
}

// scrapped terminates the instance of the last node.
func scrapped(ctx context.Context, s *stage) string {
	n := s.nodes[len(s.nodes)-1]
	enis, began := len(enisOf(s.lab, n)), time.Now()
	check(s.lab.Cloud.Instances.Terminate(n.InstanceID))
	s.nodes = s.nodes[:len(s.nodes)-1]
	await(ctx, "removal of "+n.Name, func() {
		switch _, err := s.lab.Kube.NodeNetwork(ctx, n.Name); {
		case err == nil:
			fail("its NodeNetwork still exists")
		case !apierrors.IsNotFound(err):
			check(err)
		}
		if left := enisOf(s.lab, n); len(left) > 0 {
			fail("%d ENIs still exist", len(left))
		}
	})
	return fmt.Sprintf("%s, its NodeNetwork and %d ENIs are gone after %s", n.Name, enis, since(began))
}

// shrink deletes all pods but one of a full node, and watches its object until the last ENI is deleted.
func shrink(ctx context.Context, s *stage) string {
	n := s.nodes[2]
	enis := len(enisOf(s.lab, n))
	before, now := s.addressesOf(must(s.lab.Kube.NodeNetwork(ctx, n.Name))), 0
	began := time.Now()
	for _, p := range n.Pods()[1:] {
		check(n.DelPod(ctx, p.Name))
	}
	s.awaitNetwork(ctx, n, func(o *v1alpha1.NodeNetwork) {
		now = s.addressesOf(o)
		if left, want := len(enisOf(s.lab, n)), len(n.Pods())+watermark; now > want || left >= enis {
			fail("%d addresses (want %d) on %d ENIs (had %d): %+v", now, want, left, enis, o.Status.Conditions)
		}
	})
	return fmt.Sprintf("%s: from %d to %d addresses, each confirmed by its daemon; 1 ENI deleted; %s, 4 of them cooling", n.Name, before, now, since(began))
}
