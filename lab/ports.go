package lab

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/lab/network/echo"
	"github.com/berthnet/berth/lab/network/fabric"
	"github.com/berthnet/berth/lab/network/site"
	"github.com/berthnet/berth/lab/portcloud"
	"github.com/berthnet/berth/lab/run/kube"
	"github.com/berthnet/berth/lab/run/poll"
)

// VPC is a VPC object of a lab with ports, with the network that it names.
type VPC struct {
	Name    string // of the object
	Network portcloud.Network
	// Open is the ID of a group that lets everything in, which NICs have that name none.
	// The lab sets it.
	Open string
	// Spec are fields of the object's spec that the lab does not set: where they are set
	// they count.
	Spec v1alpha1.VPCSpec
}

// DefaultVPCs are two whose networks have the same addresses: the first has a second subnet.
func DefaultVPCs() []VPC {
	first := netip.MustParsePrefix("192.168.0.0/24")
	return []VPC{
		{Name: "vpc-1a2b3c4d", Network: portcloud.Network{Name: "blue", Subnets: []portcloud.Subnet{
			{Name: "subnet-1", CIDR: first}, {Name: "subnet-2", CIDR: netip.MustParsePrefix("192.168.1.0/24")},
		}}},
		{Name: "vpc-5e6f7a8b", Network: portcloud.Network{Name: "green", Subnets: []portcloud.Subnet{{Name: "subnet-1", CIDR: first}}}},
	}
}

// BranchVPC is the name of the VPC object of a lab whose ports are branches, unless its VPCs say
// otherwise. Its network is the lab's first VPC.
const BranchVPC = "branches"

// annotationVPC names the VPC of a pod, or of the pods of a namespace.
const annotationVPC = "berth.dev/vpc"

// joinTimeout is far more than a machine takes to become a compute host.
const joinTimeout = 3 * time.Minute

// raisePorts raises a lab in port mode.
func (b builder) raisePorts(ctx context.Context) (err error) {
	l := b.lab
	of := site.Options{ID: l.ID, Dir: filepath.Join(l.Dir, "log"), Silent: true}
	if l.Kubelets != nil {
		of.Services = kube.ServiceCIDRs[ipfamily.IPv4] // for pods, whose packets never pass their node's kube-proxy
	}
	if l.Site, err = site.New(of); err != nil {
		return err
	}
	e, err := echo.Serve(l.Site.OutsidePath())
	if err != nil {
		return err
	}
	l.services = append(l.services, e)
	if l.Kubelets != nil { // Chart.Install creates the VPC objects
		if err := b.raisePortCloud(ctx); err != nil {
			return err
		}
		return b.raiseCluster(ctx, b.addHosts)
	}
	if err := b.raiseKube(ctx); err != nil {
		return err
	}
	if err := b.addHosts(); err != nil {
		return err
	}
	return b.settle(ctx)
}

// raisePortCloud raises the OpenStack, in the namespace of what belongs to no node, with the
// VPCs' networks.
func (b builder) raisePortCloud(ctx context.Context) (err error) {
	l := b.lab
	raise := l.PortCloud
	if raise == nil {
		raise = portcloud.NewModel
	}
	l.Ports, err = raise(ctx, portcloud.Options{
		Dir: filepath.Join(l.Dir, portsDir), Netns: l.RouterPath(), Address: fabric.APIEndpoint, Log: l.Log, Progress: l.Progress, EC2: l.Cloud,
	})
	if err != nil {
		return err
	}
	if hasBranches(l) && l.Mode != OperatorMode {
		return fmt.Errorf("ports that are branches of ENIs are for %s mode, and this is %s mode", OperatorMode, l.Mode)
	}
	return b.raiseNetworks(ctx)
}

// hasBranches reports whether pods' ports are branches of their nodes' trunks.
func hasBranches(l *Lab) bool {
	return l.Ports != nil && l.Ports.Access().Provider == v1alpha1.ProviderEC2
}

// trunkSetting is the daemons' that has nodes have a trunk, which branches need.
const trunkSetting = "trunk-eni"

// raiseNetworks makes the VPCs' networks in the cloud.
func (b builder) raiseNetworks(ctx context.Context) (err error) {
	l := b.lab
	switch {
	case l.VPCs != nil:
	case hasBranches(l):
		l.VPCs = []VPC{{Name: BranchVPC}}
	default:
		l.VPCs = DefaultVPCs()
		l.VPCs[0].Network.Routed = l.Kubelets != nil // as probes and Services need it
	}
	l.VPCs = slices.Clone(l.VPCs)
	for i := range l.VPCs {
		v := &l.VPCs[i]
		if v.Network, err = l.Ports.AddNetwork(ctx, v.Network); err != nil {
			return fmt.Errorf("make the network of VPC %s: %w", v.Name, err)
		}
		if v.Open, err = l.Ports.AddGroup(ctx, "open-"+v.Network.Name, portcloud.Rule{Protocol: "tcp"}, portcloud.Rule{Protocol: "udp"}, portcloud.Rule{Protocol: "icmp"}); err != nil {
			return fmt.Errorf("make a security group for VPC %s: %w", v.Name, err)
		}
	}
	return nil
}

// joinedArgs are the flags of a host's daemon.
func joinedArgs(j portcloud.Joined) []string {
	args := []string{"--ovsdb=" + j.OVSDB}
	if j.NetnsPrefixes != nil {
		args = append(args, "--agent-netns-prefixes="+strings.Join(j.NetnsPrefixes, ","))
	}
	return args
}

// credentials is the name of the Secret by which operators get into the lab's OpenStack.
const credentials = "openstack"

