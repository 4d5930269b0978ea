package portcloud

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/lab/cloud/alcorfake"
	"github.com/berthnet/berth/lab/cloud/httpreply"
	"github.com/berthnet/berth/lab/network/hub"
	"github.com/berthnet/berth/lab/network/ovn"
)

const (
	// gatewayPort is the port of Alcor's API gateway, as in Alcor's own configuration.
	gatewayPort = 9009
	// alcorProject is the project of all resources.
	alcorProject = "3dda2801-d675-4688-a63f-dcda8d327f50"
	// alcorMTU is the MTU of VPCs in bytes.
	alcorMTU = 1450
)

// Alcor is the strict fake of Alcor. On each node an agent puts ports into namespaces of their VPCs; a hub for each VPC
// connects the nodes and routes between its subnets. There is no packet filter.
type Alcor struct {
	// Managers contains the state; tests inject failures, wrong replies and changes.
	Managers *alcorfake.Cloud

	options Options
	server  *http.Server

	mu     sync.Mutex // guards all below; never held across kernel calls
	hubs   map[string]*hub.Hub
	agents map[string]*host // by name
	ended  error            // errors of agents that have ended
}

// host is a node with its agent, which may have crashed.
type host struct {
	options alcorfake.AgentOptions
	*alcorfake.Agent
}

// NewAlcor starts an Alcor without networks.
func NewAlcor(_ context.Context, o Options) (Cloud, error) {
	a := &Alcor{Managers: alcorfake.New(alcorfake.Options{}), options: o, hubs: map[string]*hub.Hub{}, agents: map[string]*host{}}
	ln, err := ns.Listen(o.Netns, netip.AddrPortFrom(o.Address, gatewayPort))
	if err != nil {
		return nil, err
	}
	a.server = httpreply.Server(a.Managers, o.Log.Handler())
	a.server.ConnState = reset
	go func() { _ = a.server.Serve(ln) }()
	o.Progress(fmt.Sprintf("Alcor (strict fake) at %s", a.Access().Endpoint))
	return a, nil
}

// Access implements Cloud.
func (a *Alcor) Access() Access {
	return Access{
		Provider: v1alpha1.ProviderAlcor, Project: alcorProject,
		Endpoint: fmt.Sprintf("http://%s", netip.AddrPortFrom(a.options.Address, gatewayPort)),
	}
}

// Join implements Cloud. The nodes of a lab share the directory of namespaces, so each has its own prefix in addition to
// that of PodNICs.
func (a *Alcor) Join(_ context.Context, h Host) (Joined, error) {
	prefix := filepath.Base(h.Netns) + "-" + alcorfake.DefaultPrefix
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.agents[h.Name] != nil {
		return Joined{}, fmt.Errorf("host %s already exists", h.Name)
	}
	a.Managers.AddHost(h.Name, alcorfake.Host{})
	o := alcorfake.AgentOptions{
		Host: h.Name, Netns: h.Netns, Prefix: prefix,
		Uplink: func(vpc, bridge string) error {
			a.mu.Lock()
			to := a.hubs[vpc]
			a.mu.Unlock()
			if to == nil {
				return fmt.Errorf("VPC %s does not exist", vpc)
			}
			return to.Join(h.Netns, bridge, "alcu"+vpc[:11])
		},
	}
	a.agents[h.Name] = &host{o, a.Managers.StartAgent(o)}
	return Joined{NetnsPrefixes: []string{alcorfake.DefaultPrefix, prefix}}, nil
}

// Leave implements Cloud. The node manager keeps the host, like one that is powered off.
func (a *Alcor) Leave(host string) error {
	a.mu.Lock()
	agent := a.agents[host]
	delete(a.agents, host)
	a.mu.Unlock()
	if agent == nil {
		return nil
	}
	err := agent.Close()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ended = errors.Join(a.ended, err)
	return err
}

// host returns a host that has joined.
func (a *Alcor) host(name string) (*host, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if h := a.agents[name]; h != nil {
		return h, nil
	}
	return nil, fmt.Errorf("host %s does not exist", name)
}

// Crash ends the agent of a host without cleanup, until Revive.
func (a *Alcor) Crash(name string) error {
	h, err := a.host(name)
	if err == nil {
		h.Agent.Crash()
	}
	return err
}

// Revive starts the agent of a host again.
func (a *Alcor) Revive(name string) error {
	h, err := a.host(name)
	if err != nil {
		return err
	}
	again := &host{h.options, a.Managers.StartAgent(h.options)}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.agents[name], a.ended = again, errors.Join(a.ended, h.Err())
	return nil
}

