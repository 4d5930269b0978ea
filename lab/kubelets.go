package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/berthnet/berth/internal/ec2/cloud/limits"
	"github.com/berthnet/berth/internal/ipfamily"
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
	// Helm is the program that installs Berth; when empty, the lab applies what Helm
	// would.
	Helm string
	// Proxy is how kube-proxy programs the kernel, NFTables when empty.
	Proxy host.ProxyMode
	// NoCNIPlugins has machines come without reference plugins, as the images of some
	// distributions do: those that pods need come with Berth.
	NoCNIPlugins bool
	// MaxPods of a node; when 0, as many as its ENIs have addresses for, and 110 where
	// there are none.
	MaxPods int

	runtime host.Containerd
	images  []string
}

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
	o.Kubelets = &k
	return o, nil
}

// raiseCluster starts a control plane and, at the same time, the machines, and waits until all machines are nodes.
func (b builder) raiseCluster(ctx context.Context, machines func() error) error {
	l := b.lab
	g, groupCtx := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer close(l.machines.kubeUp)
		return b.startKube(groupCtx, kube.Options{
			Controllers: true, Scheduler: true, Kubelets: true, ControllerArgs: controllerArgs,
			Families: l.PodFamilies(),
		})
	})
	g.Go(machines)
	if err := g.Wait(); err != nil {
		return err
	}
	if err := b.installAddons(ctx); err != nil {
		return err
	}
	if err := b.waitJoined(ctx); err != nil || l.NoDaemons {
		return err
	}
	if err := l.Chart.Install(ctx, nil); err != nil {
		return err
	}
	l.Progress("Berth is installed in " + string(l.Mode) + " mode")
	return l.WaitReady(ctx)
}

// controllerArgs shorten the reaction to a node's death to seconds.
var controllerArgs = []string{"--node-monitor-period=1s", "--node-monitor-grace-period=10s"}

// waitJoined returns once every machine is a node.
func (b builder) waitJoined(ctx context.Context) error {
	l := b.lab
	for _, m := range l.machines.all() {
		select {
		case <-m.joined:
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("wait for node %s to join: %w", m.Name, ctx.Err()), l.Err())
		}
	}
	return l.Err()
}

// ovsDir is where a machine has the socket of its OVSDB, as Debian's Open vSwitch does.
const ovsDir = "/run/openvswitch"

// hostPods are pods of a node that need no address: berthd and an operator.
const hostPods = 2

// clusterDNS is the address of the name service: the tenth of those of Services, as with kubeadm.
func (o Options) clusterDNS() netip.Addr {
	a := kube.ServiceCIDRs[o.PodFamilies().Families()[0]].Addr()
	for range 10 {
		a = a.Next()
	}
	return a
}

// maxPods is the number of pods for which an instance has addresses, as EKS calculates it (berthctl max-pods); 0 if
// the type is unknown, or one prefix is enough for all pods. In operator mode the primary ENI is the node's own.
func (o Options) maxPods(instanceType string) int {
	of, ok := limits.Lookup(instanceType)
	if !ok || o.PodFamilies() == ipfamily.OnlyIPv6 && of.Prefixes {
		return 0
	}
	enis := of.MaxENIs
	if o.Mode == OperatorMode {
		enis--
	}
	return enis*(of.IPv4PerENI-1) + hostPods
}
