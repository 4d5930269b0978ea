package openstack

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"

	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/lab/run/proc"
)

// Names in Open vSwitch.
const (
	IntegrationBridge = "br-int" // into which ports are plugged
	tunnelBridge      = "br-phy" // with the node's tunnel endpoint
)

// startSwitch starts Open vSwitch on a node, and returns once both bridges exist. Tunnels in user space need
// an address on a bridge, not on a link (Open vSwitch, "Userspace datapath - tunneling").
func (n *Node) startSwitch(ctx context.Context) error {
	file := filepath.Join(n.dir, "conf.db")
	if _, err := n.cloud.once(ctx, program{name: "ovsdb-tool", args: []string{"create", file, "/usr/share/openvswitch/vswitch.ovsschema"}}); err != nil {
		return err
	}
	remotes := []string{file, "--remote=punix:" + n.socket(), "--unixctl=" + filepath.Join(n.dir, "ovsdb.ctl"), "-vconsole:warn"}
	if n.cloud.Backend == Agent {
		remotes = append(remotes, "--remote=ptcp:6640:127.0.0.1")
	}
	db, err := n.run(program{what: "ovsdb-server", name: "ovsdb-server", args: remotes})
	if err != nil {
		return err
	}
	if err := db.Wait(ctx, func() error { return proc.Listens(ctx, n.socket()) }); err != nil {
		return err
	}
	if err := n.vsctl(ctx, n.configuration()...); err != nil {
		return err
	}
	switchd, err := n.run(program{what: "ovs-vswitchd", name: "ovs-vswitchd", args: []string{
		"unix:" + n.socket(), "--unixctl=" + filepath.Join(n.dir, "vswitchd.ctl"), "-vconsole:warn",
	}})
	if err != nil {
		return err
	}
	// ovs-vswitchd creates the links of the bridges.
	return switchd.Wait(ctx, func() error {
		return ns.Netlink(n.netns, func(h *netlink.Handle) error {
			if _, err := h.LinkByName(IntegrationBridge); err != nil {
				return fmt.Errorf("link %s: %w", IntegrationBridge, err)
			}
			return ns.Configure(h, tunnelBridge, []netip.Prefix{n.tunnel()}, nil)
		})
	})
}

// configuration returns arguments of ovs-vsctl for the rows of OVSDB. Bridges are switched in user space, by
// one thread.
func (n *Node) configuration() []string {
	args := []string{
		"init", "--", "set", "Open_vSwitch", ".", "external_ids:system-id=" + n.Name, "external_ids:hostname=" + n.Name,
		"other_config:n-handler-threads=1", "other_config:n-revalidator-threads=1",
	}
	if n.cloud.Backend == OVN {
		args = append(args, fmt.Sprintf("external_ids:ovn-remote=\"tcp:%s:%d\"", services.Addr(), southboundPort), "external_ids:ovn-encap-type=geneve",
			"external_ids:ovn-encap-ip="+n.tunnel().Addr().String(), "external_ids:ovn-bridge="+IntegrationBridge, "external_ids:ovn-bridge-datapath-type=netdev")
	}
	for _, bridge := range []string{IntegrationBridge, tunnelBridge} {
		args = append(args, "--", "add-br", bridge, "--", "set", "Bridge", bridge, "datapath_type=netdev")
	}
	return append(args, "--", "set", "Bridge", IntegrationBridge, "fail_mode=secure", "--", "add-port", tunnelBridge, tunnelLink)
}

// vsctl changes the node's OVSDB, before ovs-vswitchd runs or while it does.
func (n *Node) vsctl(ctx context.Context, args ...string) error {
	_, err := n.cloud.once(ctx, program{name: "ovs-vsctl", args: append([]string{"--db=unix:" + n.socket(), "--no-wait"}, args...), netns: n.netns})
	return err
}

// startController starts OVN's controller.
func (n *Node) startController() error {
	_, err := n.run(program{what: "ovn-controller", name: "ovn-controller", args: []string{"unix:" + n.socket(), "-vconsole:warn"}})
	return err
}

// Alive returns an error if Neutron would not bind a port to the node. With OVN, each request for agents
// makes Neutron check the controller, but at most twice per Options.AgentDown.
func (n *Node) Alive(ctx context.Context) error {
	agents, err := n.cloud.agents(ctx, n.Name)
	if err != nil {
		return err
	}
	for _, a := range agents {
		if a.Alive && a.Host == n.Name {
			return nil
		}
	}
	return errors.New("Neutron has no live agent on the node")
}

// startAgent starts Neutron's agent, which requires Linux bridges between ports and br-int.
func (n *Node) startAgent() error {
	file := filepath.Join(n.dir, "agent.ini")
	text := fmt.Sprintf(`[DEFAULT]
host = %s
state_path = %s
[oslo_concurrency]
lock_path = %s
[ovs]
local_ip = %s
datapath_type = netdev
ovsdb_connection = tcp:127.0.0.1:6640
[agent]
tunnel_types = vxlan
polling_interval = 1
root_helper =
[securitygroup]
enable_security_group = true
firewall_driver = iptables_hybrid
`, n.Name, n.dir, n.dir, n.tunnel().Addr())
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return err
	}
	_, err := n.run(program{what: "neutron-openvswitch-agent", name: "neutron-openvswitch-agent", args: []string{
		"--config-file", n.cloud.in("neutron.conf"), "--config-file", file,
	}})
	return err
}
