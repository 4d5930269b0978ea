package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/run/poll"
)

// raisePortMode raises a lab of VPC ports with one node: the real OVN and Open vSwitch, and an
// imitated Neutron.
func (b *testbed) raisePortMode(ctx context.Context) (err error) {
	say("raising a lab of VPC ports with one node")
	b.lab, err = lab.Start(ctx, lab.Options{
		Dir: b.dirs.run, ID: fmt.Sprintf("bench%d", os.Getpid()), BinDir: b.options.binDir, KubeAssets: b.options.assets,
		Mode: lab.PortMode, Nodes: 1, DaemonArgs: []string{"--cni-chain=", "--log-level=warn"},
		OperatorArgs: []string{"--leader-elect=false", "--log-level=warn"},
	})
	if err != nil {
		return fmt.Errorf("raise a lab: %w", err)
	}
	b.few = b.lab.Nodes()[0]
	if err := b.installBerth(); err != nil {
		return err
	}
	b.sandboxes = newRuntime("", b.lab.ID+"-s", "", "", nil)
	return nil
}

// portAdds measures ADD and DEL of pods whose ports are bound to the node already, from exec
// to result with the ports' flows installed, with one NIC and with several, in turn with what a
// plugin does for the same ports that executes ovs-vsctl: as OVN-Kubernetes' does, but that it
// waits for flows by ovs-vsctl too, which is told of them, and not by asking again.
func portAdds(ctx context.Context, b *bench) ([]Result, error) {
	idle, err := rssAnon(b.bed.few)
	if err != nil {
		return nil, err
	}
	results := []Result{single("port-daemon-idle", "MiB", idle, 0)}
	host, err := b.bed.openFloor()
	if err != nil {
		return nil, err
	}
	defer host.Close()
	v := &vsctl{host: host}
	for _, arg := range b.bed.few.Args {
		if db, is := strings.CutPrefix(arg, "--ovsdb="); is {
			v.db = db
		}
	}
	for _, nics := range []int{1, 4} {
		s, err := rounds(b.options.rounds, func(i int, note note) error { return b.bed.portRound(ctx, v, nics, i, note) })
		if err != nil {
			return nil, err
		}
		suffix := ""
		if nics > 1 {
			suffix = fmt.Sprintf("-%d", nics)
		}
		results = append(results,
			ratio("port-add"+suffix, "ms", s["add"], s["reference add"]),
			ratio("port-del"+suffix, "ms", s["del"], s["reference del"]))
	}
	busy, err := rssAnon(b.bed.few)
	return append(results, single("port-daemon-after", "MiB", busy, 0)), err
}

// portRound makes a pod, and plugs its ports both ways, each first in every other round.
func (b *testbed) portRound(ctx context.Context, v *vsctl, nics, i int, note note) (err error) {
	p, ports, err := b.portPod(ctx, nics, i)
	if err != nil {
		return err
	}
	ways := []func() error{
		func() error { return b.portAdd(ctx, p, note) },
		func() error { return b.addByHand(ctx, v, ports, note) },
	}
	for j := range ways {
		if err := ways[(i+j)%len(ways)](); err != nil {
			return err
		}
	}
	return b.lab.Kube.Client.Delete(ctx, p, kubeclient.GracePeriodSeconds(0))
}

// portPod makes a pod with so many NICs, and returns it with its PodNICs once all are bound to
// the node.
func (b *testbed) portPod(ctx context.Context, nics, i int) (*corev1.Pod, []v1alpha1.PodNIC, error) {
	vpc := b.lab.VPCs[0]
	text := "[" + strings.Repeat("{subnet: "+vpc.Network.Subnets[0].Name+"},", nics) + "]"
	return b.nicPod(ctx, fmt.Sprintf("bench-%d-%d", nics, i), vpc.Name, text, nics)
}

// nicPod makes a pod with NICs in a VPC, so many, and returns it with its PodNICs once all are bound to
// the node.
func (b *testbed) nicPod(ctx context.Context, name, vpc, text string, nics int) (*corev1.Pod, []v1alpha1.PodNIC, error) {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: podNamespace, Name: name,
		Annotations: map[string]string{v1alpha1.AnnotationVPC: vpc, v1alpha1.AnnotationNICs: text},
	}}
	p.Spec = corev1.PodSpec{NodeName: b.few.Name, Containers: []corev1.Container{{Name: "bench", Image: "bench"}}}
	if err := b.lab.Kube.Client.Create(ctx, p); err != nil {
		return nil, nil, fmt.Errorf("make a Pod: %w", err)
	}
	list := &v1alpha1.PodNICList{}
	bounded, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	err := poll.Until(bounded, func() error {
		err := b.lab.Kube.Client.List(bounded, list, kubeclient.InNamespace(p.Namespace), kubeclient.MatchingLabels{v1alpha1.LabelPodUID: string(p.UID)})
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
	})
	return p, list.Items, err
}

