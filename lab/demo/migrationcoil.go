package demo

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/go-logr/logr"
	"github.com/vishvananda/netlink"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/berthnet/berth/deploy"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/migrate"
	"github.com/berthnet/berth/internal/migrate/coil"
	"github.com/berthnet/berth/internal/migrate/coil/objects"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/control"
	"github.com/berthnet/berth/lab/network/echo"
	"github.com/berthnet/berth/lab/network/fabric"
	"github.com/berthnet/berth/lab/network/forward"
	"github.com/berthnet/berth/lab/replay"
	"github.com/berthnet/berth/lab/run/faults"
	"github.com/berthnet/berth/lab/run/kube"
	"github.com/berthnet/berth/lab/run/node"
)

// coilProofs are the proofs of a recorded node that moves from Coil to Berth, and back. Later ones depend on earlier ones.
var coilProofs = []proof{
	{name: "a recorded node of Coil comes back, its pods hold connections", try: coilConnect},
	{name: "the plan says what becomes of each pod", try: coilPlan},
	{name: "the node moves to Berth, and the tool and the API server are killed: no reply is lost", try: coilThere},
	{name: "pods come and go through Berth, old ones pass CHECK", try: coilPods},
	{name: "the node moves back to Coil, and both are killed: no reply is lost", try: coilBack},
	{name: "the node moves again, and nothing of Coil is left", try: coilFinish},
	{name: "no connection broke from the first move to the last", try: coilConnections},
	{name: "the router always had its routes to the node's blocks", try: coilRoutes},
	{name: "pods end, and nothing of them is left", try: coilEnd},
}

// coilNode is the recorded node that is moved.
const coilNode = "node-1"

// coilMigration is the stage of a migration from Coil: a recorded node, below a router and an API server with the recorded
// objects. It has no lab.
type coilMigration struct {
	*replay.Raised
	*node.Node
	dir, id  string
	programs string // directory of Berth's programs
	control  *kube.ControlPlane
	forward  *forward.Forward
	servers  []*echo.Server
	used     map[netip.Addr]string // addresses, by pod
	fresh    []string              // pods of Berth
	faults   *faults.Faults
	dump     string // file with what Coil v1 has in etcd; empty: Coil v2

	announced *announced // routes of the router

	traffic *traffic           // of all connections, which outlive the proofs
	stop    context.CancelFunc // of traffic
}

// runCoil is Run for a migration from Coil.
func runCoil(ctx context.Context, o Options) error {
	t := newReporter(o, len(coilProofs))
	s, err := raiseCoil(ctx, o, t)
	if err != nil {
		return errors.Join(err, done(o, err))
	}
	failed := s.play(ctx, t, coilProofs)
	if failed == nil {
		failed = t.summary()
	}
	err = s.clear()
	if err == nil {
		t.after(o.Program)
	}
	return errors.Join(failed, err, done(o, failed))
}

// raiseCoil raises the node of a recording.
func raiseCoil(ctx context.Context, o Options, t *reporter) (_ *stage, err error) {
	t.say("Replaying %s of a cluster with %s on this machine ...", coilNode, o.Coil)
	if o.Lab.BinDir == "" {
		exe, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("find this program's directory: %w", err)
		}
		o.Lab.BinDir = filepath.Dir(exe)
	}
	dir, err := filepath.Abs(o.Lab.Dir)
	if err != nil {
		return nil, fmt.Errorf("lab directory: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("lab directory: %w", err)
	}
	release, err := control.Lock(dir)
	if err != nil {
		return nil, err
	}
	m := &coilMigration{dir: dir, id: lab.IDOf(dir), programs: o.Lab.BinDir, used: map[netip.Addr]string{}}
	s := &stage{coil: m, release: release}
	if m.faults, err = faults.New(); err != nil {
		release()
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("replay %s: %w", o.Coil, err), s.clear())
		}
	}()
	if _, err := lab.Sweep(dir, m.id); err != nil {
		return nil, err
	}
	up, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := m.raiseCluster(up, o.Coil); err != nil {
		return nil, err
	}
	t.note("Kubernetes API server with the recorded objects, which Berth has taken over")
	if err := m.raiseNode(up, o.Coil); err != nil {
		return nil, err
	}
	t.note(fmt.Sprintf("%s with %d pods, as Coil left them", coilNode, len(m.Raised.Pods)))
	t.note(fmt.Sprintf("kills at random, which %s repeats", m.faults))
	s.nodes = []*node.Node{m.Node}
	return s, nil
}

