package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/lab"
	labspec "github.com/berthnet/berth/lab/cloud/spec"
	"github.com/berthnet/berth/lab/control"
	"github.com/berthnet/berth/lab/network/fabric"
	"github.com/berthnet/berth/lab/run/host"
	"github.com/berthnet/berth/lab/run/kube"
)

// modes lists Berth's modes, in the order of the tables.
var modes = []string{string(lab.NodeMode), string(lab.OperatorMode), string(lab.PoolMode), string(lab.PortMode)}

const (
	// labDirs is the prefix of the clusters' directories, one for each mode. Socket paths must be short.
	labDirs = "/run/vpclab/up"
	// nodes is the number of nodes, each in a separate zone: specs about traffic within a zone need three.
	nodes = 3
	// instanceType has addresses for the pods of several concurrent specs, including cooling ones.
	instanceType = "m5.xlarge"
	// patience limits the start of a hanging cluster.
	patience = 5 * time.Minute
)

// daemonArgs are the daemon settings that the cluster's network requires. The API server, through which tests reach
// pods, is outside the VPC, so pods reply to it with their own addresses only if configured.
var daemonArgs = map[lab.Mode][]string{
	lab.NodeMode:     {apiWithoutSNAT},
	lab.OperatorMode: {apiWithoutSNAT},
}

var apiWithoutSNAT = fmt.Sprintf("--exclude-snat-cidrs=%s/32", fabric.APIEndpoint)

// podFamilies returns the IP families of pods. By default one mode with ENIs is IPv4-only and the other dual-stack,
// because they share a data path.
func (o options) podFamilies() ipfamily.Set {
	of := lab.Options{Mode: lab.Mode(o.mode), IPFamilies: o.families}
	if of.IPFamilies == "" && of.Mode == lab.OperatorMode {
		of.IPFamilies = ipfamily.Dual
	}
	return of.PodFamilies()
}

// network returns the network of a mode's cluster. By default each mode of kube-proxy is covered by a run.
func (o options) network() network {
	n := network{families: o.podFamilies(), ports: lab.Mode(o.mode) == lab.PortMode, proxy: host.NFTables}
	if lab.Mode(o.mode) == lab.PoolMode {
		n.proxy = host.IPTables
	}
	if o.proxy != "" {
		n.proxy = host.ProxyMode(o.proxy)
	}
	return n
}

// inZones returns a VPC with a subnet and a node in each of three zones.
func inZones() *labspec.Spec {
	s := lab.DefaultSpec(nodes, instanceType)
	s.VPCs[0].Subnets = nil
	for i := range nodes {
		name := string(rune('a' + i))
		s.VPCs[0].Subnets = append(s.VPCs[0].Subnets, labspec.Subnet{
			Name: name, Zone: "lab-1" + name, CIDR: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(4 * i), 0}), 22),
		})
		s.Instances[i].Subnet = name
	}
	return &s
}

// existing returns a cluster that was not started by this program.
func existing(ctx context.Context, kubeconfig string) (cluster, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return cluster{}, fmt.Errorf("read -kubeconfig: %w", err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return cluster{}, fmt.Errorf("use -kubeconfig: %w", err)
	}
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return cluster{}, fmt.Errorf("count the cluster's nodes: %w", err)
	}
	return cluster{kubeconfig: kubeconfig, nodes: len(nodes.Items)}, nil
}

// zone assigns a zone to each node that has none.
func zone(ctx context.Context, c *lab.Cluster) error {
	var list corev1.NodeList
	if err := c.Client.List(ctx, &list); err != nil {
		return fmt.Errorf("list nodes: %w", err)
	}
	for i := range list.Items {
		n := &list.Items[i]
		if n.Labels[corev1.LabelTopologyZone] != "" {
			continue
		}
		before := n.DeepCopy()
		n.Labels[corev1.LabelTopologyZone] = fmt.Sprintf("room-%d", i+1)
		if err := c.Client.Patch(ctx, n, client.MergeFrom(before)); err != nil {
			return fmt.Errorf("label node %s with its zone: %w", n.Name, err)
		}
	}
	return nil
}

// forget removes the directory of a cluster that was removed after a success.
func (o options) forget() error {
	dir := labDirs + o.mode
	if _, err := lab.Sweep(dir, lab.IDOf(dir)); err != nil {
		return fmt.Errorf("remove the leftovers of the cluster: %w", err)
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove the directory of the cluster: %w", err)
	}
	_ = os.Remove(filepath.Dir(dir)) // fails if another lab uses it
	return nil
}

// raise starts a cluster of the lab with Berth's chart and images, and returns a function that removes it.
func (o options) raise(ctx context.Context, out io.Writer) (cluster, func() error, error) {
	began, labDir := time.Now(), labDirs+o.mode
	fmt.Fprintf(out, "Starting a cluster of %d nodes in mode %s with %s pods ...\n", nodes, o.mode, o.podFamilies())
	if err := os.MkdirAll(labDir, 0o755); err != nil {
		return cluster{}, nil, fmt.Errorf("create the directory of the cluster: %w", err)
	}
	release, err := control.Lock(labDir)
	if err != nil {
		return cluster{}, nil, err
	}
	up, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var vpcs *labspec.Spec
	var families ipfamily.Set // in other modes the pools or networks determine them
	if m := lab.Mode(o.mode); m == lab.NodeMode || m == lab.OperatorMode {
		vpcs, families = inZones(), o.podFamilies()
	}
	l, err := lab.Start(up, lab.Options{
		Dir: labDir, Mode: lab.Mode(o.mode), Nodes: nodes, Spec: vpcs, IPFamilies: families,
		NetworkPolicies: !o.network().ports, OperatorCount: 2, DaemonArgs: daemonArgs[lab.Mode(o.mode)],
		Kubelets: &lab.Kubelets{Images: filepath.SplitList(o.images), Containerd: o.containerd, Proxy: o.network().proxy},
		Progress: func(line string) {
			fmt.Fprintf(out, "  %5.1f s  %s\n", time.Since(began).Seconds(), line)
		},
	})
	if err != nil {
		release()
		return cluster{}, nil, fmt.Errorf("start a cluster: %w", err)
	}
	lower := func() error {
		defer release()
		return errors.Join(l.Err(), l.Close())
	}
	// The tests use the address of the API server itself.
	c := cluster{kubeconfig: filepath.Join(labDir, "upstream.kubeconfig"), netns: l.Kube.Netns, nodes: nodes, apply: l.Kube.ApplyObjects}
	if err := errors.Join(zone(up, l.Kube), kube.WriteKubeconfig(c.kubeconfig, l.Kube.Config())); err != nil {
		return cluster{}, nil, errors.Join(err, lower())
	}
	return c, lower, nil
}
