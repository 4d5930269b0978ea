package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/bench/must"
	"github.com/berthnet/berth/bench/policies"
	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/kernel/policytable"
	"github.com/berthnet/berth/internal/policy"
	"github.com/berthnet/berth/internal/rpc"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/network/echo"
	"github.com/berthnet/berth/lab/run/node"
)

// The node of policy-packets: its pods share lists of policies.
const (
	policyPods, policyCount, policiesEach = 100, 1000, 50
	policyPort                            = 9
	peersEach                             = 100 // addresses that a policy allows
)

// policyPackets measures packets between two pods with policies in force, in turn with no policies. Of the policies of each
// pod, the last one allows the other pods.
func policyPackets(ctx context.Context, b *bench) []Result {
	c := dial(b.bed.few)
	defer c.conn.Close()
	pods := b.bed.fill(ctx, c, policyPods)
	node := must.Get(netns.GetFromPath(b.bed.few.Netns))
	defer node.Close()
	table := policytable.New(node)
	defer func() { _ = table.Remove() }()
	applied, elements := nodePolicies(pods)
	from, to := pods[0], pods[len(pods)-1]
	s := series{}
	for i := range 2*7 + 2 {
		whose := "none "
		if i%2 == 0 {
			whose = "policies "
			must.OK(table.Apply(applied, elements, nil))
		} else {
			must.OK(table.Remove())
		}
		packets, opened := forwarded(from, to, time.Second), connections(ctx, from, to, time.Second)
		if i >= 2 {
			s.add(whose+"packets", packets)
			s.add(whose+"connections", opened)
		}
	}
	return []Result{
		s.ratio("policy-packets", "packets/s", "policies packets", "none packets"),
		s.ratio("policy-connections", "connections/s", "policies connections", "none connections"),
	}
}

// nodePolicies are the policies of a node's pods.
func nodePolicies(pods []pod) (applied []policytable.Pod, elements policytable.Elements) {
	var list []*policy.Policy
	for i := range policyCount {
		rules := []policy.Rule{{Peers: []policy.SetID{policy.SetID(fmt.Sprintf("peers-%d", i))}}}
		for _, protocol := range []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
			rules[0].Ports = append(rules[0].Ports, policy.Ports{Protocol: protocol, First: policyPort, Last: policyPort})
		}
		list = append(list, &policy.Policy{
			Ref: policy.Ref{Namespace: "bench", Name: fmt.Sprintf("policy-%04d", i)}, Tier: policy.Namespaced,
			Isolates: [2]bool{true, true}, Rules: [2][]policy.Rule{rules, rules},
		})
	}
	last := map[policy.SetID]bool{}
	for i := policiesEach - 1; i < policyCount; i += policiesEach {
		last[policy.SetID(fmt.Sprintf("peers-%d", i))] = true
	}
	for i, p := range pods {
		first := i * policiesEach % policyCount
		applied = append(applied, policytable.Pod{Addrs: []netip.Addr{p.addr}, Policies: list[first : first+policiesEach]})
	}
	return applied, func(id policy.SetID, yield func(policy.Element)) {
		for i := range peersEach {
			yield(policy.Element{Addr: netip.AddrFrom4([4]byte{10, 99, 0, byte(i)})})
		}
		if last[id] {
			for _, p := range pods {
				yield(policy.Element{Addr: p.addr})
			}
		}
	}
}

// connections opens TCP connections from one pod to another, one after the other, and returns how many per second.
func connections(ctx context.Context, from, to pod, d time.Duration) float64 {
	in := must.Get(ns.Listen(to.netns, netip.AddrPortFrom(to.addr, policyPort)))
	defer in.Close()
	go func() {
		for {
			conn, err := in.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Read(make([]byte, 1)) // until it is reset
			_ = conn.Close()
		}
	}()
	n, end, dialer := 0, time.Now().Add(d), net.Dialer{Timeout: d}
	must.OK(ns.Do(from.netns, func() error {
		for ; time.Now().Before(end); n++ {
			conn, err := dialer.DialContext(ctx, "tcp", in.Addr().String())
			if err != nil {
				return err
			}
			_ = conn.(*net.TCPConn).SetLinger(0) // a reset, after which nothing of it stays
			_ = conn.Close()
		}
		return nil
	}))
	return float64(n) / d.Seconds()
}

