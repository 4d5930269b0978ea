package ready

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/bench/must"
	"github.com/berthnet/berth/lab/addons"
	"github.com/berthnet/berth/lab/run/host"
	"github.com/berthnet/berth/lab/run/poll"
)

// Network is one of the two networks that are compared.
type Network string

// The networks.
const (
	Berth     Network = "berth"
	Reference Network = "reference" // ptp and host-local
)

// referenceFile sorts before Berth's: runtimes use the first file.
const referenceFile = "/etc/cni/net.d/00-reference.conflist"

// referencePods contains the addresses of all pods in the reference's turns.
var referencePods = netip.MustParsePrefix("10.250.0.0/16")

// referenceConfiguration returns the CNI configuration of one node, with its own part of the addresses
// and the MTU of the VPC.
func referenceConfiguration(node int) string {
	a := referencePods.Addr().As4()
	a[2] = byte(node)
	return fmt.Sprintf(`{"cniVersion":"1.0.0","name":%q,"plugins":[{"type":"ptp","mtu":9001,"ipam":{"type":"host-local","ranges":[[{"subnet":%q}]],"routes":[{"dst":"0.0.0.0/0"}]}}]}`,
		Reference, netip.PrefixFrom(netip.AddrFrom4(a), 24))
}

// nowhere is a chart value that keeps berthd off all nodes.
var nowhere = map[string]any{"nodeSelector": map[string]any{"bench.berth.dev/network": string(Berth)}}

// Configure sets values of Berth's chart, in addition to the lab's own.
func (c *Cluster) Configure(ctx context.Context, daemon map[string]any) (err error) {
	defer must.Catch(&err)
	c.values = daemon
	if c.network == Berth {
		c.installBerth(ctx, c.values, nodes)
	}
	return nil
}

// use selects the network of all subsequent pods. Pods of the other network must be gone. In the
// reference's turns berthd does not run, so that it uses no resources. One of the two networks is always
// installed, so that nodes stay Ready.
func (c *Cluster) use(ctx context.Context, n Network) {
	if c.network == n {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	hosts := c.hosts()
	if n == Berth {
		c.installBerth(ctx, c.values, nodes)
	}
	for i, h := range hosts {
		command := []string{"rm", referenceFile}
		if n == Reference {
			command = []string{"sh", "-ec", `printf %s "$1" >"$2.new"; mv "$2.new" "$2"`, "sh", referenceConfiguration(i), referenceFile}
		}
		must.Get(h.Run(ctx, command[0], command[1:]...))
	}
	for _, h := range hosts {
		if err := poll.Until(ctx, func() error { return hasNetwork(ctx, h, n) }); err != nil {
			must.OK(fmt.Errorf("switch %s to the network %s: %w", h.Name, n, err))
		}
	}
	if n == Reference {
		values := map[string]any{}
		maps.Copy(values, c.values)
		maps.Copy(values, nowhere)
		c.installBerth(ctx, values, 0)
	}
	c.network = n
}

// hasNetwork returns nil if a machine's runtime attaches pods to the given network.
func hasNetwork(ctx context.Context, h *host.Host, want Network) error {
	conn, err := h.CRI()
	if err != nil {
		return err
	}
	defer conn.Close()
	status, err := cri.NewRuntimeServiceClient(conn).Status(ctx, &cri.StatusRequest{Verbose: true})
	if err != nil {
		return err
	}
	// The format of containerd 1 and 2 (github.com/containerd/go-cni, ConfigResult).
	var config struct {
		Networks []struct{ Config struct{ Name string } }
	}
	if err := json.Unmarshal([]byte(status.Info["cniconfig"]), &config); err != nil {
		return fmt.Errorf("decode containerd's CNI configuration: %w", err)
	}
	for _, n := range config.Networks {
		if name := n.Config.Name; name == string(want) {
			return nil
		}
	}
	return fmt.Errorf("containerd has the networks %+v, expected %s", config.Networks, want)
}

// installBerth installs Berth's chart, and returns once berthd runs on the given number of nodes with the
// new configuration.
func (c *Cluster) installBerth(ctx context.Context, daemon map[string]any, want int) {
	must.OK(c.Chart.Install(ctx, map[string]any{"daemon": daemon}))
	must.OK(poll.Until(ctx, func() error {
		d := &appsv1.DaemonSet{}
		if err := c.Kube.Client.Get(ctx, client.ObjectKey{Namespace: addons.Namespace, Name: "berthd"}, d); err != nil {
			return err
		}
		pods := &corev1.PodList{}
		if err := c.Kube.Client.List(ctx, pods, client.InNamespace(addons.Namespace), client.MatchingLabels(d.Spec.Selector.MatchLabels)); err != nil {
			return err
		}
		s := d.Status
		if s.ObservedGeneration != d.Generation || int(s.NumberReady) != want || want > 0 && int(s.UpdatedNumberScheduled) != want || len(pods.Items) != want {
			return fmt.Errorf("berthd is ready on %d nodes of %d, with %d pods", s.NumberReady, want, len(pods.Items))
		}
		return nil
	}))
}
