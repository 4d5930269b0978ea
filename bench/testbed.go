package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/bench/must"
	"github.com/berthnet/berth/internal/kernel/datapath/bare"
	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/cloud/spec"
	"github.com/berthnet/berth/lab/run/node"
)

const (
	// nodeType has room for 15 × 49 pods.
	nodeType = "m5.16xlarge"
	// warmAddresses is how many addresses are assigned before the measurements.
	warmAddresses = 620
	// podNamespace is the namespace of the measured Pods.
	podNamespace = metav1.NamespaceDefault
)

// testbed is a lab with up to three nodes and, if a group needs them, the reference plugins in a separate
// network namespace.
type testbed struct {
	options options
	dirs    dirs

	lab              *lab.Lab
	idle, few, many  *node.Node // nodes without pods, with few pods, and with many pods
	podName          string     // the Pod in podNamespace of all sandboxes; empty: none
	refNetns         string
	berth, reference *runtime
	null             *runtime // a plugin that does nothing
	sandboxes        *runtime // creates namespaces for measurements that call no plugin
}

// start starts the lab, with the options that all labs of the bench have in common.
func (b *testbed) start(ctx context.Context, o lab.Options) {
	o.Dir, o.ID, o.BinDir = b.dirs.run, fmt.Sprintf("bench%d", os.Getpid()), b.options.binDir
	o.DaemonArgs = append([]string{"--cni-chain=", "--log-level=warn"}, o.DaemonArgs...)
	o.OperatorArgs = append([]string{"--log-level=warn"}, o.OperatorArgs...)
	b.lab = must.Get(lab.Start(ctx, o))
	b.few = b.lab.Nodes()[0]
	b.sandboxes = newRuntime("", b.lab.ID+"-s", "", "", nil)
}

// unlimited returns a VPC with the given number of nodes, whose API neither throttles nor delays calls, so
// that EC2's pace does not affect the measurements.
func unlimited(nodes int) *spec.Spec {
	s := lab.DefaultSpec(nodes, nodeType)
	s.Throttle, s.Delays, s.Consistency = "none", spec.Delays{}, spec.Consistency{}
	return &s
}

// roomy is unlimited with subnets that have room for two full nodes each.
func roomy(nodes int) *spec.Spec {
	s := unlimited(nodes)
	for i := range s.VPCs[0].Subnets {
		s.VPCs[0].Subnets[i].CIDR = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(i) << 6}), 18)
	}
	return s
}

// raiseNodeMode starts a lab in node mode with three nodes.
func (b *testbed) raiseNodeMode(ctx context.Context) {
	say("starting a lab with three %s nodes", nodeType)
	b.start(ctx, lab.Options{Spec: roomy(3), NoDaemons: true, DaemonArgs: []string{"--cooling-period=1s"}})
	nodes := b.lab.Nodes()
	b.idle, b.few, b.many = nodes[0], nodes[1], nodes[2]
	for _, n := range nodes {
		if n != b.idle {
			n.Args = append(n.Args, fmt.Sprintf("--minimum-ip-target=%d", warmAddresses), "--warm-ip-target=1")
		}
		must.OK(n.Start())
	}
	for _, n := range nodes {
		must.OK(n.WaitReady(ctx))
	}
	for _, n := range []*node.Node{b.few, b.many} {
		waitWarm(ctx, n, warmAddresses)
	}
	b.installBoth()
}

// waitWarm returns once a node has the given number of warm addresses.
func waitWarm(ctx context.Context, n *node.Node, want int) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	if err := lab.WaitAvailable(ctx, n, want); err != nil {
		must.OK(fmt.Errorf("%w\n%s", err, n.LogTail(10)))
	}
}

// installBoth prepares the container runtimes of Berth and of the reference.
func (b *testbed) installBoth() {
	b.installBerth()
	b.dirs.install(filepath.Join(b.options.refDir, "ptp"), filepath.Join(b.options.refDir, "host-local"))
	if b.podName != "" {
		b.berth.args = [][2]string{{"K8S_POD_NAMESPACE", podNamespace}, {"K8S_POD_NAME", b.podName}}
	}
	name := b.lab.ID + "-reference"
	must.OK(ns.Create(name))
	b.refNetns = name
	conf := fmt.Sprintf(`{"cniVersion":"1.0.0","name":"reference","plugins":[{"type":"ptp","mtu":9001,
		"ipam":{"type":"host-local","dataDir":%q,"ranges":[[{"subnet":"10.250.0.0/16"}]],"routes":[{"dst":"0.0.0.0/0"}]}}]}`,
		filepath.Join(b.dirs.data, "host-local"))
	ref := must.Get(libcni.NetworkConfFromBytes([]byte(conf)))
	b.reference = newRuntime(ns.Path(name), b.lab.ID+"-r", filepath.Join(b.dirs.data, "cache-reference"), b.dirs.plugins(), ref)
}