// raisePolicies starts a lab in pool mode with network policies on two nodes, and without on a third.
func (b *testbed) raisePolicies(ctx context.Context) {
	say("starting a lab with network policies")
	const bits = 9
	b.start(ctx, lab.Options{
		Mode: lab.PoolMode, Nodes: 3, NetworkPolicies: true, NoDaemons: true,
		Pools:      []v1alpha1.AddressPool{lab.Pool(v1alpha1.DefaultPool, bits, v1alpha1.PoolSubnet{IPv4: "10.2.0.0/16"})},
		DaemonArgs: []string{"--cooling-period=1s"}, OperatorArgs: []string{"--leader-elect=false"},
	})
	must.OK(b.lab.Operators()[0].Start())
	nodes := b.lab.Nodes()
	b.many, b.idle = nodes[1], nodes[2]
	b.idle.Args = append(b.idle.Args, "--network-policies=false")
	for _, n := range nodes {
		must.OK(n.Start())
	}
	for _, n := range nodes {
		must.OK(n.WaitReady(ctx))
		waitWarm(ctx, n, 1<<bits)
	}
	for _, name := range []string{"shop", "open"} {
		must.OK(b.lab.Kube.CreateNamespace(ctx, name, nil))
	}
	b.installBerth()
}

// policyBed measures pods on a testbed that raisePolicies started.
type policyBed struct{ *testbed }

// policyAdds measures an ADD in the daemon of a pod that 50 policies select and of which no other pod of the node has any, in
// turn with the same on a node without network policies. Figure policy-add-allowed is for a pod that a pod of another node
// allows, so that the ADD waits until that node enforces it.
func policyAdds(ctx context.Context, b *bench) []Result {
	bed := policyBed{b.bed}
	for i := range policiesEach {
		bed.allow(ctx, "shop", fmt.Sprintf("selected-%d", i), "selected", fmt.Sprintf("peer-%d", i))
	}
	bed.allow(ctx, "shop", "server", "server", "client")
	must.Get(bed.many.AddPod(ctx, "server", node.PodOptions{Namespace: "shop", Labels: kind("server")}))
	var with, without []*client
	for _, of := range []string{"selected", "client"} {
		with = append(with, bed.client(ctx, bed.few, of))
		without = append(without, bed.client(ctx, bed.idle, of))
	}
	defer func() {
		for _, c := range slices.Concat(with, without) {
			_ = c.conn.Close()
		}
	}()
	s := rounds(b.options.rounds, func(_ int, note note) {
		note("selected", bed.addOnce(ctx, with[0]))
		note("not selected", bed.addOnce(ctx, without[0]))
		note("allowed", bed.addOnce(ctx, with[1]))
		note("not allowed", bed.addOnce(ctx, without[1]))
	})
	return []Result{s.ratio("policy-add", "ms", "selected", "not selected"), s.ratio("policy-add-allowed", "ms", "allowed", "not allowed")}
}

func kind(name string) map[string]string { return map[string]string{"kind": name} }

// allow lets pods of one kind reach those of another.
func (b policyBed) allow(ctx context.Context, namespace, name, to, from string) {
	p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	p.Spec.PodSelector.MatchLabels = kind(to)
	p.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{MatchLabels: kind(from)}}}}}
	must.OK(b.lab.Kube.Client.Create(ctx, p))
}

// podOn creates a Pod of a kind on a node. No kubelet runs it.
func (b policyBed) podOn(ctx context.Context, n *node.Node, namespace, name, kindOf string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: kind(kindOf)}}
	p.Spec = corev1.PodSpec{NodeName: n.Name, Containers: []corev1.Container{{Name: "bench", Image: "bench"}}}
	must.OK(b.lab.Kube.Client.Create(ctx, p))
	return p
}

// client calls a node's daemon for a Pod of a kind.
func (b policyBed) client(ctx context.Context, n *node.Node, kind string) *client {
	p := b.podOn(ctx, n, "shop", kind+"-on-"+n.Name, kind)
	c := dial(n)
	c.pod = &rpc.Pod{Namespace: p.Namespace, Name: p.Name, Uid: string(p.UID)}
	return c
}

