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

// Cluster is what a machine needs to join a cluster.
type Cluster struct {
	// Kubelet and Proxy are the credentials of system:node:NAME and
	// system:kube-proxy. The API server is reached by Kubelet's address.
	Kubelet, Proxy *rest.Config
	ClientCA       []byte // signs the certificates of who may ask the kubelet; PEM

	Addresses  []netip.Addr      // of the node: one, or one of each family
	Labels     map[string]string // of its Node, as a kubelet may set them
	ProviderID string            // of its Node; empty where there is no cloud
	MaxPods    int               // 110 when 0

	DNS       netip.Addr // of the cluster's name service
	ProxyMode ProxyMode
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

// RestartKubelet ends the kubelet at once, as a crash does, and starts it again.
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

// kubeletConfiguration is a KubeletConfiguration (kubelet.config.k8s.io/v1beta1). The disk and memory are shared with
// others, so there are no evictions, and images are not collected.
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
		// A dead node is seen within seconds: the lease is renewed four times as
		// often as it lasts.
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

// The modes of kube-proxy that are used here.
const (
	NFTables ProxyMode = "nftables"
	IPTables ProxyMode = "iptables"
)

// ProxyModes are all there are.
var ProxyModes = []ProxyMode{NFTables, IPTables}

// proxyConfiguration is a KubeProxyConfiguration (kubeproxy.config.k8s.io/v1alpha1). It leaves the kernel's limits of
// connection tracking alone.
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