// raiseVPCs creates the VPC objects and their Secret. Where all pods have ports, the first VPC is the default.
func (c *Cluster) raiseVPCs(ctx context.Context, access portcloud.Access, vpcs []VPC) error {
	if access.Secret != nil {
		s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: operatorAccount.Namespace, Name: credentials}, StringData: access.Secret}
		if err := kube.Retry(ctx, "make the Secret of the VPCs", func() error { return client.IgnoreAlreadyExists(c.Client.Create(ctx, s.DeepCopy())) }); err != nil {
			return err
		}
	}
	c.vpcs = nil
	for _, v := range vpcs {
		c.vpcs = append(c.vpcs, v.Name)
		o := v.object(access, c.nodes.options.IPFamilies)
		err := settledPolicies(ctx, func() error { return client.IgnoreAlreadyExists(c.Client.Create(ctx, o.DeepCopy())) })
		if err != nil {
			return fmt.Errorf("create VPC %s: %w", v.Name, err)
		}
	}
	if len(vpcs) == 0 || c.nodes.beside {
		return nil
	}
	c.nodes.namespaces = map[string]string{annotationVPC: vpcs[0].Name}
	return c.setVPC(ctx, metav1.NamespaceDefault, vpcs[0].Name)
}

// setVPC puts the pods of a namespace that name no VPC into one.
func (c *Cluster) setVPC(ctx context.Context, namespace, vpc string) error {
	return poll.Retry(ctx, func() error {
		n := &corev1.Namespace{}
		if err := c.Client.Get(ctx, client.ObjectKey{Name: namespace}, n); err != nil {
			return err
		}
		with := n.DeepCopy()
		metav1.SetMetaDataAnnotation(&with.ObjectMeta, annotationVPC, vpc)
		return c.Client.Patch(ctx, with, client.MergeFrom(n))
	}, func(err error) bool { return apierrors.IsNotFound(err) || kube.Unavailable(err) }) // the API server makes it when it has started
}

// object is the VPC in the Kubernetes API. Ports of EC2 have addresses of some families unless it says
// otherwise.
func (v VPC) object(access portcloud.Access, families ipfamily.Set) *v1alpha1.VPC {
	o := &v1alpha1.VPC{ObjectMeta: metav1.ObjectMeta{Name: v.Name}, Spec: *v.Spec.DeepCopy()}
	s := &o.Spec
	s.Provider, s.Network, s.Endpoint = access.Provider, v.Network.ID, access.Endpoint
	switch {
	case access.Secret != nil:
		s.Credentials = &v1alpha1.VPCCredentials{Type: v1alpha1.CredentialsPassword, SecretName: credentials}
		s.TLS = &v1alpha1.VPCTLS{Insecure: true}
	case access.Provider != v1alpha1.ProviderEC2:
		s.Project = access.Project
	}
	if s.DefaultSubnets == nil && len(v.Network.Subnets) > 0 && access.Provider != v1alpha1.ProviderEC2 {
		s.DefaultSubnets = []string{v.Network.Subnets[0].Name}
	}
	if access.Provider == v1alpha1.ProviderEC2 && families.Has(ipfamily.IPv6) && (s.EC2 == nil || s.EC2.IPFamilies == "") {
		if s.EC2 == nil {
			s.EC2 = &v1alpha1.EC2Spec{}
		}
		s.EC2.IPFamilies = string(families)
	}
	if s.DefaultSecurityGroups == nil {
		s.DefaultSecurityGroups = []string{v.Open}
	}
	if s.AllowedNamespaces == nil {
		s.AllowedNamespaces = &v1alpha1.VPCNamespaces{Names: []string{"*"}}
	}
	if s.NamespaceLimits == nil {
		s.NamespaceLimits = []v1alpha1.VPCNamespaceLimits{{Namespaces: v1alpha1.VPCNamespaces{Names: []string{"*"}}, SecurityGroups: []string{"*"}}}
	}
	return o
}

// TagsFor are those by which pods of a namespace may name a port.
func (o Options) TagsFor(namespace string) []string {
	return []string{vpcport.NamespaceTag(o.clusterName(), namespace)}
}

// WaitVPCs returns once every VPC object of the lab is Ready.
func (c *Cluster) WaitVPCs(ctx context.Context) error {
	return poll.Until(ctx, func() error {
		for _, name := range c.vpcs {
			o, err := c.VPC(ctx, name)
			if err != nil {
				return err
			}
			if !meta.IsStatusConditionTrue(o.Status.Conditions, v1alpha1.ConditionReady) {
				return fmt.Errorf("VPC %s is not ready: %s", name, Untrue(o.Status.Conditions))
			}
		}
		return nil
	})
}

// VPC reads a VPC.
func (c *Cluster) VPC(ctx context.Context, name string) (*v1alpha1.VPC, error) {
	return read[v1alpha1.VPC](ctx, c, "VPC", client.ObjectKey{Name: name})
}

// PodNICs lists all PodNICs.
func (c *Cluster) PodNICs(ctx context.Context) ([]v1alpha1.PodNIC, error) {
	list := &v1alpha1.PodNICList{}
	if err := c.Client.List(ctx, list); err != nil {
		return nil, fmt.Errorf("list PodNICs: %w", err)
	}
	return list.Items, nil
}

// DNSConfig is for pods that resolve many names: nil where their own node's kube-proxy handles the queries. In port
// mode another node does, to which the queries for IPv4 and IPv6, sent at once, may arrive in any order; its
// connection tracking drops one then (kubernetes/kubernetes#56903).
func (m Mode) DNSConfig() *corev1.PodDNSConfig {
	if m != PortMode {
		return nil
	}
	second, many := "1", "5"
	return &corev1.PodDNSConfig{Options: []corev1.PodDNSConfigOption{{Name: "single-request-reopen"}, {Name: "timeout", Value: &second}, {Name: "attempts", Value: &many}}}
}