// raiseCluster starts an API server with the objects of a recording, and makes them Berth's.
func (m *coilMigration) raiseCluster(ctx context.Context, name string) (err error) {
	ctrllog.SetLogger(logr.Discard())
	if remote := os.Getenv(kube.RemoteDir); remote != "" {
		m.control, err = kube.Remote(remote)
	} else {
		m.control, err = kube.Start(ctx, kube.Options{Assets: os.Getenv("KUBEBUILDER_ASSETS"), Dir: filepath.Join(m.dir, "kube"), CRDs: deploy.CRDs()})
	}
	if err != nil {
		return err
	}
	rendered, err := deploy.Render(deploy.InMode(deploy.PoolMode, "replay"))
	if err != nil {
		return err
	}
	if err := m.control.ApplyObjects(ctx, rendered.Access()); err != nil {
		return err
	}
	admin := m.control.Config()
	admin.WarningHandler = rest.NoWarnings{} // about finalizers of recorded objects
	c, err := client.New(admin, client.Options{})
	if err != nil {
		return err
	}
	dump, err := m.recordedObjects(ctx, c, name)
	if err != nil {
		return err
	}
	cfg := m.control.Config()
	cfg.GroupVersion, cfg.NegotiatedSerializer, cfg.ContentType = &schema.GroupVersion{}, serializer.NewCodecFactory(runtime.NewScheme()).WithoutConversion(), runtime.ContentTypeJSON
	api, err := rest.UnversionedRESTClientFor(cfg)
	if err != nil {
		return err
	}
	cluster := &objects.Cluster{API: api, Operator: "system:serviceaccount:kube-system:berth-operator", Namespace: "kube-system", Clock: clock.Real{}, Dump: dump}
	_, err = cluster.Begin(ctx)
	return err
}

// raiseNode replays the node, and installs Berth on it.
func (m *coilMigration) raiseNode(ctx context.Context, name string) error {
	recorded, err := replay.Load(name)
	if err != nil {
		return err
	}
	prefix := fabric.Prefix(m.id)
	if m.Raised, err = recorded.Only(coilNode).Raise(prefix, filepath.Join(m.dir, "nodes")); err != nil {
		return err
	}
	if m.announced, err = announce(ctx, m.Raised, m.dir); err != nil {
		return err
	}
	_ = os.Remove(m.File(coilNode, "/opt/cni/bin/portmap")) // the real one takes its place

	// The API server is behind the node's router.
	at := netip.AddrPortFrom(netip.MustParseAddr("172.30.0.1"), m.control.Endpoint().Port())
	l, err := ns.Listen(m.Router(), at)
	if err != nil {
		return err
	}
	m.forward = forward.Start(l, func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", m.control.Endpoint().String())
	})
	token, err := m.control.NodeToken(ctx, types.NamespacedName{Namespace: "kube-system", Name: "berthd"}, coilNode)
	if err != nil {
		return err
	}
	cfg := m.control.ConfigWithToken(token)
	cfg.Host, cfg.ServerName = "https://"+at.String(), m.control.Endpoint().Addr().String()
	kubeconfig := m.File(coilNode, "/kubeconfig")
	if err := kube.WriteKubeconfig(kubeconfig, cfg); err != nil {
		return err
	}
	m.Node, err = node.New(node.Options{
		Name: coilNode, InstanceID: coilNode, Netns: m.Raised.Netns(coilNode), Dir: m.File(coilNode, ""), BinDir: m.programs, Cluster: "replay", PodPrefix: prefix + "pod",
		Args: []string{"--ipam=pool", "--kubeconfig=" + kubeconfig, "--cni-network=" + coil.DefaultNetwork, "--cni-chain=portmap", "--cooling-period=1s", "--repair-interval=1s"},
		Log:  slog.New(slog.DiscardHandler),
	})
	return err
}

// close ends everything but the files.
func (m *coilMigration) close() (err error) {
	if m.stop != nil {
		m.stop()
		m.traffic.running.Wait()
	}
	for _, s := range m.servers {
		err = errors.Join(err, s.Close())
	}
	if m.Node != nil && m.Running() {
		err = errors.Join(err, m.Kill())
	}
	if m.announced != nil {
		err = errors.Join(err, m.announced.close())
	}
	if m.forward != nil {
		_ = m.forward.Close()
	}
	if m.Raised != nil {
		err = errors.Join(err, m.Raised.Close())
	}
	if m.control != nil {
		err = errors.Join(err, m.control.Stop())
	}
	_, sweepErr := lab.Sweep(m.dir, m.id)
	return errors.Join(err, sweepErr, os.RemoveAll(m.dir))
}

