package config

import (
	"errors"
	"strings"
	"time"
)

// defaultOVSDB is the socket of distributions' Open vSwitch (ovsdb-server(1)).
const defaultOVSDB = "unix:/run/openvswitch/db.sock"

// PortSettings are the settings of VPC ports.
type PortSettings struct {
	VPCPorts        bool     // ports in addition to another source of addresses; see Config.HasPorts
	OVSDB           string   // empty: there is no Open vSwitch
	OVSBridges      []string // bridges for ports
	PortWait        time.Duration
	AgentNamespaces []string // name prefixes of VPCs' network namespaces
	AgentWait       time.Duration
	GroupEnforcing  string // strict or standard
}

func (c *PortSettings) rows() []Setting {
	return []Setting{
		{Flag: "vpc-ports", Default: "false", bare: true, parse: boolean(&c.VPCPorts),
			Doc: "Give pods the NICs that their annotation berth.dev/nics asks for, in addition to the interface with the address of ipam. The NICs are ports of a VPC, which the operator creates and binds to this node. Always enabled with ipam=port, where the first interface is such a NIC, too."},
		{Flag: "ovsdb", Default: defaultOVSDB, parse: checked(&c.OVSDB, orEmpty(ovsdbEndpoint)),
			Doc: "With ports of VPCs, the database of this node's Open vSwitch: unix:PATH or tcp:HOST:PORT. Empty: there is none, and ports of the types OVS and OVSHybrid are not plugged."},
		{Flag: "ovs-bridges", Default: "br-int", parse: list(&c.OVSBridges, bridgeName),
			Doc: "With ports of VPCs, the bridges of Open vSwitch that ports may be plugged into, separated by commas. PodNICs that name another bridge are rejected."},
		{Flag: "port-wait", Default: "45s", parse: duration(&c.PortWait, 0, 9*time.Minute),
			Doc: "With ports of VPCs, how long an ADD waits until the pod's ports are bound to this node, plugged, and carry packets, before it fails with code 11 (try again later). An ADD that also needs an address waits for both together, for the longer of this and warm-wait."},
		{Flag: "agent-netns-prefixes", Default: "vpc-ns-,vpc-ns", parse: list(&c.AgentNamespaces, netnsPrefix),
			Doc: "With ports that an agent of the provider places in network namespaces, as Alcor's does: the prefixes of these namespaces' names, separated by commas. No other namespace is entered."},
		{Flag: "agent-wait", Default: "3s", parse: duration(&c.AgentWait, time.Millisecond, 10*time.Minute),
			Doc: "With ports that an agent of the provider places in network namespaces, as Alcor's does: how long an ADD waits for the agent to create a port's link once the port is bound. At most one minute, and within port-wait."},
		{Flag: "pod-security-group-enforcing-mode", Env: []string{"POD_SECURITY_GROUP_ENFORCING_MODE"}, Default: "strict", parse: oneOf(&c.GroupEnforcing, "strict", "standard"),
			Doc: "With ports of VPCs in addition to addresses of ENIs (ipam=eni-operator): where the security groups of a pod whose first interface is a branch interface are enforced. `strict`: on all packets of the pod, which pass its branch interface even to its own node and to pods there. `standard`: not on packets that stay on the node, nor on packets that leave the VPC, which use the node's own link with NAT as for other pods. A pod keeps the mode with which it started."},
	}
}

// contradictionsOfPorts returns the contradictions of these settings.
func (c *Config) contradictionsOfPorts() []error {
	return wrongTogether([]contradiction{
		{c.AgentWait > time.Minute, "--agent-wait is more than 1m: an ADD that waits for an agent holds the pod's lock"},
		{c.HasPorts() && c.OVSDB != "" && len(c.OVSBridges) == 0, "--ovs-bridges is empty: expected the bridges that ports may be plugged into, or an empty --ovsdb"},
	})
}

func ovsdbEndpoint(s string) error {
	kind, rest, _ := strings.Cut(s, ":")
	if kind == "unix" && strings.HasPrefix(rest, "/") {
		return nil
	}
	if kind != "tcp" || hostPort(rest) != nil {
		return errors.New("expected unix:/PATH or tcp:HOST:PORT")
	}
	return nil
}

// bridgeName accepts the name of a link (dev_valid_name of the kernel, IFNAMSIZ).
func bridgeName(s string) error {
	if s == "" || len(s) > 15 || s == "." || s == ".." || strings.ContainsAny(s, "/: \t\n") {
		return errors.New("expected the name of a bridge, of 15 characters at most")
	}
	return nil
}

func netnsPrefix(s string) error {
	if s == "" || s[0] == '.' || strings.ContainsAny(s, "/ ") {
		return errors.New("expected the prefix of a file name")
	}
	return nil
}
