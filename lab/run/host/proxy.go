package host

import (
	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/lab/run/proc"
)

// ProxyMode is how kube-proxy programs the kernel.
type ProxyMode string

// The modes of kube-proxy that are used here.
const (
	NFTables ProxyMode = "nftables"
	IPTables ProxyMode = "iptables"
)

// ProxyModes are all there are.
var ProxyModes = []ProxyMode{NFTables, IPTables}

// proxyConfiguration is a KubeProxyConfiguration (kubeproxy.config.k8s.io/v1alpha1).
// How many connections are tracked is the whole kernel's to say, so that it stays.
func (c Cluster) proxyConfiguration(name string) map[string]any {
	return map[string]any{
		"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
		"mode":             string(c.ProxyMode),
		"clientConnection": map[string]any{"kubeconfig": settingsDir + "/" + proxyKubeconfig},
		"hostnameOverride": name,
		"conntrack":        map[string]any{"maxPerCore": 0, "min": 0},
		// Any source but a service's own backend is left as it is: pods have
		// addresses of the network.
		"detectLocalMode": "InterfaceNamePrefix",
		"detectLocal":     map[string]any{"interfaceNamePrefix": datapath.LinkPrefix},
	}
}

func proxyCommand() proc.Command {
	return proc.Command{
		Path: programsDir + "/kubernetes/kube-proxy", Args: []string{"--config=" + settingsDir + "/" + proxyConfig},
		Env: []string{"PATH=" + Path},
	}
}
