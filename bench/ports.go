package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	kubeclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/bench/branches"
	"github.com/berthnet/berth/bench/must"
	"github.com/berthnet/berth/bench/ports"
	"github.com/berthnet/berth/bench/scale"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/portcloud"
	"github.com/berthnet/berth/lab/run/poll"
)

// A provider that takes 400 ms per call and serves eight calls concurrently, and the number of pods that
// request ports from it at once. The default scheduler schedules 50 pods per second (kube-scheduler's
// --kube-api-qps).
const (
	portPods, portNodes = 2000, 100
	portLatency         = 400 * time.Millisecond
	portCalls           = 8
	portScheduled       = 50
	// minWrites is the minimum per PodNIC: its creation, the bound port, and the active port.
	minWrites = 3
)

// portBursts measures pods that request ports of a VPC at once.
func portBursts(ctx context.Context, b *bench) []Result {
	run := func(name string, o ports.Order) ports.Outcome {
		o.Pods, o.Nodes, o.Latency, o.AtOnce = portPods, portNodes, portLatency, portCalls
		out := must.Get(ports.Job.Run(ctx, o, b.profile(fmt.Sprintf("ports-%d", o.Pods))))
		say("  %s: bound after %v, active after %v; calls %v, writes %v", name, out.Bound, out.Active, out.Calls, out.Writes)
		return out
	}
	calls := func(o ports.Outcome) float64 { return float64(o.TotalCalls()) / portPods }
	reference := run("one call per port", ports.Order{Naive: true})
	atOnce := run("all scheduled at once", ports.Order{})
	scheduled := run(fmt.Sprintf("%d scheduled per second", portScheduled), ports.Order{Scheduled: portScheduled})
	late := run("all scheduled after a minute", ports.Order{Late: time.Minute})
	return []Result{
		single("ports-2000-bound", "s", atOnce.Bound.Seconds(), atOnce.MinBound.Seconds()),
		single("ports-2000-active", "s", atOnce.Active.Seconds(), atOnce.MinActive.Seconds()),
		single("ports-2000-each", "s", atOnce.Bound.Seconds(), reference.Bound.Seconds()),
		single("ports-2000-calls", "calls/pod", calls(atOnce), calls(reference)),
		single("ports-2000-writes", "writes/PodNIC", float64(atOnce.TotalWrites())/portPods, minWrites),
		single("ports-2000-memory", "KiB/PodNIC", float64(atOnce.Heap)/1024/portPods, 0),
		single("ports-2000-scheduled-bound", "s", scheduled.Bound.Seconds(), (scheduled.Scheduled + portLatency).Seconds()),
		single("ports-2000-scheduled-calls", "calls/pod", calls(scheduled), calls(reference)),
		single("ports-2000-late-bound", "s", (late.Bound - time.Minute).Seconds(), late.MinBound.Seconds()),
		single("ports-2000-late-calls", "calls/pod", calls(late), calls(reference)),
	}
}

// The largest cluster, in turn with a tenth.
const largestPortPods, largestPortNodes = 200_000, 20_000

// largestPorts measures pods that request ports at once in the largest cluster.
func largestPorts(ctx context.Context, b *bench) []Result {
	run := func(divisor int) ports.Outcome {
		o := ports.Order{Pods: largestPortPods / divisor, Nodes: largestPortNodes / divisor, Latency: portLatency, AtOnce: portCalls, AtRest: true}
		out := must.Get(ports.Job.Run(ctx, o, b.profile(fmt.Sprintf("ports-%d", o.Pods))))
		say("  %d pods: %v of CPU, bound after %v, active after %v; %d MiB, calls %v, writes %v", o.Pods, out.CPU, out.Bound, out.Active, out.Heap>>20, out.Calls, out.Writes)
		return out
	}
	const tenth = 10
	few, all := run(tenth), run(1)
	// The provider serves as many calls a second for both, so that a tenth takes a tenth of the time.
	scaled := func(d time.Duration) float64 { return tenth * d.Seconds() }
	each := func(total float64, pods int) float64 { return total / float64(pods) }
	return []Result{
		single("ports-200000-cpu", "ms/PodNIC", each(millis(all.CPU), largestPortPods), each(millis(few.CPU), largestPortPods/tenth)),
		single("ports-200000-memory", "KiB/PodNIC", each(float64(all.Heap)/1024, largestPortPods), each(float64(few.Heap)/1024, largestPortPods/tenth)),
		single("ports-200000-writes", "writes/PodNIC", each(float64(all.TotalWrites()), largestPortPods), each(float64(few.TotalWrites()), largestPortPods/tenth)),
		single("ports-200000-bound", "s", all.Bound.Seconds(), scaled(few.Bound)),
		single("ports-200000-active", "s", all.Active.Seconds(), scaled(few.Active)),
	}
}

const (
	// branchPods is the number of pods that are created at once on one node.
	branchPods = 50
	// branchRuns is high because what the limiter learns depends on the timing of throttled calls.
	branchRuns = 9
)