// AddNetwork implements Cloud.
func (a *Alcor) AddNetwork(_ context.Context, n Network) (Network, error) {
	if n.Routed {
		return n, fmt.Errorf("network %s: the lab's Alcor does not support networks that are routed to the outside", n.Name)
	}
	n.ID = a.Managers.AddNetwork(alcorfake.Network{Name: n.Name, Project: alcorProject, MTU: alcorMTU}).ID
	n.Subnets = slices.Clone(n.Subnets)
	var routers []netip.Prefix
	for i, s := range n.Subnets {
		n.Subnets[i].ID = a.Managers.AddSubnet(alcorfake.Subnet{Name: s.Name, Network: n.ID, CIDR: s.CIDR, Gateway: s.Gateway()}).ID
		routers = append(routers, netip.PrefixFrom(s.Gateway(), s.CIDR.Bits()))
	}
	made, err := hub.New(filepath.Base(a.options.Netns)+"-"+n.ID, alcorMTU, routers...)
	if err != nil {
		return n, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.hubs[n.ID] = made
	return n, nil
}

// AddGroup implements Cloud.
func (a *Alcor) AddGroup(context.Context, string, ...Rule) (id string, err error) {
	return a.Managers.AddGroup(), nil
}

// Allow implements Cloud: everything is allowed.
func (a *Alcor) Allow(context.Context, string, Rule) error { return nil }

// AddPort implements Cloud.
func (a *Alcor) AddPort(_ context.Context, p Port) (Port, error) {
	made := alcorfake.Port{Name: p.Name, Network: p.Network, Project: alcorProject, Groups: p.Groups, Tags: p.Tags}
	for _, at := range p.Addresses {
		made.FixedIPs = append(made.FixedIPs, alcorfake.FixedIP{Subnet: at.Subnet, IP: at.IP})
	}
	return portOfAlcor(a.Managers.AddPort(made)), nil
}

// RemovePort implements Cloud.
func (a *Alcor) RemovePort(_ context.Context, id string) error {
	a.Managers.Remove(id)
	return nil
}

// Ports implements Cloud.
func (a *Alcor) Ports(context.Context) (all []Port, err error) {
	for _, p := range a.Managers.Ports() {
		all = append(all, portOfAlcor(p))
	}
	return all, nil
}

// unbound is Berth's tag for a port without a host, which Alcor cannot express.
const unbound = "berth:unbound"

func portOfAlcor(p alcorfake.Port) Port {
	out := Port{
		ID: p.ID, Name: p.Name, Network: p.Network, Device: p.Device, Owner: p.Owner, MAC: p.MAC,
		Groups: p.Groups, Host: p.Host, Status: cmp.Or(p.Status, "DOWN"),
	}
	if slices.Contains(p.Tags, unbound) {
		out.Host = ""
	}
	for _, f := range p.FixedIPs {
		out.Addresses = append(out.Addresses, Address{Subnet: f.Subnet, IP: f.IP})
	}
	return out
}

// Plugged implements Cloud.
func (a *Alcor) Plugged(_ context.Context, host string) (all []ovn.Interface, err error) {
	ends, err := a.ends(host)
	for _, port := range slices.Sorted(maps.Keys(ends)) {
		if !ends[port].Home {
			all = append(all, ovn.Interface{Link: ends[port].Link, Port: port})
		}
	}
	return all, err
}

// Home returns the ports on a host that no pod uses: their links are in the VPC's namespace, as created by the agent.
func (a *Alcor) Home(host string) (ports []string, err error) {
	ends, err := a.ends(host)
	for _, port := range slices.Sorted(maps.Keys(ends)) {
		if ends[port].Home {
			ports = append(ports, port)
		}
	}
	return ports, err
}

func (a *Alcor) ends(host string) (map[string]alcorfake.End, error) {
	h, err := a.host(host)
	if err != nil {
		return nil, err
	}
	return h.Ends()
}

// Alive implements Cloud.
func (a *Alcor) Alive() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	errs := []error{a.ended}
	for host, agent := range a.agents {
		if err := agent.Err(); err != nil {
			errs = append(errs, fmt.Errorf("Alcor's agent on %s: %w", host, err))
		}
	}
	if odd := a.Managers.Ignored(); len(odd) > 0 {
		errs = append(errs, fmt.Errorf("requests to Alcor contained unknown names: %q", odd))
	}
	return errors.Join(errs...)
}

// Close implements Cloud.
func (a *Alcor) Close() error {
	errs := []error{a.server.Close()}
	a.mu.Lock()
	hosts, hubs := slices.Sorted(maps.Keys(a.agents)), slices.Collect(maps.Values(a.hubs))
	a.mu.Unlock()
	for _, host := range hosts {
		errs = append(errs, a.Leave(host))
	}
	for _, h := range hubs {
		errs = append(errs, h.Close())
	}
	return errors.Join(errs...)
}

var _ Cloud = (*Alcor)(nil)
