package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berthnet/berth/internal/ec2/cloud/limits"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/lab/run/host"
	"github.com/berthnet/berth/lab/run/kube"
)

// Kubelets describes a lab whose nodes are whole machines (package host) of a whole cluster, with a scheduler,
// controllers, kube-proxy and cluster DNS. Berth is installed from its chart once they have joined, unless NoDaemons is
// set.
type Kubelets struct {
	// Containerd is the directory of a container runtime's programs. The default is this machine's own, such as
	// Debian's package.
	Containerd string
	// Images are directories with the images that machines have from the start: every *.tar in them.
	// hack/lab-images.sh prints one; make lab-images creates another.
	Images []string
	// Release is the directory of a release of Berth (make release), whose chart and images are used. If empty, the chart
	// is that of the sources and Images contain those of make lab-images.
	Release string
	// Helm is the program that installs Berth. If empty, the lab applies the same objects itself.
	Helm string
	// Proxy is how kube-proxy programs the kernel; default NFTables.
	Proxy host.ProxyMode
	// AllLocal makes kube-proxy take all traffic for that of pods, as in EKS. Otherwise it masquerades packets to Services
	// from links that are not Berth's.
	AllLocal bool
	// NoCNIPlugins omits the reference plugins from the machines, as the images of some distributions do: Berth brings
	// those that pods need.
	NoCNIPlugins bool
	// NodeGrace is how long a node may be silent until Kubernetes takes it for failed. The default of 10 s shows failures
	// soon; where the API server is away for a while, nodes are silent, too.
	NodeGrace time.Duration
	// MaxPods of a node. The default is the number of addresses of its ENIs, or 110 without ENIs.
	MaxPods int

	runtime host.Containerd
	images  []host.Archive
}

// completeKubelets finds the programs and images of machines.
func (o Options) completeKubelets() (Options, error) {
	if o.Kubelets == nil {
		return o, nil
	}
	k := *o.Kubelets
	for _, program := range []string{"kubelet", "kube-proxy"} {
		if _, err := os.Stat(filepath.Join(o.KubeAssets, program)); err != nil {
			return o, fmt.Errorf("find %s: %w (hack/kubebox.sh builds it and prints its directory)", program, err)
		}
	}
	var err error
	if o.KubeAssets, err = filepath.Abs(o.KubeAssets); err != nil {
		return o, fmt.Errorf("directory of Kubernetes' programs: %w", err)
	}
	if k.Proxy == "" {
		k.Proxy = host.NFTables
	}
	if !slices.Contains(host.ProxyModes, k.Proxy) {
		return o, fmt.Errorf("kube-proxy mode %q: want one of %v", k.Proxy, host.ProxyModes)
	}
	if k.runtime, err = host.FindContainerd(context.Background(), k.Containerd); err != nil {
		return o, err
	}
	if len(k.Images) == 0 {
		return o, errors.New("kubelets need images: set the directories that make lab-images prints")
	}
	for _, dir := range k.Images {
		archives, err := filepath.Glob(filepath.Join(dir, "*.tar"))
		if err != nil || len(archives) == 0 {
			return o, errors.Join(fmt.Errorf("images of machines: no *.tar in %q (make lab-images creates them)", dir), err)
		}
		for _, file := range archives {
			k.images = append(k.images, host.Archive{File: file})
		}
	}
	if k.Release != "" {
		archives, err := releaseImages(k.Release)
		if err != nil {
			return o, err
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
			Controllers: true, Scheduler: true, Kubelets: true, Families: l.PodFamilies(),
			ControllerArgs: []string{"--node-monitor-period=1s", "--node-monitor-grace-period=" + cmp.Or(l.Kubelets.NodeGrace, 10*time.Second).String()},
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

// ovsDir is the directory of the OVSDB socket on a machine, as in Debian's Open vSwitch.
const ovsDir = "/run/openvswitch"

// hostPods is the number of pods on a node that need no address: berthd and an operator.
const hostPods = 2

// clusterDNS is the address of the cluster DNS: the tenth of the Service CIDR, as with kubeadm.
func (o Options) clusterDNS() netip.Addr {
	a := kube.ServiceCIDRs[o.PodFamilies().Families()[0]].Addr()
	for range 10 {
		a = a.Next()
	}
	return a
}

// maxPods returns the number of pods for which an instance has addresses, as EKS calculates it (berthctl max-pods), or
// 0 if the type is unknown or one prefix is enough for all pods. In operator mode the primary ENI has no pods.
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
