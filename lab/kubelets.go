package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"github.com/berthnet/berth/internal/ec2/cloud/limits"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/lab/addons"
	"github.com/berthnet/berth/lab/network/fabric"
	"github.com/berthnet/berth/lab/run/cgroup"
	"github.com/berthnet/berth/lab/run/host"
	"github.com/berthnet/berth/lab/run/kube"
)

// Kubelets describe a lab whose nodes are whole machines (package host) of a whole
// cluster: with a scheduler, controllers, kube-proxy and the cluster's name service.
// Berth is installed by its chart when they have joined, unless daemons are left to others.
type Kubelets struct {
	// Containerd is the folder of a container runtime's programs; this machine's own,
	// such as Debian's package, when empty.
	Containerd string
	// Images are the folders of the images that machines have from the start: every
	// *.tar in them. hack/lab-images.sh prints one, make lab-images makes another.
	Images []string
	// Tag of Berth's images among them, DefaultTag when empty.
	Tag string
	// Helm is the program that installs Berth; when empty, the lab applies what Helm
	// would.
	Helm string
	// Proxy is how kube-proxy programs the kernel, NFTables when empty.
	Proxy host.ProxyMode
	// CNIPlugins is the folder of the reference plugins, /usr/lib/cni when empty.
	CNIPlugins string
	// NoCNIPlugins has machines come without reference plugins, as the images of some
	// distributions do: those that pods need come with Berth.
	NoCNIPlugins bool
	// MaxPods of a node; when 0, as many as its ENIs have addresses for, and 110 where
	// there are none.
	MaxPods int

	runtime host.Containerd
	images  []string
}

// modelled tells whether the lab itself stands for kubelets and controllers.
func (l *Lab) modelled() bool { return l.Kube != nil && l.Kubelets == nil }

// completeKubelets finds the programs and images of machines.
func (o Options) completeKubelets() (Options, error) {
	if o.Kubelets == nil {
		return o, nil
	}
	k := *o.Kubelets
	for _, program := range []string{"kubelet", "kube-proxy"} {
		if _, err := os.Stat(filepath.Join(o.KubeAssets, program)); err != nil {
			return o, fmt.Errorf("find %s: %w (hack/kubebox.sh builds it and prints its folder)", program, err)
		}
	}
	var err error
	if o.KubeAssets, err = filepath.Abs(o.KubeAssets); err != nil {
		return o, fmt.Errorf("folder of Kubernetes' programs: %w", err)
	}
	if k.Proxy == "" {
		k.Proxy = host.NFTables
	}
	if !slices.Contains(host.ProxyModes, k.Proxy) {
		return o, fmt.Errorf("mode %q of kube-proxy: want one of %v", k.Proxy, host.ProxyModes)
	}
	switch {
	case k.NoCNIPlugins && k.CNIPlugins != "":
		return o, fmt.Errorf("machines are to have no CNI plugins, and those of %s", k.CNIPlugins)
	case k.CNIPlugins == "" && !k.NoCNIPlugins:
		k.CNIPlugins = "/usr/lib/cni"
	}
	if k.runtime, err = host.FindContainerd(context.Background(), k.Containerd); err != nil {
		return o, err
	}
	if len(k.Images) == 0 {
		return o, errors.New("kubelets need images: name the folders that make lab-images prints")
	}
	for _, dir := range k.Images {
		archives, err := filepath.Glob(filepath.Join(dir, "*.tar"))
		if err != nil || len(archives) == 0 {
			return o, errors.Join(fmt.Errorf("images of machines: there is no *.tar in %q (make lab-images makes them)", dir), err)
		}
		k.images = append(k.images, archives...)
	}
	if k.Tag == "" {
		k.Tag = DefaultTag
	}
	o.Kubelets = &k
	return o, nil
}

// raiseCluster starts a whole control plane while machines boots the machines, and
// returns when all of these are nodes of the cluster.
func (l *Lab) raiseCluster(ctx context.Context, machines func() error) error {
	g, groupCtx := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer close(l.kubeUp)
		return l.startKube(groupCtx, kube.Options{
			Controllers: true, Scheduler: true, Kubelets: true, ControllerArgs: controllerArgs,
			Families: l.PodFamilies(),
		})
	})
	g.Go(machines)
	if err := g.Wait(); err != nil {
		return err
	}
	if err := l.installAddons(ctx); err != nil {
		return err
	}
	if err := l.waitJoined(ctx); err != nil || l.NoDaemons {
		return err
	}
	if err := l.InstallBerth(ctx, nil); err != nil {
		return err
	}
	l.Progress("Berth is installed in " + string(l.Mode) + " mode")
	return l.WaitReady(ctx)
}

// waitCluster returns once nodes are Ready and names are resolved.
func (l *Lab) waitCluster(ctx context.Context) error {
	if err := l.WaitNodesReady(ctx); err != nil {
		return err
	}
	l.Progress(fmt.Sprintf("%d nodes are Ready", len(l.Nodes())))
	if err := l.WaitDeployment(ctx, addons.Namespace, addons.DNS); err != nil {
		return err
	}
	l.Progress("CoreDNS is ready")
	return nil
}

