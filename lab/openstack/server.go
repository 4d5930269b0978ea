package openstack

import (
	"context"
	_ "embed" // the programs in Python
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/berthnet/berth/lab/run/proc"
)

//go:embed neutron.py
var neutronScript []byte

const (
	neutronPort = 9696
	// apiPaste is Neutron's api-paste.ini as Debian packages it.
	apiPaste = "/usr/share/neutron-common/api-paste.ini"
)

// Endpoint returns the URL for clients in the services' namespace and on nodes: Keystone's, or Neutron's if
// there is no Keystone.
func (c *Cloud) Endpoint() string {
	if c.Keystone {
		return keystoneURL()
	}
	return neutronURL()
}

func neutronURL() string {
	return "http://" + netip.AddrPortFrom(services.Addr(), neutronPort).String()
}

// server is Neutron's server.
type server struct {
	programs *programs
	process  *proc.Process // nil before start
}

// start starts the server and returns once it can create ports. tokens is appended to its configuration.
func (c *server) start(ctx context.Context, tokens string) error {
	began := time.Now()
	if err := os.MkdirAll(c.programs.in(lockDir), 0o755); err != nil {
		return err
	}
	script := c.programs.in("neutron.py")
	for file, text := range map[string]string{
		c.programs.in("neutron.conf"): c.programs.neutronConf(tokens), c.programs.in("ml2.ini"): c.programs.ml2Conf(), c.programs.in("policy.yaml"): policy, script: string(neutronScript),
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return err
		}
	}
	var err error
	c.process, err = c.programs.service(program{what: "neutron-server", name: "python3", args: []string{
		"-P", script, c.programs.database("neutron"), "--config-file", c.programs.in("neutron.conf"), "--config-file", c.programs.in("ml2.ini"),
	}})
	if err != nil {
		return err
	}
	return c.wait(ctx, began)
}

// wait returns once Neutron can create ports.
func (c *server) wait(ctx context.Context, began time.Time) error {
	err := c.programs.within(ctx, "neutron-server, which logs to "+c.process.LogFile(), func(ctx context.Context) error {
		_, err := c.programs.do(ctx, call{method: "GET", url: neutronURL() + "/"}, nil)
		return err
	})
	if err == nil && c.programs.Backend == OVN {
		err = c.programs.waitDriver(ctx, c.process)
	}
	if err == nil {
		c.programs.Progress(fmt.Sprintf("Neutron responds at %s, %.1f s after its start", neutronURL(), time.Since(began).Seconds()))
	}
	return err
}

// KillServer kills Neutron's server with its workers. Its API does not respond until RestartServer.
func (c *Cloud) KillServer() error { return end([]*proc.Process{c.server.process}) }

// RestartServer starts Neutron's server again, with its existing databases, and returns once it can create
// ports.
func (c *Cloud) RestartServer(ctx context.Context) error {
	began := time.Now()
	if err := c.server.process.Start(); err != nil {
		return err
	}
	return c.server.wait(ctx, began)
}

// neutronConf returns the configuration of the server and the agents, with tokens appended.
func (o Options) neutronConf(tokens string) string {
	auth, transport, workers, plugins := "noauth", "fake://", "api_workers = 1\nrpc_workers = 0", "ovn-router"
	if o.Backend == Agent {
		// One process is enough: with the agent's driver the server has no background work.
		transport, workers, plugins = "rabbit://guest:guest@"+services.Addr().String()+":5672/", "api_workers = 0\nrpc_workers = 1", ""
	}
	if o.Keystone {
		auth = "keystone"
	}
	return fmt.Sprintf(`[DEFAULT]
use_stderr = true
bind_host = %s
bind_port = %d
auth_strategy = %s
core_plugin = ml2
service_plugins = %s
state_path = %s
transport_url = %s
%s
rpc_state_report_workers = 0
agent_down_time = %d
notify_nova_on_port_status_changes = false
notify_nova_on_port_data_changes = false
dhcp_agent_notification = false
api_paste_config = %s
[agent]
report_interval = %d
[database]
connection = %s
[oslo_concurrency]
lock_path = %s
[oslo_policy]
enforce_scope = false
enforce_new_defaults = false
policy_file = %s
%s`, services.Addr(), neutronPort, auth, plugins, o.Dir, transport, workers,
		int(o.AgentDown.Seconds()), apiPaste, int(o.AgentDown.Seconds())/3, o.database("neutron"), o.in(lockDir), o.in("policy.yaml"), tokens)
}

// ml2Conf returns the configuration of the core plugin ML2.
func (o Options) ml2Conf() string {
	types, driver, more := "geneve", "ovn", fmt.Sprintf("[ml2_type_geneve]\nvni_ranges = 1:1000\nmax_header_size = 38\n[ovn]\novn_nb_connection = tcp:%[1]s:%[2]d\novn_sb_connection = tcp:%[1]s:%[3]d\n",
		services.Addr(), northboundPort, southboundPort)
	if o.Backend == Agent {
		types, driver, more = "vxlan", "openvswitch", "[ml2_type_vxlan]\nvni_ranges = 1:1000\n"
	}
	return strings.Join([]string{
		"[ml2]", "type_drivers = " + types + ",flat,local", "tenant_network_types = " + types, "mechanism_drivers = " + driver, "extension_drivers = port_security",
		"[securitygroup]", "enable_security_group = true", more,
	}, "\n")
}

// policy grants the role Role the permissions that Berth needs in addition to those of a project member
// (see package internal/vpcport/neutron).
var policy = func() string {
	var b strings.Builder
	for _, rule := range []string{
		"create_port:binding:host_id", "update_port:binding:host_id", "get_port:binding:host_id", "get_port:binding:vif_type", "get_port:binding:vif_details", "create_port:mac_address",
	} {
		fmt.Fprintf(&b, "%q: \"rule:admin_only or role:%s\"\n", rule, Role)
	}
	return b.String()
}()

// Role is the role of users who may bind ports and choose their MAC addresses.
const Role = "berth"
