package host

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"

	"k8s.io/client-go/rest"

	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/lab/run/cgroup"
	"github.com/berthnet/berth/lab/run/kube"
	"github.com/berthnet/berth/lab/run/proc"
)

// Cluster is the data that a machine needs to join a cluster.
type Cluster struct {
	// Kubelet and Proxy are the credentials of system:node:NAME and system:kube-proxy. Kubelet also has the API
	// server's address.
	Kubelet, Proxy *rest.Config
	ClientCA       []byte // authority of clients of the kubelet; PEM

	Addresses  []netip.Addr      // of the node: one, or one of each family
	Labels     map[string]string // labels of its Node, limited to those that a kubelet may set
	ProviderID string            // provider ID of its Node; empty without a cloud
	MaxPods    int               // default 110

	DNS       netip.Addr // address of the cluster DNS
	ProxyMode ProxyMode
	// AllLocal makes kube-proxy take all traffic for that of pods, whatever names their links have.
	AllLocal bool
}

// Join makes a running machine a node of a cluster. It does not wait for the kubelet and kube-proxy that it starts.
func (h *Host) Join(c Cluster) error {
	h.turning.Lock()
	defer h.turning.Unlock()
	if !h.On() {
		return fmt.Errorf("join %s to a cluster: the machine is off", h.Name)
	}
	h.mu.Lock()
	h.cluster = &c
	h.mu.Unlock()
	if err := c.writeFiles(h.Options); err != nil {
		return fmt.Errorf("join %s to a cluster: %w", h.Name, err)
	}
	return h.startNode()
}

func (h *Host) joinedCluster() *Cluster {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.cluster
}

func (h *Host) startNode() error { return errors.Join(h.Proxy.Start(), h.Kubelet.Start()) }

// RestartKubelet kills the kubelet and starts it again.
func (h *Host) RestartKubelet() error { return errors.Join(h.Kubelet.Kill(), h.Kubelet.Start()) }

// Files in settingsDir.
const (
	containerdConfig  = "containerd.toml"
	kubeletKubeconfig = "kubelet.kubeconfig"
	kubeletConfig     = "kubelet.json"
	proxyKubeconfig   = "kube-proxy.kubeconfig"
	proxyConfig       = "kube-proxy.json"
	clientCA          = "ca.crt"
)

// writeFiles writes the files of a machine's kubelet and kube-proxy.
func (c Cluster) writeFiles(o Options) error {
	at := o.disk().setting
	return errors.Join(
		kube.WriteKubeconfig(at(kubeletKubeconfig), c.Kubelet),
		kube.WriteKubeconfig(at(proxyKubeconfig), c.Proxy),
		os.WriteFile(at(clientCA), c.ClientCA, 0o644),
		writeJSON(at(kubeletConfig), c.kubeletConfiguration(o.Group)),
		writeJSON(at(proxyConfig), c.proxyConfiguration(o.Name)),
	)
}

func writeJSON(file string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, data, 0o644)
}

// kubeletConfiguration returns a KubeletConfiguration (kubelet.config.k8s.io/v1beta1). It disables evictions and image
// garbage collection, because disk and memory are shared with other programs.
func (c Cluster) kubeletConfiguration(group cgroup.Group) map[string]any {
	maxPods := c.MaxPods
	if maxPods == 0 {
		maxPods = 110
	}
	config := map[string]any{
		"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
		"containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
		"failCgroupV1":             false,
		"cgroupDriver":             "cgroupfs",
		"cgroupRoot":               "/" + string(group),
		"enforceNodeAllocatable":   []string{},
		"failSwapOn":               false,
		"readOnlyPort":             0,
		"authentication": map[string]any{
			"anonymous": map[string]any{"enabled": false},
			"webhook":   map[string]any{"enabled": true},
			"x509":      map[string]any{"clientCAFile": settingsDir + "/" + clientCA},
		},
		"authorization":               map[string]any{"mode": "Webhook"},
		"resolvConf":                  "/etc/resolv.conf",
		"evictionHard":                map[string]string{"imagefs.available": "0%", "nodefs.available": "0%", "nodefs.inodesFree": "0%"},
		"imageGCHighThresholdPercent": 100,
		"imageGCLowThresholdPercent":  99,
		"clusterDomain":               "cluster.local",
		"clusterDNS":                  []string{c.DNS.String()},
		"maxPods":                     maxPods,
		"serializeImagePulls":         false,
		// Detect a dead node within seconds: the lease is renewed four times during its validity.
		"nodeLeaseDurationSeconds": 8,
	}
	if c.ProviderID != "" {
		config["providerID"] = c.ProviderID
	}
	return config
}

func (h *Host) kubeletCommand() proc.Command {
	c := h.joinedCluster()
	if c == nil {
		c = &Cluster{}
	}
	var addresses, labels []string
	for _, a := range c.Addresses {
		addresses = append(addresses, a.String())
	}
	for _, k := range slices.Sorted(maps.Keys(c.Labels)) {
		labels = append(labels, k+"="+c.Labels[k])
	}
	return proc.Command{
		Path: programsDir + "/kubernetes/kubelet",
		Args: []string{
			"--config=" + settingsDir + "/" + kubeletConfig, "--kubeconfig=" + settingsDir + "/" + kubeletKubeconfig,
			"--hostname-override=" + h.Name, "--node-ip=" + strings.Join(addresses, ","), "--node-labels=" + strings.Join(labels, ","),
		},
		Env: []string{"PATH=" + Path},
	}
}

// ProxyMode is how kube-proxy programs the kernel.
type ProxyMode string

// Modes of kube-proxy used in the lab.
const (
	NFTables ProxyMode = "nftables"
	IPTables ProxyMode = "iptables"
)

// ProxyModes are all modes.
var ProxyModes = []ProxyMode{NFTables, IPTables}

// proxyConfiguration returns a KubeProxyConfiguration (kubeproxy.config.k8s.io/v1alpha1). It does not change the kernel's
// limits of connection tracking.
func (c Cluster) proxyConfiguration(name string) map[string]any {
	config := map[string]any{
		"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
		"mode":             string(c.ProxyMode),
		"clientConnection": map[string]any{"kubeconfig": settingsDir + "/" + proxyKubeconfig},
		"hostnameOverride": name,
		"conntrack":        map[string]any{"maxPerCore": 0, "min": 0},
	}
	if !c.AllLocal {
		// Only masquerade traffic from a service's own backend: pods have addresses of the network.
		config["detectLocalMode"] = "InterfaceNamePrefix"
		config["detectLocal"] = map[string]any{"interfaceNamePrefix": datapath.LinkPrefix}
	}
	return config
}

func proxyCommand() proc.Command {
	return proc.Command{
		Path: programsDir + "/kubernetes/kube-proxy", Args: []string{"--config=" + settingsDir + "/" + proxyConfig},
		Env: []string{"PATH=" + Path},
	}
}