// firstPods is how many pods start for policy-first-packet, firstAtOnce at a time.
const firstPods, firstAtOnce = 100, 10

// policyFirstPackets starts pods that connect to a server on another node as soon as their ADDs return. The server allows them
// by their label, and the slowest connection is compared with that to a server without policies. A connection that fails
// ends the bench.
func policyFirstPackets(ctx context.Context, b *bench) []Result {
	bed := policyBed{b.bed}
	bed.allow(ctx, "shop", "first", "first-server", "first")
	slowest := map[string]time.Duration{}
	var all = map[string][]float64{}
	for _, namespace := range []string{"shop", "open"} {
		server := must.Get(bed.many.AddPod(ctx, "first-"+namespace, node.PodOptions{Namespace: namespace, Labels: kind("first-server")}))
		var pods []*corev1.Pod
		for i := range firstPods {
			pods = append(pods, bed.podOn(ctx, bed.few, namespace, fmt.Sprintf("first-%d", i), "first"))
		}
		took := make([]time.Duration, firstPods)
		c := dial(bed.few)
		sandboxes := bed.sandboxes.sandboxes(firstPods)
		eachOf(ctx, firstPods, firstAtOnce, func(ctx context.Context, i int) {
			p := &rpc.Pod{Namespace: namespace, Name: pods[i].Name, Uid: string(pods[i].UID)}
			must.Get(c.rpc.Add(ctx, &rpc.AddRequest{Attachment: key(sandboxes[i]), Netns: sandboxes[i].NetNS, Pod: p}))
			began := time.Now()
			must.Get(echo.Ask(ctx, sandboxes[i].NetNS, "tcp", netip.AddrPortFrom(server.Addr(), echo.Port), netip.Addr{}, "x"))
			took[i] = time.Since(began)
		})
		eachOf(ctx, firstPods, firstAtOnce, func(ctx context.Context, i int) {
			must.Get(c.rpc.Del(ctx, &rpc.DelRequest{Attachment: key(sandboxes[i]), Netns: sandboxes[i].NetNS}))
		})
		_ = c.conn.Close()
		slowest[namespace] = slices.Max(took)
		for _, d := range took {
			all[namespace] = append(all[namespace], millis(d))
		}
	}
	say("  the slowest takes %v, without policies %v", slowest["shop"], slowest["open"])
	return []Result{
		single("policy-first-packet", "s", slowest["shop"].Seconds(), 0),
		ratio("policy-first-packet-median", "ms", all["shop"], all["open"]),
	}
}

// The clusters of the figures in virtual time.
const (
	policyNodes, fewPolicyNodes = 2000, 100
	podsPerPolicyNode           = 80
	policyRuns                  = 3
	toldPods, policyEvents      = 30, 4000
	allPods                     = policyNodes * podsPerPolicyNode
	smallCluster                = 10_000
	completeNodes               = 20 // of policy-deleted: each has all addresses
	policyMachine               = "bench-policies"
	// The largest cluster, in turn with a tenth.
	largestNodes, largestPods = 20_000, 200_000
	largestChanges            = 1000
	podsPerLargestPolicy      = 160 // in a namespace with one policy
)