// installBerth prepares the container runtime of Berth, with the configuration that the node's daemon
// installed.
func (b *testbed) installBerth() {
	b.dirs.install(filepath.Join(b.options.binDir, "berth"))
	files, err := libcni.ConfFiles(b.few.ConfDir(), []string{".conflist"})
	if err != nil || len(files) == 0 {
		must.OK(fmt.Errorf("find the installed CNI configuration in %s: %w", b.few.ConfDir(), err))
	}
	list := must.Get(libcni.NetworkConfFromFile(files[0]))
	b.berth = newRuntime(b.few.Netns, b.lab.ID+"-b", filepath.Join(b.dirs.data, "cache-berth"), b.dirs.plugins(), list)
}

// installNull prepares the container runtime of a plugin that does nothing.
func (b *testbed) installNull() {
	b.dirs.install(filepath.Join(b.options.binDir, "null"))
	list := must.Get(libcni.NetworkConfFromBytes([]byte(`{"cniVersion":"1.0.0","name":"null","plugins":[{"type":"null"}]}`)))
	b.null = newRuntime(b.few.Netns, b.lab.ID+"-n", filepath.Join(b.dirs.data, "cache-null"), b.dirs.plugins(), list)
}

// close removes the testbed, even if it was set up only partly.
func (b *testbed) close() error {
	var errs []error
	for _, r := range []*runtime{b.berth, b.reference, b.null, b.sandboxes} {
		if r != nil {
			errs = append(errs, r.close())
		}
	}
	if b.refNetns != "" {
		errs = append(errs, ns.Remove(b.refNetns))
	}
	if b.lab != nil {
		errs = append(errs, b.lab.Close())
	}
	return errors.Join(append(errs, b.dirs.removeAll())...)
}

// benchPod creates a Pod on the node. No kubelet runs it.
func (b *testbed) benchPod(ctx context.Context, namespace, name string, annotations map[string]string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Annotations: annotations}}
	p.Spec = corev1.PodSpec{NodeName: b.few.Name, Containers: []corev1.Container{{Name: "bench", Image: "bench"}}}
	must.OK(b.lab.Kube.Client.Create(ctx, p))
	return p
}

// nodeNetlink opens netlink in the node's namespace.
func (b *testbed) nodeNetlink() *netlink.Handle { return netlinkIn(b.few.Netns) }

func netlinkIn(netns string) (host *netlink.Handle) {
	must.OK(ns.Do(netns, func() (err error) {
		host, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	}))
	return host
}

// bareOnce creates one pod link with bare netlink calls, and returns the duration in ms.
func (b *testbed) bareOnce(host *netlink.Handle, i int) float64 {
	link := bareLink(b.sandboxes.sandbox(), i)
	start := time.Now()
	must.OK(bare.Add(host, link))
	took := time.Since(start)
	removeBare(host, i)
	return millis(took)
}

// bareLink is the link of a sandbox without Berth.
func bareLink(rt *libcni.RuntimeConf, i int) bare.Link {
	return bare.Link{
		Netns: rt.NetNS, IfName: rt.IfName, HostIf: bareName(i),
		HostMAC: net.HardwareAddr{2, 0, 0, 0, byte(i >> 8), byte(i)}, PodMAC: net.HardwareAddr{2, 0, 0, 1, byte(i >> 8), byte(i)},
		MTU: 9001, Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, 249, byte(i >> 8), byte(i)})},
		Table: 4711, // no rule refers to it
	}
}

func bareName(i int) string { return fmt.Sprintf("bare%d", i) }

func removeBare(host *netlink.Handle, i int) {
	must.OK(host.LinkDel(must.Get(host.LinkByName(bareName(i)))))
}

// runtime calls a network's plugins on one node as a container runtime does.
type runtime struct {
	netns  string // node's network namespace
	cni    *libcni.CNIConfig
	list   *libcni.NetworkConfigList
	prefix string      // prefix of sandbox names
	args   [][2]string // CNI_ARGS
	made   []string
}

func newRuntime(netns, prefix, cacheDir, pluginDir string, list *libcni.NetworkConfigList) *runtime {
	return &runtime{netns: netns, prefix: prefix, list: list, cni: libcni.NewCNIConfigWithCacheDir([]string{pluginDir}, cacheDir, nil)}
}