// branchBursts measures pods of one node whose branch interfaces all have to be created.
func branchBursts(ctx context.Context, b *bench) (results []Result) {
	for _, each := range []struct {
		name   string
		limits scale.Limits
	}{{"branch-burst", tight}, {"branch-burst-published", published}} {
		s := series{}
		for range branchRuns {
			out := must.Get(branches.Job.Run(ctx, branches.Order{Pods: branchPods, Limits: each.limits}, b.profile(each.name)))
			say("  %s: bound after %v, median %v; calls %v, %d throttled", each.name, out.Bound, out.Median, out.Calls, out.Throttled)
			s.add("last", out.Bound.Seconds())
			s.add("half", out.Median.Seconds())
			s.add("minimum", out.MinBound.Seconds())
		}
		results = append(results, s.ratio(each.name, "s", "last", "minimum"), measured(each.name+"-median", "s", s["half"]...))
	}
	return results
}

// raisePortMode starts a lab in port mode with one node: the real OVN and Open vSwitch, and a simulated
// Neutron.
func (b *testbed) raisePortMode(ctx context.Context) {
	say("starting a lab in port mode with one node")
	b.start(ctx, lab.Options{Mode: lab.PortMode, Nodes: 1, OperatorArgs: []string{"--leader-elect=false"}})
	b.installBerth()
}

// raiseBranches starts a lab in operator mode with one node, which has a trunk.
func (b *testbed) raiseBranches(ctx context.Context) {
	say("starting a lab with a trunk")
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute) // there is no KVM in the virtual machine
	defer cancel()
	b.start(ctx, lab.Options{
		Mode: lab.OperatorMode, Spec: unlimited(1), VPCPorts: true, PortCloud: portcloud.NewBranches, VPCs: []lab.VPC{{Name: lab.BranchVPC}},
		DaemonArgs: []string{"--cooling-period=1s"}, OperatorArgs: []string{"--leader-elect=false", "--branch-cooling=1s"},
	})
	b.installBerth()
	must.OK(poll.Until(ctx, func() error { return b.few.WaitReady(ctx) }))
}

// nicPod creates a pod with NICs in a VPC, and returns it with its PodNICs once all are bound to the node.
func (b *testbed) nicPod(ctx context.Context, name, vpc, text string, nics int) (*corev1.Pod, []v1alpha1.PodNIC) {
	p := b.benchPod(ctx, podNamespace, name, map[string]string{v1alpha1.AnnotationVPC: vpc, v1alpha1.AnnotationNICs: text})
	list := &v1alpha1.PodNICList{}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	must.OK(poll.Until(ctx, func() error {
		err := b.lab.Kube.Client.List(ctx, list, kubeclient.InNamespace(p.Namespace), kubeclient.MatchingLabels{v1alpha1.LabelPodUID: string(p.UID)})
		if err != nil {
			return err
		}
		bound := 0
		for _, o := range list.Items {
			if o.Status.Plug != nil {
				bound++
			}
		}
		if bound < nics {
			return fmt.Errorf("%d of %d NICs of pod %s are bound", bound, nics, p.Name)
		}
		return nil
	}))
	return p, list.Items
}

// bothWays measures a pod with NICs in two ways, in alternating order, and deletes it.
func (b *testbed) bothWays(ctx context.Context, i int, p *corev1.Pod, ways ...func()) {
	for j := range ways {
		ways[(i+j)%len(ways)]()
	}
	must.OK(b.lab.Kube.Client.Delete(ctx, p, kubeclient.GracePeriodSeconds(0)))
}

// branchAdds measures the whole ADD, from exec to result, of pods whose first interface is a branch
// interface that is already bound to the node, in turn with pods that get a warm address of an ENI.
func branchAdds(ctx context.Context, b *bench) []Result {
	berth := b.bed.berth
	s := rounds(b.options.rounds, func(i int, note note) {
		p, _ := b.bed.nicPod(ctx, fmt.Sprintf("branch-%d", i), lab.BranchVPC, "[{name: eth0}]", 1)
		// This pod is not in the API server, so the ADD looks it up and waits for nothing.
		ordinary := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: podNamespace, Name: fmt.Sprintf("ordinary-%d", i), UID: uuid.NewUUID()}}
		b.bed.bothWays(ctx, i, p,
			func() { berth.addAndDel(ctx, berth.sandboxOf(p), "branch ", note) },
			func() { berth.addAndDel(ctx, berth.sandboxOf(ordinary), "ordinary ", note) })
	})
	return []Result{s.ratio("branch-add", "ms", "branch add", "ordinary add"), s.ratio("branch-del", "ms", "branch del", "ordinary del")}
}