// policyClusters measures the operator and nodes in large clusters.
func policyClusters(ctx context.Context, b *bench) []Result {
	name := fmt.Sprintf("%s-%d", policyMachine, os.Getpid())
	must.OK(ns.Create(name))
	defer func() { _ = ns.Remove(name) }()
	run := func(o policies.Order) policies.Outcome {
		out := must.Get(policies.Job.Run(ctx, o, b.profile(fmt.Sprintf("policies-%s-%d", o.Workload, o.Nodes))))
		say("  %s, %d nodes, %d pods: CPU %v, heap %d KiB, %.1f nodes told", o.Workload, o.Nodes, o.Pods, out.CPU, out.Heap>>10, out.Told)
		return out
	}
	order := func(w policies.Workload, nodes, changes int) policies.Order {
		return policies.Order{Workload: w, Nodes: nodes, Pods: nodes * podsPerPolicyNode, Policies: nodes / 2, Changes: changes}
	}
	element, remove, end := kernelCosts(ns.Path(name))
	say("  a node's kernel takes %v for an address that comes and one that goes, %v to remove %d, and %v to look at connections", element, remove, allPods, end)

	o := order(policies.Told, policyNodes, toldPods)
	o.Enforcers, o.Kernel, o.End = o.Nodes, element, end
	told := run(o)
	slices.Sort(told.Took)

	o = order(policies.Deleted, policyNodes, 0)
	o.Enforcers, o.Kernel, o.End = completeNodes, remove, end
	deleted := run(o)

	s := series{}
	var heap uint64
	for range policyRuns {
		many, few := run(order(policies.Events, policyNodes, policyEvents)), run(order(policies.Events, fewPolicyNodes, policyEvents))
		s.add("many", millis(many.CPU))
		s.add("few", millis(few.CPU))
		heap = many.Heap
	}
	largest := func(divisor int) policies.Outcome {
		pods := largestPods / divisor
		return run(policies.Order{Workload: policies.Events, Nodes: largestNodes / divisor, Pods: pods, Policies: pods / podsPerLargestPolicy, Changes: largestChanges})
	}
	few, many := largest(10), largest(1)
	memory := func(pods int) float64 {
		return float64(run(policies.Order{Workload: policies.Memory, Pods: pods, Policies: policyCount, Netns: ns.Path(name)}).Heap) / mebi
	}
	return []Result{
		single("policy-told", "s", (told.Took[len(told.Took)*99/100] + told.CPU).Seconds(), 0),
		single("policy-told-cpu", "ms/pod", millis(told.CPU), 0),
		single("policy-deleted", "s", (slices.Max(deleted.Took) + deleted.CPU).Seconds(), 0),
		s.ratio("policy-operator-cpu", "ms/pod", "many", "few"),
		single("policy-operator-memory", "KiB/pod", float64(heap)/1024/allPods, 0),
		single("policy-operator-200000-cpu", "ms/pod", millis(many.CPU), millis(few.CPU)),
		single("policy-operator-200000-memory", "MiB", float64(many.Heap)/mebi, 0),
		single("policy-node-memory", "MiB", memory(allPods), memory(smallCluster)),
	}
}

// kernelCosts measures a node's kernel: a change of two addresses in a set with those of all pods, the removal of that set, and a
// look at connections, of which there are none.
func kernelCosts(path string) (element, remove, end time.Duration) {
	handle := must.Get(netns.GetFromPath(path))
	defer handle.Close()
	table := policytable.New(handle)
	elements := func(_ policy.SetID, yield func(policy.Element)) {
		for i := range allPods {
			yield(policy.Element{Addr: netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})})
		}
	}
	rule := policy.Rule{Peers: []policy.SetID{"all"}, AnyPort: true}
	p := &policy.Policy{Ref: policy.Ref{Namespace: "bench", Name: "all"}, Tier: policy.Namespaced, Isolates: [2]bool{true}, Rules: [2][]policy.Rule{{rule}}}
	one, two := policy.Element{Addr: netip.AddrFrom4([4]byte{10, 99, 0, 1})}, policy.Element{Addr: netip.AddrFrom4([4]byte{10, 0, 0, 1})}
	addrs := []netip.Addr{netip.AddrFrom4([4]byte{10, 99, 0, 2})}
	s := series{}
	for range policyRuns {
		must.OK(table.Apply([]policytable.Pod{{Addrs: addrs, Policies: []*policy.Policy{p}}}, elements, nil))
		for i := range 10 {
			s.add("element", timed(func() {
				must.OK(table.ApplyElements(elements, policy.SetChanges{"all": {Elements: map[policy.Element]bool{one: i%2 == 0, two: i%2 == 1}}}))
			}))
			s.add("end", timed(func() { must.Get(table.End(must.Get(table.Connections()), func(policy.Flow) bool { return true })) }))
		}
		s.add("remove", timed(func() { must.OK(table.Apply([]policytable.Pod{{Addrs: addrs}}, elements, nil)) }))
	}
	must.OK(table.Remove())
	return time.Duration(median(s["element"])), time.Duration(median(s["remove"])), time.Duration(median(s["end"]))
}

// timed returns how many nanoseconds something takes.
func timed(do func()) float64 {
	began := time.Now()
	do()
	return float64(time.Since(began))
}