// sandbox creates a network namespace for one container.
func (r *runtime) sandbox() *libcni.RuntimeConf {
	name := fmt.Sprintf("%s%d", r.prefix, len(r.made))
	must.OK(ns.Create(name))
	r.made = append(r.made, name)
	return &libcni.RuntimeConf{
		ContainerID: name, NetNS: ns.Path(name), IfName: "eth0", Args: r.args,
		CapabilityArgs: map[string]any{"io.kubernetes.cri.pod-annotations": map[string]string{"kubernetes.io/config.source": "api"}},
	}
}

// sandboxOf creates the network namespace of a Pod.
func (r *runtime) sandboxOf(p *corev1.Pod) *libcni.RuntimeConf {
	rt := r.sandbox()
	rt.Args = [][2]string{{"K8S_POD_NAMESPACE", p.Namespace}, {"K8S_POD_NAME", p.Name}, {"K8S_POD_UID", string(p.UID)}}
	rt.CapabilityArgs = map[string]any{"io.kubernetes.cri.pod-annotations": p.Annotations}
	return rt
}

// sandboxes creates n network namespaces.
func (r *runtime) sandboxes(n int) (all []*libcni.RuntimeConf) {
	for range n {
		all = append(all, r.sandbox())
	}
	return all
}

// add runs ADD and returns its duration in ms, from exec to result.
func (r *runtime) add(ctx context.Context, rt *libcni.RuntimeConf) float64 {
	return r.timed("ADD", rt, func() error {
		_, err := r.cni.AddNetworkList(ctx, r.list, rt)
		return err
	})
}

// del runs DEL and returns its duration in ms.
func (r *runtime) del(ctx context.Context, rt *libcni.RuntimeConf) float64 {
	return r.timed("DEL", rt, func() error { return r.cni.DelNetworkList(ctx, r.list, rt) })
}

// timed runs a CNI verb in the node's network namespace, and returns its duration in ms.
func (r *runtime) timed(verb string, rt *libcni.RuntimeConf, run func() error) float64 {
	var took time.Duration
	err := ns.Do(r.netns, func() error {
		start := time.Now()
		err := run()
		took = time.Since(start)
		return err
	})
	if err != nil {
		must.OK(fmt.Errorf("%s %s with %s: %w", verb, rt.ContainerID, r.list.Name, err))
	}
	return millis(took)
}

// addAndDel measures ADD and DEL of a sandbox.
func (r *runtime) addAndDel(ctx context.Context, rt *libcni.RuntimeConf, whose string, note note) {
	note(whose+"add", r.add(ctx, rt))
	note(whose+"del", r.del(ctx, rt))
}

// close removes the sandboxes.
func (r *runtime) close() error {
	var errs []error
	for _, name := range r.made {
		errs = append(errs, ns.Remove(name))
	}
	r.made = nil
	return errors.Join(errs...)
}

// dirs are the directories of a testbed, on the same media as on a node: on a disk, replacing a record
// would take half of an ADD's time.
type dirs struct {
	run, data string // on a tmpfs, like /run with Berth's records; on a disk, like /var/lib/cni with host-local's and libcni's
	mounted   bool   // whether run is mounted
}

// plugins returns the plugins' directory, like /opt/cni/bin.
func (d *dirs) plugins() string { return filepath.Join(d.data, "bin") }

// makeAll creates the directories and mounts the tmpfs.
func (d *dirs) makeAll() (err error) {
	for _, dir := range []*string{&d.run, &d.data} {
		if *dir, err = os.MkdirTemp("", "bench-"); err != nil {
			return fmt.Errorf("create a directory for the lab: %w", err)
		}
	}
	if err := unix.Mount("tmpfs", d.run, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755"); err != nil {
		return fmt.Errorf("mount a tmpfs on %s: %w", d.run, err)
	}
	d.mounted = true
	return nil
}

// removeAll undoes makeAll, even if that failed.
func (d *dirs) removeAll() (err error) {
	if d.mounted {
		if err = unix.Unmount(d.run, unix.MNT_DETACH); err != nil {
			err = fmt.Errorf("unmount %s: %w", d.run, err)
		}
	}
	err = errors.Join(err, os.RemoveAll(d.run), os.RemoveAll(d.data)) // an empty name is no error
	*d = dirs{}
	return err
}

// install copies plugins to one directory on a disk, as an installer does on a node. This matters: for a
// file on a tmpfs, or one written by the linker, the kernel maps smaller pages, and the same plugin starts
// up to a tenth slower.
func (d *dirs) install(programs ...string) {
	must.OK(os.MkdirAll(d.plugins(), 0o755))
	dir := must.Get(os.OpenRoot(d.plugins()))
	defer dir.Close()
	for _, from := range programs {
		must.OK(dir.WriteFile(filepath.Base(from), must.Get(os.ReadFile(from)), 0o755))
	}
}
