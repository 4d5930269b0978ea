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
	"github.com/berthnet/berth/internal/lab/network/echo"
	"github.com/berthnet/berth/internal/lab/network/fabric"
	"github.com/berthnet/berth/internal/lab/network/site"
	"github.com/berthnet/berth/internal/lab/portcloud"
	"github.com/berthnet/berth/internal/lab/run/kube"
	"github.com/berthnet/berth/internal/lab/run/node"
	"github.com/berthnet/berth/internal/lab/run/poll"
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

// annotationVPC names the VPC of a pod, or of the pods of a namespace.
const annotationVPC = "berth.dev/vpc"

// joinTimeout is far more than a machine takes to become a compute host.
const joinTimeout = 3 * time.Minute

// raisePorts raises a lab in port mode.
func (l *Lab) raisePorts(ctx context.Context) (err error) {
	if l.Site, err = site.New(site.Options{ID: l.ID, Dir: filepath.Join(l.Dir, "log"), Silent: true}); err != nil {
		return err
	}
	e, err := echo.Serve(l.Site.OutsidePath())
	if err != nil {
		return err
	}
	l.echoes = append(l.echoes, e)
	if err := l.raiseKube(ctx); err != nil {
		return err
	}
	if err := l.addHosts(); err != nil {
		return err
	}
	return l.settle(ctx)
}

// raisePortCloud raises the OpenStack, in the namespace of what belongs to no node, with the
// VPCs' networks.
func (l *Lab) raisePortCloud(ctx context.Context) (err error) {
	raise := l.PortCloud
	if raise == nil {
		raise = portcloud.NewModel
	}
	l.Ports, err = raise(ctx, portcloud.Options{
		Dir: filepath.Join(l.Dir, portsDir), Netns: l.RouterPath(), Address: fabric.APIEndpoint, Log: l.Log, Progress: l.Progress,
	})
	if err != nil {
		return err
	}
	return l.raiseNetworks(ctx)
}

// raiseNetworks makes the VPCs' networks in the cloud.
func (l *Lab) raiseNetworks(ctx context.Context) (err error) {
	if l.VPCs == nil {
		l.VPCs = DefaultVPCs()
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

// patiently ends after a time, when who wanted the lab gives it up while it is raised, and with
// the lab.
func (l *Lab) patiently(d time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	go func() {
		select {
		case <-ctx.Done():
		case <-l.givenUp:
		case <-l.ended:
		}
		cancel()
	}()
	return ctx, cancel
}

// joinPorts makes a machine a compute host, and tells its daemon of the host's OVSDB.
func (l *Lab) joinPorts(o *node.Options) error {
	ctx, cancel := l.patiently(joinTimeout)
	defer cancel()
	joined, err := l.Ports.Join(ctx, portcloud.Host{
		Name: o.Name, Netns: o.Netns, Dir: filepath.Join(o.Dir, "run", "openvswitch"), State: filepath.Join(o.Dir, "var", "lib", "openvswitch"),
	})
	if err != nil {
		return fmt.Errorf("make %s a compute host: %w", o.Name, err)
	}
	args := []string{"--ovsdb=" + joined.OVSDB}
	if joined.NetnsPrefixes != nil {
		args = append(args, "--agent-netns-prefixes="+strings.Join(joined.NetnsPrefixes, ","))
	}
	o.Args = append(args, o.Args...)
	return nil
}

// credentials is the name of the Secret by which operators get into the lab's OpenStack.
const credentials = "openstack"

// raiseVPCs makes the VPC objects, with their Secret. Where all pods have ports, those that name
// no VPC are in the first.
func (c *Cluster) raiseVPCs(ctx context.Context, access portcloud.Access, vpcs []VPC) error {
	if access.Secret != nil {
		s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: operatorAccount.Namespace, Name: credentials}, StringData: access.Secret}
		if err := kube.Again(ctx, "make the Secret of the VPCs", func() error { return client.IgnoreAlreadyExists(c.Client.Create(ctx, s.DeepCopy())) }); err != nil {
			return err
		}
	}
	for _, v := range vpcs {
		o := v.object(access)
		err := settledPolicies(ctx, func() error { return client.IgnoreAlreadyExists(c.Client.Create(ctx, o.DeepCopy())) })
		if err != nil {
			return fmt.Errorf("create VPC %s: %w", v.Name, err)
		}
	}
	if len(vpcs) == 0 || c.beside {
		return nil
	}
	c.namespaces = map[string]string{annotationVPC: vpcs[0].Name}
	return poll.Retry(ctx, func() error {
		n := &corev1.Namespace{}
		if err := c.Client.Get(ctx, client.ObjectKey{Name: metav1.NamespaceDefault}, n); err != nil {
			return err
		}
		with := n.DeepCopy()
		metav1.SetMetaDataAnnotation(&with.ObjectMeta, annotationVPC, vpcs[0].Name)
		return c.Client.Patch(ctx, with, client.MergeFrom(n))
	}, func(err error) bool { return apierrors.IsNotFound(err) || kube.Away(err) }) // the API server makes it when it has started
}

// object is the VPC in the Kubernetes API.
func (v VPC) object(access portcloud.Access) *v1alpha1.VPC {
	o := &v1alpha1.VPC{ObjectMeta: metav1.ObjectMeta{Name: v.Name}, Spec: *v.Spec.DeepCopy()}
	s := &o.Spec
	s.Provider, s.Network, s.Endpoint = access.Provider, v.Network.ID, access.Endpoint
	if access.Secret != nil {
		s.Credentials = &v1alpha1.VPCCredentials{Type: v1alpha1.CredentialsPassword, SecretName: credentials}
		s.TLS = &v1alpha1.VPCTLS{Insecure: true}
	} else {
		s.Project = access.Project
	}
	if s.DefaultSubnets == nil && len(v.Network.Subnets) > 0 {
		s.DefaultSubnets = []string{v.Network.Subnets[0].Name}
	}
	if s.DefaultSecurityGroups == nil {
		s.DefaultSecurityGroups = []string{v.Open}
	}
	if s.AllowedNamespaces == nil {
		s.AllowedNamespaces = &v1alpha1.VPCNamespaces{Names: []string{"*"}}
	}
	return o
}

// WaitVPCs returns once every VPC object is Ready.
func (l *Lab) WaitVPCs(ctx context.Context) error {
	return poll.Until(ctx, func() error {
		for _, v := range l.VPCs {
			o, err := l.Kube.VPC(ctx, v.Name)
			if err != nil {
				return err
			}
			if !meta.IsStatusConditionTrue(o.Status.Conditions, v1alpha1.ConditionReady) {
				return fmt.Errorf("VPC %s is not ready: %s", v.Name, untrue(o.Status.Conditions))
			}
		}
		return nil
	})
}

// VPC reads a VPC.
func (c *Cluster) VPC(ctx context.Context, name string) (*v1alpha1.VPC, error) {
	o := &v1alpha1.VPC{}
	return o, c.read(ctx, "VPC", name, o)
}

// PodNICs lists all PodNICs.
func (c *Cluster) PodNICs(ctx context.Context) ([]v1alpha1.PodNIC, error) {
	list := &v1alpha1.PodNICList{}
	if err := c.Client.List(ctx, list); err != nil {
		return nil, fmt.Errorf("list PodNICs: %w", err)
	}
	return list.Items, nil
}
