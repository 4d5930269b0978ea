package config

import (
	"errors"
	"strings"
	"time"
)

// defaultOVSDB is where the Open vSwitch of distributions listens (ovsdb-server(1)).
const defaultOVSDB = "unix:/run/openvswitch/db.sock"

// PortSettings are those of VPC ports.
type PortSettings struct {
	VPCPorts        bool     // also beside another source of addresses; see Config.HasPorts
	OVSDB           string   // empty: there is no Open vSwitch
	OVSBridges      []string // that ports may be plugged into
	PortWait        time.Duration
	AgentNamespaces []string // what names of VPCs' network namespaces begin with
	AgentWait       time.Duration
	GroupEnforcing  string // strict or standard
}

func (c *PortSettings) rows() []Setting {
	return []Setting{
		{Flag: "vpc-ports", Default: "false", bare: true, parse: boolean(&c.VPCPorts),
			Doc: "Give pods the NICs that their annotation berth.dev/nics asks for, beside the interface with the address of ipam. They are ports of a VPC, which the operator has made and bound to this node. Always so with ipam=port, where the first interface is such a NIC too."},
		{Flag: "ovsdb", Default: defaultOVSDB, parse: checked(&c.OVSDB, orEmpty(ovsdbEndpoint)),
			Doc: "With ports of VPCs, where the database of this node's Open vSwitch is: unix:PATH or tcp:HOST:PORT. Empty where there is none: then no port of the types OVS and OVSHybrid is plugged."},
		{Flag: "ovs-bridges", Default: "br-int", parse: list(&c.OVSBridges, bridgeName),
			Doc: "With ports of VPCs, the bridges of Open vSwitch that ports may be plugged into, separated by commas. A PodNIC that names another is refused."},
		{Flag: "port-wait", Default: "45s", parse: duration(&c.PortWait, 0, 9*time.Minute),
			Doc: "With ports of VPCs, how long an ADD waits until a pod's ports are bound to this node, are plugged and carry packets, before it fails with code 11 (try again later). An ADD that needs an address too waits for the longer of this and warm-wait, for all together."},
		{Flag: "agent-netns-prefixes", Default: "vpc-ns-,vpc-ns", parse: list(&c.AgentNamespaces, netnsPrefix),
			Doc: "With ports that an agent of the provider puts into network namespaces, as Alcor's does: what the names of these namespaces begin with, separated by commas. No other namespace is entered."},
		{Flag: "agent-wait", Default: "3s", parse: duration(&c.AgentWait, time.Millisecond, 10*time.Minute),
			Doc: "With ports that an agent of the provider puts into network namespaces, as Alcor's does: how long an ADD waits for the agent to have made a port's link, once the port is bound; a minute at most, and no longer than port-wait allows for all together."},
		{Flag: "pod-security-group-enforcing-mode", Env: []string{"POD_SECURITY_GROUP_ENFORCING_MODE"}, Default: "strict", parse: oneOf(&c.GroupEnforcing, "strict", "standard"),
			Doc: "With ports of VPCs beside addresses of ENIs (ipam=eni-operator): where the security groups of a pod whose first interface is a branch interface are enforced. `strict`: on all packets from and to the pod, which take its branch, also those between it and its own node, or another pod there. `standard`: not on what stays on the node, nor on what leaves the VPC, which goes by the node's own link, translated, where the node translates that of other pods. A pod keeps the mode that it began with."},
	}
}

// contradictionsOfPorts is contradictions of these settings.
func (c *Config) contradictionsOfPorts() []error {
	return wrongTogether([]contradiction{
		{c.AgentWait > time.Minute, "--agent-wait is more than 1m: whoever waits for an agent holds the pod's lock"},
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

// bridgeName is that of a link (dev_valid_name of the kernel, IFNAMSIZ).
func bridgeName(s string) error {
	if s == "" || len(s) > 15 || s == "." || s == ".." || strings.ContainsAny(s, "/: \t\n") {
		return errors.New("expected the name of a bridge, of 15 characters at most")
	}
	return nil
}

func netnsPrefix(s string) error {
	if s == "" || s[0] == '.' || strings.ContainsAny(s, "/ ") {
		return errors.New("expected the beginning of a file name")
	}
	return nil
}
