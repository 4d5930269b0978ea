// Package openstack runs a real OpenStack Networking (Neutron) for the lab, the demo and tests: its server
// with MariaDB, with OVN's databases and northd or with RabbitMQ, optionally Keystone, and Open vSwitch with
// OVN's controller or Neutron's agent on each node. All are Debian's programs, started as child processes
// that die with their parent. Their packages are the group neutron of hack/deps.sh.
//
// Services run in one network namespace, on a separate bridge. Each node is a network namespace with two
// links to that bridge: one by which it reaches the services, and one below Open vSwitch for tunnels to the
// other nodes. Packets are switched in user space, since Open vSwitch's kernel module is not available
// everywhere.
//
//	openstack.go  options and the start order
//	programs.go   locations and lifecycle of the programs
//	ground.go     the bridge and the links of nodes
//	backends.go   the database, the message broker of the server and its agents, OVN's databases and northd
//	server.go     Neutron's server
//	keystone.go   Keystone
//	node.go       nodes
//	vswitch.go    Open vSwitch of a node, and the agent that programs it
//	call.go       requests
//	resources.go  networks, subnets, groups, ports
//	identity.go   projects, users, application credentials
package openstack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// Backend implements Neutron's networks on nodes.
type Backend string

// The backends.
const (
	OVN Backend = "ovn" // ML2 driver ovn: OVN's controller on each node, Geneve tunnels
	// Agent is the ML2 driver openvswitch: Neutron's agent on each node, with the firewall iptables_hybrid,
	// which gives each port a Linux bridge, and VXLAN tunnels.
	Agent Backend = "agent"
)

// Options describe an instance. Dir is required.
type Options struct {
	// Dir holds data, sockets and logs. Start removes its content first. It is part of socket paths and
	// configurations, so it must be short and consist of letters, digits and -_./ only.
	Dir string
	// Netns is the path of the network namespace of the services; empty: that of the caller.
	Netns    string
	Backend  Backend // OVN when empty
	Keystone bool    // requests to Neutron need a token
	// AgentDown is how long a silent agent counts as alive, in whole seconds; 30 s if zero.
	AgentDown time.Duration
	Progress  func(string) // called with one line per step, by several goroutines; may be nil
}

// Cloud is a running instance. Its methods may be called concurrently.
type Cloud struct {
	Options
	ground   *ground
	programs *programs // of the services
	keystone *keystone // nil: no Keystone
	server   *server

	mu      sync.Mutex // guards all below; never held across I/O
	nodes   map[string]*Node
	numbers map[int]bool // of nodes; true: in use
	closed  bool
}

// Start starts an instance without nodes and returns once Neutron responds, after about seven seconds on an
// idle machine. If ctx ends first or a program fails, only logs are left.
func Start(ctx context.Context, o Options) (*Cloud, error) {
	o, err := o.complete()
	if err != nil {
		return nil, err
	}
	p := &programs{Options: o}
	c := &Cloud{Options: o, programs: p, server: &server{programs: p}, nodes: map[string]*Node{}, numbers: map[int]bool{}}
	if err := c.startAll(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("start OpenStack in %s: %w", o.Dir, err), c.Close())
	}
	return c, nil
}

func (o Options) complete() (Options, error) {
	if os.Geteuid() != 0 {
		return o, errors.New("OpenStack's nodes are network namespaces: root is required")
	}
	if o.Dir == "" {
		return o, errors.New("directory of OpenStack: none given")
	}
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return o, fmt.Errorf("directory of OpenStack: %w", err)
	}
	if strings.ContainsFunc(dir, unusual) {
		return o, fmt.Errorf("directory of OpenStack: %s: expected letters, digits and -_./ only, as it is part of configurations", dir)
	}
	// The longest path of a socket in dir; the kernel accepts 107 bytes (unix(7)).
	if longest := filepath.Join(dir, nodesDir, strings.Repeat("n", longestName), "br-int.mgmt"); len(longest) > 107 {
		return o, fmt.Errorf("directory of OpenStack: %s: expected at most %d bytes, as it is part of socket paths", dir, 107-len(longest)+len(dir))
	}
	o.Dir = dir
	if o.Backend == "" {
		o.Backend = OVN
	}
	if o.Backend != OVN && o.Backend != Agent {
		return o, fmt.Errorf("backend: %q: expected %s or %s", o.Backend, OVN, Agent)
	}
	if o.AgentDown == 0 {
		o.AgentDown = 30 * time.Second
	}
	if o.AgentDown < 3*time.Second {
		return o, fmt.Errorf("AgentDown %v: expected at least 3 s; agents report every third of it", o.AgentDown)
	}
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	return o, o.installed()
}

// unusual reports whether a character would have to be quoted in a configuration.
func unusual(r rune) bool {
	return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./", r))
}

// startAll starts all programs concurrently, except where one needs another: loading Python takes most of
// the time.
func (c *Cloud) startAll(ctx context.Context) error {
	if err := os.RemoveAll(c.Dir); err != nil {
		return err
	}
	for _, dir := range []string{c.Dir, c.in(logDir), c.in(nodesDir)} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	var err error
	if c.ground, err = newGround(c.Netns); err != nil {
		return err
	}
	if err := c.programs.startDatabase(); err != nil {
		return err
	}
	tokens := "" // the section of Neutron's configuration
	if c.Keystone {
		if c.keystone, err = startKeystone(c.programs); err != nil {
			return err
		}
		tokens = c.keystone.tokensConf()
	}
	g, groupCtx := errgroup.WithContext(ctx)
	if c.Keystone {
		g.Go(func() error { return c.keystone.wait(groupCtx) })
	}
	if c.Backend == Agent { // the server waits for it
		g.Go(func() error { return c.programs.startRabbit(groupCtx) })
	}
	c.Progress(c.summary())
	g.Go(func() error {
		if c.Backend == OVN {
			if err := c.programs.startOVN(groupCtx); err != nil {
				return err
			}
		}
		return c.server.start(groupCtx, tokens)
	})
	return g.Wait()
}

// summary describes what is starting.
func (o Options) summary() string {
	parts := []string{"MariaDB", "OVN's databases", "neutron-server"}
	if o.Backend == Agent {
		parts[1] = "RabbitMQ"
	}
	if o.Keystone {
		parts = append(parts, "Keystone")
	}
	return "starting " + strings.Join(parts, ", ")
}

// Close kills every program and removes everything but the logs. A second Close does nothing.
func (c *Cloud) Close() error {
	c.mu.Lock()
	closed := c.closed
	c.closed = true
	c.mu.Unlock()
	if closed {
		return nil
	}
	var errs []error
	for _, n := range c.Nodes() {
		errs = append(errs, n.remove())
	}
	errs = append(errs, end(c.programs.running()))
	if c.ground != nil {
		errs = append(errs, c.ground.close())
	}
	for _, name := range []string{databaseDir, ovnDir, rabbitDir, nodesDir, keysDir, lockDir} {
		errs = append(errs, os.RemoveAll(c.in(name)))
	}
	return errors.Join(errs...)
}

// Folders of an instance.
const (
	logDir      = "log"
	databaseDir = "mysql"
	ovnDir      = "ovn"
	rabbitDir   = "rabbit"
	nodesDir    = "n"
	keysDir     = "keys"
	lockDir     = "lock"
)

// in returns a path in the instance's directory.
func (o Options) in(parts ...string) string {
	return filepath.Join(append([]string{o.Dir}, parts...)...)
}