// portAdd measures Berth.
func (b *testbed) portAdd(ctx context.Context, p *corev1.Pod, note note) error {
	return b.addPod(ctx, p, "", note)
}

// addPod measures ADD and DEL of a Pod by Berth.
func (b *testbed) addPod(ctx context.Context, p *corev1.Pod, whose string, note note) error {
	rt, err := b.berth.sandbox()
	if err != nil {
		return err
	}
	describe(rt, p)
	add, err := b.berth.add(ctx, rt)
	if err != nil {
		return err
	}
	del, err := b.berth.del(ctx, rt)
	note(whose+"add", millis(add))
	note(whose+"del", millis(del))
	return err
}

// addByHand measures a plugin that does nothing, and what one does beyond that which executes
// ovs-vsctl.
func (b *testbed) addByHand(ctx context.Context, v *vsctl, ports []v1alpha1.PodNIC, note note) error {
	null := map[string]float64{}
	if err := addAndDel(ctx, b.null, "", func(of string, ms float64) { null[of] = ms }); err != nil {
		return err
	}
	rt, err := b.sandboxes.sandbox()
	if err != nil {
		return err
	}
	begin := time.Now()
	for i := range ports {
		if err := v.plug(ctx, rt, i, &ports[i]); err != nil {
			return err
		}
	}
	added := time.Now()
	for i := range ports {
		if err := v.unplug(ctx, i); err != nil {
			return err
		}
	}
	note("reference add", null["add"]+millis(added.Sub(begin)))
	note("reference del", null["del"]+millis(time.Since(added)))
	return nil
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

func handName(i int) string { return fmt.Sprintf("byhand%d", i) }

func (v *vsctl) plug(ctx context.Context, rt *libcni.RuntimeConf, i int, o *v1alpha1.PodNIC) error {
	if err := v.link(rt.NetNS, i, o); err != nil {
		return fmt.Errorf("make the link of port %s: %w", o.Status.PortID, err)
	}
	name := handName(i)
	err := v.run(ctx, "--may-exist", "add-port", o.Status.Plug.Bridge, name, "--", "set", "Interface", name,
		"external_ids:iface-id="+o.Status.PortID, "external_ids:attached-mac="+strings.ReplaceAll(o.Status.MAC, ":", `\:`), "external_ids:iface-status=active")
	return errors.Join(err, v.run(ctx, "wait-until", "Interface", name, "external_ids:ovn-installed=true"))
}

// link makes the link of a port, with what the pod has of it: MAC address, MTU, address and, on
// the first, the default route.
func (v *vsctl) link(path string, i int, o *v1alpha1.PodNIC) error {
	ns, err := netns.GetFromPath(path)
	if err != nil {
		return err
	}
	defer func() { _ = ns.Close() }()
	pod, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer pod.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = handName(i), int(o.Status.MTU)
	veth := netlink.NewVeth(attrs)
	veth.PeerName, veth.PeerMTU, veth.PeerNamespace = fmt.Sprintf("eth%d", i), uint32(o.Status.MTU), netlink.NsFd(ns)
	if veth.PeerHardwareAddr, err = net.ParseMAC(o.Status.MAC); err != nil {
		return err
	}
	if err := v.host.LinkAdd(veth); err != nil {
		return err
	}
	peer, err := pod.LinkByName(veth.PeerName)
	if err != nil {
		return err
	}
	for _, a := range o.Status.Addresses {
		addr, err := netlink.ParseAddr(a.CIDR)
		if err != nil {
			return err
		}
		if err := pod.AddrAdd(peer, addr); err != nil {
			return err
		}
	}
	if err := pod.LinkSetUp(peer); err != nil {
		return err
	}
	if i == 0 {
		err := pod.RouteAdd(&netlink.Route{LinkIndex: peer.Attrs().Index, Gw: net.ParseIP(o.Status.Addresses[0].Gateway)})
		if err != nil {
			return err
		}
	}
	return v.host.LinkSetUp(veth)
}

func (v *vsctl) unplug(ctx context.Context, i int) error {
	if err := v.run(ctx, "--if-exists", "del-port", handName(i)); err != nil {
		return err
	}
	link, err := v.host.LinkByName(handName(i))
	if err != nil {
		return err
	}
	return v.host.LinkDel(link)
}