// portAdds measures ADD and DEL of pods whose ports are already bound to the node, from exec to result
// with the ports' flows installed, with one NIC and with several. The reference is a plugin that executes
// ovs-vsctl for the same ports, as OVN-Kubernetes does, except that it also waits for flows with ovs-vsctl,
// which is notified, instead of polling.
func portAdds(ctx context.Context, b *bench) []Result {
	bed := b.bed
	results := []Result{single("port-daemon-idle", "MiB", memoryOf(bed.few), 0)}
	bed.installNull()
	v := &vsctl{host: bed.nodeNetlink()}
	defer v.host.Close()
	for _, arg := range bed.few.Args {
		if db, is := strings.CutPrefix(arg, "--ovsdb="); is {
			v.db = db
		}
	}
	for _, nics := range []int{1, 4} {
		vpc := bed.lab.VPCs[0]
		text := "[" + strings.Repeat("{subnet: "+vpc.Network.Subnets[0].Name+"},", nics) + "]"
		s := rounds(b.options.rounds, func(i int, note note) {
			p, ports := bed.nicPod(ctx, fmt.Sprintf("bench-%d-%d", nics, i), vpc.Name, text, nics)
			bed.bothWays(ctx, i, p,
				func() { bed.berth.addAndDel(ctx, bed.berth.sandboxOf(p), "", note) },
				func() { bed.addByVsctl(ctx, v, ports, note) })
		})
		suffix := ""
		if nics > 1 {
			suffix = fmt.Sprintf("-%d", nics)
		}
		results = append(results, s.ratio("port-add"+suffix, "ms", "add", "reference add"), s.ratio("port-del"+suffix, "ms", "del", "reference del"))
	}
	return append(results, single("port-daemon-after", "MiB", memoryOf(bed.few), 0))
}

// addByVsctl measures the null plugin, and adds the time of the ovs-vsctl calls.
func (b *testbed) addByVsctl(ctx context.Context, v *vsctl, ports []v1alpha1.PodNIC, note note) {
	null := b.nullOnce(ctx)
	netns := b.sandboxes.sandbox().NetNS
	begin := time.Now()
	for i := range ports {
		must.OK(v.plug(ctx, netns, i, &ports[i]))
	}
	added := time.Now()
	for i := range ports {
		must.OK(v.unplug(ctx, i))
	}
	note("reference add", null["add"]+millis(added.Sub(begin)))
	note("reference del", null["del"]+millis(time.Since(added)))
}

// vsctl plugs ports by executing ovs-vsctl.
type vsctl struct {
	host *netlink.Handle
	db   string
}

func (v *vsctl) run(ctx context.Context, args ...string) error {
	out, err := exec.CommandContext(ctx, "ovs-vsctl", append([]string{"--db=" + v.db, "--timeout=30"}, args...)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("ovs-vsctl %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

func vsctlName(i int) string { return fmt.Sprintf("byvsctl%d", i) }

func (v *vsctl) plug(ctx context.Context, path string, i int, o *v1alpha1.PodNIC) error {
	if err := v.link(path, i, o); err != nil {
		return fmt.Errorf("create the link of port %s: %w", o.Status.PortID, err)
	}
	name := vsctlName(i)
	err := v.run(ctx, "--may-exist", "add-port", o.Status.Plug.Bridge, name, "--", "set", "Interface", name,
		"external_ids:iface-id="+o.Status.PortID, "external_ids:attached-mac="+strings.ReplaceAll(o.Status.MAC, ":", `\:`), "external_ids:iface-status=active")
	return errors.Join(err, v.run(ctx, "wait-until", "Interface", name, "external_ids:ovn-installed=true"))
}

// link creates the link of a port with its MAC address, MTU, addresses and, for the first port, the
// default route.
func (v *vsctl) link(path string, i int, o *v1alpha1.PodNIC) (err error) {
	defer must.Catch(&err)
	ns := must.Get(netns.GetFromPath(path))
	defer func() { _ = ns.Close() }()
	pod := must.Get(netlink.NewHandleAt(ns, unix.NETLINK_ROUTE))
	defer pod.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = vsctlName(i), int(o.Status.MTU)
	veth := netlink.NewVeth(attrs)
	veth.PeerName, veth.PeerMTU, veth.PeerNamespace = fmt.Sprintf("eth%d", i), uint32(o.Status.MTU), netlink.NsFd(ns)
	veth.PeerHardwareAddr = must.Get(net.ParseMAC(o.Status.MAC))
	must.OK(v.host.LinkAdd(veth))
	peer := must.Get(pod.LinkByName(veth.PeerName))
	for _, a := range o.Status.Addresses {
		must.OK(pod.AddrAdd(peer, must.Get(netlink.ParseAddr(a.CIDR))))
	}
	must.OK(pod.LinkSetUp(peer))
	if i == 0 {
		must.OK(pod.RouteAdd(&netlink.Route{LinkIndex: peer.Attrs().Index, Gw: net.ParseIP(o.Status.Addresses[0].Gateway)}))
	}
	return v.host.LinkSetUp(veth)
}

func (v *vsctl) unplug(ctx context.Context, i int) error {
	if err := v.run(ctx, "--if-exists", "del-port", vsctlName(i)); err != nil {
		return err
	}
	link, err := v.host.LinkByName(vsctlName(i))
	if err != nil {
		return err
	}
	return v.host.LinkDel(link)
}
