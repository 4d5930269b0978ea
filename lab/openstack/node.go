package openstack

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"

	"github.com/berthnet/berth/lab/run/proc"
)

// longestName is the maximum length of a node's name in bytes: it is part of the paths of sockets.
const longestName = 42

var validName = regexp.MustCompile(fmt.Sprintf(`^[a-z0-9]([a-z0-9-]{0,%d}[a-z0-9])?$`, longestName-2))

// Node is a node of OpenStack. Ports are bound to it by its name.
type Node struct {
	Name   string
	netns  string
	number int
	dir    string
	cloud  *Cloud

	mu       sync.Mutex // guards programs; never held across I/O
	programs []*proc.Process
}

func (n *Node) running() []*proc.Process {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.programs)
}

// Join makes a network namespace a node, with links to the services and the other nodes, Open vSwitch with
// br-int, and the agent that programs it. Join returns once Neutron binds ports to the node. The caller owns
// the namespace, and calls Leave before or after its removal.
func (c *Cloud) Join(ctx context.Context, name, netns string) (*Node, error) {
	if !validName.MatchString(name) {
		return nil, fmt.Errorf("node name %q: expected at most %d lower-case letters, digits and dashes", name, longestName)
	}
	n, err := c.register(name, netns)
	if err != nil {
		return nil, err
	}
	if err := n.start(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("join node %s to OpenStack: %w", name, err), n.Leave())
	}
	return n, nil
}

// register assigns an unused number to a node.
func (c *Cloud) register(name, netns string) (*Node, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, errors.New("OpenStack is closed")
	}
	if c.nodes[name] != nil {
		return nil, fmt.Errorf("node %s has already joined", name)
	}
	for number := firstNumber; number < firstNumber+maxNodes; number++ {
		if !c.numbers[number] {
			n := &Node{Name: name, netns: netns, number: number, dir: c.in(nodesDir, name), cloud: c}
			c.nodes[name], c.numbers[number] = n, true
			return n, nil
		}
	}
	return nil, fmt.Errorf("join node %s: the maximum of %d nodes is reached", name, maxNodes)
}

// Nodes lists the nodes by name.
func (c *Cloud) Nodes() []*Node {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []*Node
	for _, name := range slices.Sorted(maps.Keys(c.nodes)) {
		out = append(out, c.nodes[name])
	}
	return out
}

func (n *Node) start(ctx context.Context) error {
	if err := os.MkdirAll(n.dir, 0o755); err != nil {
		return err
	}
	if err := n.cloud.ground.join(n.netns, n.number); err != nil {
		return err
	}
	if err := n.startSwitch(ctx); err != nil {
		return err
	}
	start := n.startController
	if n.cloud.Backend == Agent {
		start = n.startAgent
	}
	if err := start(); err != nil {
		return err
	}
	if err := n.agent().Wait(ctx, func() error { return n.Alive(ctx) }); err != nil {
		return err
	}
	n.cloud.Progress(fmt.Sprintf("node %s has joined, tunnel address %s", n.Name, n.tunnel().Addr()))
	return nil
}

// agent returns the process that programs Open vSwitch, which is the last one to start.
func (n *Node) agent() *proc.Process {
	programs := n.running()
	return programs[len(programs)-1]
}

// KillAgent kills the process that programs the node's Open vSwitch: OVN's controller or Neutron's agent.
// Plugged ports keep working. Neutron binds no further ports to the node once the agent has been silent for
// Options.AgentDown.
func (n *Node) KillAgent() error { return end([]*proc.Process{n.agent()}) }

// RestartAgent starts the agent again.
func (n *Node) RestartAgent() error { return n.agent().Start() }

// run starts a program on the node.
func (n *Node) run(p program) (*proc.Process, error) {
	p.what, p.netns, p.dir = p.what+" of "+n.Name, n.netns, n.dir
	p.env = append(p.env, "OVS_RUNDIR="+n.dir, "OVN_RUNDIR="+n.dir, "OVS_LOGDIR="+n.dir)
	started, err := n.cloud.start(p)
	if err == nil {
		n.mu.Lock()
		n.programs = append(n.programs, started)
		n.mu.Unlock()
	}
	return started, err
}

func (n *Node) socket() string { return filepath.Join(n.dir, "db.sock") }

// Netns is the path of the node's network namespace.
func (n *Node) Netns() string { return n.netns }

// OVSDB is the endpoint of the node's Open vSwitch database, unix:PATH.
func (n *Node) OVSDB() string { return "unix:" + n.socket() }

// tunnel returns the node's tunnel endpoint address.
func (n *Node) tunnel() netip.Prefix { return at(tunnelsNet, n.number) }

// Leave kills the node's programs, as a power failure does: Neutron is not notified. A node of the same
// name may join again.
func (n *Node) Leave() error {
	err := n.remove()
	n.cloud.mu.Lock()
	defer n.cloud.mu.Unlock()
	if n.cloud.nodes[n.Name] == n {
		delete(n.cloud.nodes, n.Name)
		delete(n.cloud.numbers, n.number)
	}
	return err
}

// remove kills the node's programs and disconnects the node.
func (n *Node) remove() error {
	return errors.Join(end(n.running()), n.cloud.ground.leave(n.number), os.RemoveAll(n.dir))
}