// controllerArgs make what follows a node's death come within seconds.
var controllerArgs = []string{"--node-monitor-period=1s", "--node-monitor-grace-period=10s"}

// waitJoined returns once every machine is a node.
func (l *Lab) waitJoined(ctx context.Context) error {
	for _, m := range l.machines() {
		select {
		case <-m.joined:
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("wait for node %s to join: %w", m.Name, ctx.Err()), l.Trouble())
		}
	}
	return l.Trouble()
}

// newHost makes the machine that runs on a node's network.
func (l *Lab) newHost(m *machine) *host.Host {
	folders := map[string]string{}
	if socket, ok := strings.CutPrefix(m.ovsdb, "unix:"); ok {
		folders[ovsDir] = filepath.Dir(socket)
	}
	return host.New(host.Options{
		Name: m.Name, Netns: m.Netns, Group: cgroup.Group(fabric.Prefix(l.ID) + m.Name),
		Disk: filepath.Join(disksDir, l.ID, m.Name), Logs: filepath.Join(m.Dir, "log"),
		Kubernetes: l.KubeAssets, Runtime: l.Kubelets.runtime, Images: l.Kubelets.images, CNIPlugins: l.Kubelets.CNIPlugins,
		Folders: folders,
	})
}

// ovsDir is where a machine has the socket of its OVSDB, as Debian's Open vSwitch does.
const ovsDir = "/run/openvswitch"

// bootHost turns a machine on and makes it a node once there is an API server.
func (l *Lab) bootHost(m *machine) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case <-l.ended:
			cancel()
		case <-ctx.Done():
		}
	}()
	defer close(m.joined)
	if err := m.host.Boot(ctx); err != nil {
		l.note(err)
		return
	}
	select {
	case <-l.kubeUp:
	case <-ctx.Done():
		return
	}
	l.note(l.joinHost(m))
	l.Progress("node " + m.Name + " has booted: containerd " + l.Kubelets.runtime.Version + ", kubelet, kube-proxy (" + string(l.Kubelets.Proxy) + ")")
}

// joinHost makes a machine that is on a node of the cluster.
func (l *Lab) joinHost(m *machine) error {
	if l.Kube == nil {
		return nil // the control plane did not start, which is told elsewhere
	}
	c := host.Cluster{
		ClientCA: l.Kube.CA(), DNS: l.clusterDNS(), ProxyMode: l.Kubelets.Proxy, MaxPods: l.Kubelets.MaxPods,
	}
	var err error
	if c.Kubelet, err = l.Kube.ConfigFor("system:node:"+m.Name, "system:nodes"); err != nil {
		return err
	}
	if c.Proxy, err = l.Kube.ConfigFor("system:kube-proxy"); err != nil {
		return err
	}
	c.Addresses = l.NodeAddrs(m.Node)
	if l.Site == nil {
		books := l.Cloud.Snapshot()
		i, _ := books.Instance(m.InstanceID)
		object := nodeOf(m.Name, i)
		if c.MaxPods == 0 {
			c.MaxPods = l.maxPods(i.Type)
		}
		delete(object.Labels, corev1.LabelHostname) // the kubelet's own
		c.Labels, c.ProviderID = object.Labels, object.Spec.ProviderID
	}
	return m.host.Join(c)
}

// hostPods are those of a node that need no address: berthd and an operator.
const hostPods = 2

// maxPods is how many pods an instance has addresses for, one a pod, as EKS reckons
// (berthctl max-pods); 0 of a type that is not known, and with IPv6 alone, of which a prefix
// has more than a node can run. Operator mode leaves the primary ENI to the node.
func (l *Lab) maxPods(instanceType string) int {
	of, ok := limits.Lookup(instanceType)
	if !ok || l.PodFamilies() == ipfamily.OnlyIPv6 && of.Prefixes {
		return 0
	}
	enis := of.MaxENIs
	if l.Mode == OperatorMode {
		enis--
	}
	return enis*(of.IPv4PerENI-1) + hostPods
}

// clusterDNS is the address of the name service of a lab with kubelets: the tenth of those of
// Services, as kubeadm has it.
func (l *Lab) clusterDNS() netip.Addr {
	a := kube.ServiceCIDRs[l.PodFamilies().Families()[0]].Addr()
	for range 10 {
		a = a.Next()
	}
	return a
}

// scrapHost removes the disk of a machine that is off, if it is a whole one.
func (m *machine) scrapHost() error {
	if m.host == nil {
		return nil
	}
	return m.host.Scrap()
}

// Host returns a node's machine.
func (l *Lab) Host(name string) (*host.Host, error) {
	m, err := l.wholeMachine(name)
	if err != nil {
		return nil, err
	}
	return m.host, nil
}