// tool runs `berthctl migrate coil` on the node. fault is a failpoint.
func (m *coilMigration) tool(ctx context.Context, into any, fault string, args ...string) error {
	from, more := migrate.Coil, "--coild-socket="+m.File(coilNode, "/run/coild.sock")
	if m.dump != "" {
		from, more = migrate.CoilV1, "--etcd-dump="+m.dump
	}
	args = slices.Concat([]string{"migrate", from}, args, []string{
		"-o", "json", more, "--ipam=pool", "--node-name=" + coilNode, "--state-dir=" + m.StateDir(), "--cni-conf-dir=" + m.ConfDir(), "--cni-network=" + coil.DefaultNetwork,
		"--netns-dir=" + ns.Dir, "--results-dir=" + m.File(coilNode, "/var/lib/cni/results"), "--coil-plugin=" + m.File(coilNode, "/opt/cni/bin/coil"),
	})
	return berthctl(ctx, into, m.programs, m.Node.Netns, []string{"BERTH_FAILPOINTS=" + fault}, args)
}

// report runs a step of the tool.
func (m *coilMigration) report(ctx context.Context, args ...string) (r migrate.Report) {
	check(m.tool(ctx, &r, "", args...))
	return r
}

// refused checks that a step is refused for a reason.
func (m *coilMigration) refused(ctx context.Context, why string, args ...string) {
	var r migrate.Report
	if err := m.tool(ctx, &r, "", args...); err == nil || !strings.Contains(err.Error(), why) {
		fail("%s: %v, expected a refusal because of %q", strings.Join(args, " "), err, why)
	}
}

// flow waits for further replies over the connections, none of which may have broken.
func (m *coilMigration) flow(ctx context.Context, when string) {
	checkf(errors.Join(attempt(func() { m.traffic.flow(ctx) }), m.traffic.lost()), "%s", when)
}

// verify checks that each address has one owner, and that the recorded pods pass CHECK.
func (m *coilMigration) verify(ctx context.Context) {
	if r := m.report(ctx, "verify"); len(r.Problems) > 0 {
		fail("problems: %s", strings.Join(r.Problems, "; "))
	}
	m.each("CHECK", func(cni *libcni.CNIConfig, list *libcni.NetworkConfigList, sandbox *libcni.RuntimeConf) error {
		return cni.CheckNetworkList(ctx, list, sandbox)
	})
	for _, name := range m.fresh {
		checkf(m.CheckPod(ctx, name), "CHECK of %s", name)
	}
}

// each calls the plugins with Berth's configuration for each recorded pod, as the node's runtime does.
func (m *coilMigration) each(command string, do func(*libcni.CNIConfig, *libcni.NetworkConfigList, *libcni.RuntimeConf) error) {
	list := must(libcni.NetworkConfFromFile(filepath.Join(m.ConfDir(), "10-berth.conflist")))
	cni := m.Runtime(m.File(coilNode, "/var/lib/cni"))
	for _, p := range m.Raised.Pods {
		checkf(do(cni, list, &libcni.RuntimeConf{
			ContainerID: p.Container, NetNS: m.PodNetns(p), IfName: p.Interface,
			Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", p.Namespace}, {"K8S_POD_NAME", p.Name}, {"K8S_POD_UID", p.UID}},
		}), "%s of %s/%s", command, p.Namespace, p.Name)
	}
}

// add adds pods of Berth, which get no address of another pod. Their addresses are in blocks that the node has: nobody cuts new
// ones here.
func (m *coilMigration) add(ctx context.Context, namespaces ...string) {
	for _, namespace := range namespaces {
		p := must(m.AddPod(ctx, fmt.Sprintf("new-%d", len(m.fresh)), node.PodOptions{Namespace: namespace}))
		m.fresh = append(m.fresh, p.Name)
		for _, a := range p.Addrs {
			if other := m.used[a]; other != "" {
				fail("pod %s has %s of %s", p.Name, a, other)
			}
			m.used[a] = p.Name
		}
	}
}

func coilConnect(ctx context.Context, s *stage) string {
	m := s.coil
	all, stop := context.WithCancel(context.WithoutCancel(ctx))
	m.traffic, m.stop = &traffic{pace: 20 * time.Millisecond}, stop
	for _, p := range m.Raised.Pods {
		m.servers = append(m.servers, must(echo.Serve(m.PodNetns(p))))
		for _, a := range p.Addresses() {
			m.used[a] = p.Name
			for _, network := range []string{"tcp", "udp"} {
				m.traffic.converse(all, m.Router(), network, a)
			}
		}
	}
	m.flow(ctx, "before the first move")
	return fmt.Sprintf("%d pods, %d connections", len(m.Raised.Pods), m.traffic.talks)
}

func coilPlan(ctx context.Context, s *stage) string {
	m := s.coil
	stop := m.startCoild()
	m.refused(ctx, "coild runs", "apply")
	stop()
	var p migrate.Plan
	check(m.tool(ctx, &p, "", "plan"))
	if n := migrate.Count(p.Pods, migrate.Adopt); n != len(m.Raised.Pods) || n != len(p.Pods) {
		fail("plan adopts %d of %d pods, expected %d: %+v", n, len(p.Pods), len(m.Raised.Pods), p.Pods)
	}
	return fmt.Sprintf("%d pods to adopt; apply is refused while coild runs", len(p.Pods))
}

