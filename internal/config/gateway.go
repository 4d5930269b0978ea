package config

import (
	"fmt"
	"io"
	"net/netip"
	"time"

	"github.com/spf13/pflag"
)

// Gateway contains all settings of berth-egress, parsed and validated.
type Gateway struct {
	// Egress
	EgressName string
	Namespace  string
	Kubeconfig string // empty: in the cluster

	// Gateway
	PodIPs      []netip.Addr
	HostIPs     []netip.Addr
	Link        string
	Port        int
	GracePeriod time.Duration
	EndDelay    time.Duration

	// Watching
	MetricsAddr string
	LogSettings
	Given
}

// NewGatewayLoader registers a flag for every setting of berth-egress.
func NewGatewayLoader(flags *pflag.FlagSet) *Loader[Gateway] {
	g := &Gateway{}
	return newLoader(flags, g, gatewayTable(g), g.finish)
}

// finish sets defaults that depend on the pod, and finds contradictions.
func (g *Gateway) finish(given Given) []error {
	g.Given = given
	if g.Namespace == "" {
		g.Namespace = ownNamespace()
	}
	return wrongTogether([]contradiction{
		{g.Namespace == "", "--namespace is empty: expected the namespace of the Egress"},
		{len(g.PodIPs) == 0, "--pod-ips is empty: expected the pod's own addresses, one of a family"},
		{g.EndDelay > g.GracePeriod, fmt.Sprintf("--end-delay %s is longer than --grace-period %s", g.EndDelay, g.GracePeriod)},
	})
}

// gatewayTable lists every setting of berth-egress; parsing writes to g.
func gatewayTable(g *Gateway) []Setting {
	return rows([]group{
		{"Egress", []Setting{
			{Flag: "egress-name", parse: checked(&g.EgressName, nonEmpty),
				Doc: "Name of the gateway's Egress."},
			{Flag: "namespace", Env: []string{"POD_NAMESPACE"}, parse: text(&g.Namespace),
				Doc: "Namespace of the Egress. Default: the pod's own."},
			{Flag: "kubeconfig", parse: absolutePath(&g.Kubeconfig, true),
				Doc: "Kubeconfig file for the Kubernetes API. Default: the pod's service account."},
		}},
		{"Gateway", []Setting{
			{Flag: "pod-ips", Env: []string{"POD_IPS"}, parse: podIPs(&g.PodIPs),
				Doc: "The pod's own addresses, separated by commas, of which the first of each family counts. Clients' tunnels lead to these addresses, and external networks see them as source."},
			{Flag: "host-ips", Env: []string{"HOST_IPS"}, parse: podIPs(&g.HostIPs),
				Doc: "Addresses of the pod's node, separated by commas, of which the first of each family counts. --metrics-address always has capacity for connections from there, such as the kubelet's probes."},
			{Flag: "link", Default: "eth0", parse: checked(&g.Link, nonEmpty),
				Doc: "The pod's interface with pod-ips."},
			{Flag: "fou-port", Default: "5555", parse: udpPort(&g.Port),
				Doc: "UDP port of the tunnels between clients and gateways."},
			{Flag: "grace-period", Default: "30s", parse: duration(&g.GracePeriod, time.Second, day),
				Doc: "How long a gateway that shuts down serves its connections: the pod's terminationGracePeriodSeconds."},
			{Flag: "end-delay", Default: "10s", parse: duration(&g.EndDelay, 0, day),
				Doc: "How long it serves at least at shutdown, so that clients move to other gateways. It always ends in the last 2 s of grace-period."},
		}},
		{"Watching", append([]Setting{
			{Flag: "metrics-address", Default: ":61690", parse: checked(&g.MetricsAddr, hostPort),
				Doc: "Address on which /metrics, /livez and /readyz are served. Nodes of clients connect to it, too, to detect a gateway that is gone."},
		}, g.LogSettings.rows()...)},
	})
}

// podIPs accepts addresses in the format of the downward API (status.podIPs), and keeps the first of
// each family.
func podIPs(dst *[]netip.Addr) parser {
	return parser{func(s string) error {
		var first [2]netip.Addr
		for item := range items(s) {
			a, err := netip.ParseAddr(item)
			if err != nil || a.Zone() != "" || !a.Unmap().IsGlobalUnicast() {
				return fmt.Errorf("%q: expected addresses of a host, separated by commas", item)
			}
			a = a.Unmap()
			of := 0
			if a.Is6() {
				of = 1
			}
			if !first[of].IsValid() {
				first[of] = a
			}
		}
		*dst = nil
		for _, a := range first {
			if a.IsValid() {
				*dst = append(*dst, a)
			}
		}
		return nil
	}, Form{Kind: List}}
}

// WriteGatewayReference writes berth-egress's settings as the page docs/reference/egress-configuration.md.
func WriteGatewayReference(w io.Writer) error {
	return writeReference(w, "berth-egress", gatewayTable(&Gateway{}))
}
