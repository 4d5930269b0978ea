// Package replay puts recorded clusters with Coil back: their objects as YAML, and the kernel state and files of their
// nodes and pods in network namespaces of this machine, link by link. No program of Coil runs in them.
//
// The recordings in clusters/ are of programs that ran: coil-VERSION.json has nodes and pods, coil-VERSION.yaml the
// objects. They lack what the kernel makes by itself, and what no test reads.
package replay

import (
	"embed"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
)

//go:embed clusters
var clusters embed.FS

// The recorded clusters.
const (
	V1       = "coil-v1.1.9"
	V2Oldest = "coil-v2.0.12"
	V2Middle = "coil-v2.4.0"
	V2Newest = "coil-v2.15.0"
	// With clients and gateways of Egresses, whose links need a kernel with Foo-over-UDP. In the newest, Coil is chained
	// behind ptp on node-3.
	V2MiddleEgress = "coil-v2.4.0-egress"
	V2NewestEgress = "coil-v2.15.0-egress"
)

// Cluster is a recording.
type Cluster struct {
	Nodes []Node `json:"nodes"`
	Pods  []Pod  `json:"pods"`
}

// Node is a recorded node.
type Node struct {
	Name     string            `json:"name"`
	Links    []Link            `json:"links"`
	Routes   []Route           `json:"routes"`
	Rules    []Rule            `json:"rules"`
	Conf     map[string]string `json:"conf"`     // CNI configurations by file name
	Files    []string          `json:"files"`    // paths of other files
	Sysctls  map[string]string `json:"sysctls"`  // that Coil changed
	IPTables string            `json:"iptables"` // as of iptables-save
}

// Pod is a recorded pod.
type Pod struct {
	Node      string          `json:"node"`
	Namespace string          `json:"namespace"`
	Name      string          `json:"name"`
	UID       string          `json:"uid"`
	Container string          `json:"container"`
	Interface string          `json:"interface"`
	Netns     string          `json:"netns"`   // name of the network namespace
	Network   string          `json:"network"` // name in the CNI configuration
	HostLink  string          `json:"hostLink"`
	Result    json.RawMessage `json:"result"` // of the last plugin
	Links     []Link          `json:"links"`
	Routes    []Route         `json:"routes"`
	Rules     []Rule          `json:"rules"`
	Loopback  []Address       `json:"loopback"` // addresses of lo
}

// Link is a recorded link.
type Link struct {
	Name      string          `json:"name"`
	Kind      string          `json:"kind"`
	MAC       string          `json:"mac"`
	MTU       int             `json:"mtu"`
	Alias     string          `json:"alias"`
	Addresses []Address       `json:"addresses"`
	Data      json.RawMessage `json:"data"` // of tunnels
}

// Route is a recorded route in the notation of ip-route(8).
type Route struct {
	Dst      string `json:"dst"`
	Dev      string `json:"dev"`
	Gateway  string `json:"gateway"`
	Table    string `json:"table"`
	Protocol string `json:"protocol"`
	Scope    string `json:"scope"`
	Type     string `json:"type"`
	Metric   int    `json:"metric"`
	Family   int    `json:"family"` // of a default route: 4 or 6
}

// Rule is a recorded policy rule.
type Rule struct {
	Family   int    `json:"family"` // 4 or 6
	Priority int    `json:"priority"`
	Table    string `json:"table"`
	Dst      string `json:"dst"`
	DstLen   int    `json:"dstlen"`
	IIf      string `json:"iif"`
	Mark     string `json:"fwmark"`
}

// Address is an address such as "10.0.0.1/32", or "169.254.1.1/30 link" with the scope link.
type Address string

// Prefix returns the address without its scope.
func (a Address) Prefix() (netip.Prefix, error) {
	text, _, _ := strings.Cut(string(a), " ")
	return netip.ParsePrefix(text)
}

func (a Address) linkScope() bool { return strings.HasSuffix(string(a), " link") }

// Addresses returns the addresses at which the pod is reached.
func (p Pod) Addresses() (list []netip.Addr) {
	own := p.Loopback
	for _, l := range p.Links {
		if len(own) == 0 && l.Name == p.Interface {
			own = l.Addresses
		}
	}
	for _, a := range own {
		if prefix, err := a.Prefix(); err == nil {
			list = append(list, prefix.Addr())
		}
	}
	return list
}

// Load returns a recorded cluster.
func Load(name string) (c Cluster, err error) {
	data, err := clusters.ReadFile("clusters/" + name + ".json")
	if err != nil {
		return c, err
	}
	if err := json.Unmarshal(data, &c); err != nil {
		return c, fmt.Errorf("read %s: %w", name, err)
	}
	return c, nil
}

// Objects returns the objects of a recorded cluster as YAML documents.
func Objects(name string) ([]byte, error) { return clusters.ReadFile("clusters/" + name + ".yaml") }

// Only returns the cluster with some of its nodes.
func (c Cluster) Only(nodes ...string) (out Cluster) {
	for _, n := range c.Nodes {
		for _, name := range nodes {
			if n.Name == name {
				out.Nodes = append(out.Nodes, n)
			}
		}
	}
	for _, p := range c.Pods {
		for _, n := range out.Nodes {
			if n.Name == p.Node {
				out.Pods = append(out.Pods, p)
			}
		}
	}
	return out
}