func coilThere(ctx context.Context, s *stage) string {
	m := s.coil
	r := m.troubled(ctx, "apply")
	kills := m.faults.Counts()
	if n := migrate.Count(r.Pods, migrate.Adopted); n != len(m.Raised.Pods) {
		fail("adopted %d of %d pods: %+v", n, len(m.Raised.Pods), r.Pods)
	}
	m.flow(ctx, "after apply, before berthd starts")
	m.start(ctx)
	m.flow(ctx, "after berthd started")
	m.refused(ctx, "another berthd", "apply")
	return fmt.Sprintf("%d pods adopted; kills: %s", len(m.Raised.Pods), kills)
}

func coilPods(ctx context.Context, s *stage) string {
	m := s.coil
	m.add(ctx, "plain", "shop")
	m.verify(ctx)
	m.away(ctx, func() { m.flow(ctx, "without the API server") })
	check(m.Kill())
	m.start(ctx)
	m.verify(ctx)
	m.flow(ctx, "after berthd was killed")
	return fmt.Sprintf("%d new pods; berthd and the API server killed and started", len(m.fresh))
}

func coilBack(ctx context.Context, s *stage) string {
	m := s.coil
	if m.dump != "" { // Coil v1 knows pods by its etcd, where Berth writes nothing
		for _, name := range m.fresh {
			check(m.DelPod(ctx, name))
		}
		m.fresh = nil
	}
	check(m.Kill())
	r := m.troubled(ctx, "rollback")
	if len(r.Problems) > 0 {
		fail("problems: %s", strings.Join(r.Problems, "; "))
	}
	check(asCoildStarts(m.Node.Netns))
	m.flow(ctx, "after the rollback")
	var p migrate.Plan
	check(m.tool(ctx, &p, "", "plan"))
	if n, want := migrate.Count(p.Pods, migrate.Adopt), len(m.Raised.Pods)+len(m.fresh); n != want {
		fail("Coil has %d of %d pods after the rollback: %+v", n, want, p.Pods)
	}
	return fmt.Sprintf("Coil also has the %d pods that Berth created; kills: %s", len(m.fresh), m.faults.Counts())
}

func coilFinish(ctx context.Context, s *stage) string {
	m := s.coil
	m.report(ctx, "apply")
	if r := m.report(ctx, "apply"); len(r.Changed) > 0 {
		fail("another apply changed: %s", strings.Join(r.Changed, "; "))
	}
	m.start(ctx)
	m.flow(ctx, "after the second move")
	kill := m.drawn("apply", "--finish")
	await(ctx, "finish", func() { m.killed(ctx, kill, "apply", "--finish") }) // berthd announces blocks a little later
	m.troubled(ctx, "apply", "--finish")
	m.flow(ctx, "after finish")
	m.add(ctx, "plain", "plain")
	kills := m.faults.Counts()
	check(m.Kill())
	m.start(ctx)
	m.verify(ctx)
	if r := m.report(ctx, "apply", "--finish"); len(r.Changed) > 0 {
		fail("another finish changed: %s", strings.Join(r.Changed, "; "))
	}
	return fmt.Sprintf("%d pods, all Berth's; kills: %s", len(m.Raised.Pods)+len(m.fresh), kills)
}

func coilConnections(ctx context.Context, s *stage) string {
	m := s.coil
	m.flow(ctx, "at the end")
	m.stop()
	m.traffic.running.Wait()
	check(m.traffic.lost())
	return fmt.Sprintf("%d replies over %d connections, 0 lost, slowest %s", m.traffic.answered.Load(), m.traffic.talks, ms(m.traffic.worst))
}

func coilEnd(ctx context.Context, s *stage) string {
	m := s.coil
	m.each("DEL", func(cni *libcni.CNIConfig, list *libcni.NetworkConfigList, sandbox *libcni.RuntimeConf) error {
		return cni.DelNetworkList(ctx, list, sandbox)
	})
	for _, name := range m.fresh {
		check(m.DelPod(ctx, name))
	}
	await(ctx, "no links of pods", func() {
		check(ns.Netlink(m.Node.Netns, func(h *netlink.Handle) error {
			links, err := h.LinkList()
			for _, l := range links {
				if name := l.Attrs().Name; name != "lo" && name != "eth0" {
					err = errors.Join(err, fmt.Errorf("link %s is left", name))
				}
			}
			return err
		}))
	})
	return fmt.Sprintf("%d pods deleted", len(m.Raised.Pods)+len(m.fresh))
}
