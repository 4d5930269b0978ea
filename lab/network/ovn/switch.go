package ovn

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/lab/network/openvswitch"
	"github.com/berthnet/berth/lab/run/proc"
)

// Bridge is the integration bridge of every node.
const Bridge = "br-int"

// Link of a node to the underlay, and the bridge with the node's address on it: in user space, Open vSwitch only makes
// tunnels through one of its bridges.
const (
	tunnelLink   = "tun0"
	tunnelBridge = "br-phy"
)

// Switch is Open vSwitch and OVN's controller on a node.
type Switch struct {
	Node   string // name of the node and its chassis
	runner openvswitch.Runner
	number int
}

// AddNode makes a namespace a node. dir contains its sockets, state the database, which survives a restart of the machine.
// It returns when br-int exists.
func (v *OVN) AddNode(ctx context.Context, name, netns, dir, state string) (*Switch, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	s := &Switch{Node: name, runner: openvswitch.Runner{Programs: v.central.Programs, Who: name, Netns: netns, Dir: dir, Logs: v.central.Logs}}
	if err := v.enter(s); err != nil {
		return nil, err
	}
	if err := s.raise(ctx, v, state); err != nil {
		return nil, errors.Join(fmt.Errorf("start Open vSwitch of %s: %w", name, err), v.RemoveNode(name))
	}
	return s, nil
}

// enter assigns the first free number to a node.
func (v *OVN) enter(s *Switch) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.nodes[s.Node] != nil {
		return fmt.Errorf("node %s already exists", s.Node)
	}
	for s.number = 1; v.numbers[s.number]; s.number++ {
		if s.number == maxNodes {
			return fmt.Errorf("add node %s: the maximum of %d nodes is reached", s.Node, maxNodes)
		}
	}
	v.nodes[s.Node], v.numbers[s.number] = s, true
	return nil
}

func (s *Switch) raise(ctx context.Context, v *OVN, state string) error {
	for _, dir := range []string{s.runner.Dir, state} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if err := v.join(s.number, s.runner.Netns, tunnelLink); err != nil {
		return err
	}
	if err := ns.Netlink(s.runner.Netns, func(h *netlink.Handle) error { return ns.LinkUp(h, tunnelLink) }); err != nil {
		return err
	}
	if err := s.runner.Serve(ctx, database, filepath.Join(state, "conf.db"), s.runner.Schema("ovsdb-tool", "openvswitch/vswitch.ovsschema")); err != nil {
		return err
	}
	tunnel := tunnelAddr(s.number)
	if err := s.vsctl(ctx, "--no-wait", "init", "--",
		"set", "Open_vSwitch", ".", "external_ids:system-id="+s.Node, "external_ids:hostname="+s.Node,
		"external_ids:ovn-remote=unix:"+v.central.In("sb.sock"), "external_ids:ovn-encap-type=geneve", "external_ids:ovn-encap-ip="+tunnel.Addr().String(),
		"external_ids:ovn-bridge="+Bridge, "external_ids:ovn-bridge-datapath-type=netdev",
		"other_config:n-handler-threads=1", "other_config:n-revalidator-threads=1", "--",
		"--id=@d", "create", "Datapath", "datapath_version=0", "--", "set", "Open_vSwitch", ".", "datapaths:netdev=@d", "--",
		"--may-exist", "add-br", Bridge, "--", "set", "Bridge", Bridge, "datapath_type=netdev", "fail_mode=secure", "--",
		"--may-exist", "add-br", tunnelBridge, "--", "set", "Bridge", tunnelBridge, "datapath_type=netdev", "--",
		"--may-exist", "add-port", tunnelBridge, tunnelLink); err != nil {
		return err
	}
	if _, err := s.runner.Start("ovs-vswitchd", "ovs-vswitchd", s.Endpoint()); err != nil {
		return err
	}
	if err := s.runner.Until(ctx, "integration bridge", func() error {
		return ns.Netlink(s.runner.Netns, func(h *netlink.Handle) error {
			if _, err := h.LinkByName(Bridge); err != nil {
				return err
			}
			return ns.Configure(h, tunnelBridge, []netip.Prefix{tunnel}, nil)
		})
	}); err != nil {
		return err
	}
	if err := s.withoutZeroSNAT(ctx); err != nil {
		return err
	}
	_, err := s.runner.Start("ovn-controller", "ovn-controller", s.Endpoint())
	return err
}

// withoutZeroSNAT hides from OVN's controller that the switch supports "all-zero SNAT", which chooses another source port
// for a connection if its own is in use. In user space, Open vSwitch 3.1 aborts with an assertion failure in
// conn_update_state when the tuple of such a connection is reused, for example by a proxy that translates sources.
func (s *Switch) withoutZeroSNAT(ctx context.Context) error {
	return s.runner.Until(ctx, "capabilities of the switch", func() error {
		var row, errs bytes.Buffer
		find := s.runner.Command("ovs-vsctl", "--db="+s.Endpoint(), "--bare", "--columns=_uuid", "find", "Datapath", "capabilities:ct_zero_snat=true")
		if err := proc.Run(ctx, find, nil, &row, &errs); err != nil {
			return fmt.Errorf("%w: %s", err, &errs)
		}
		id := strings.TrimSpace(row.String())
		if id == "" {
			return errors.New("not reported yet")
		}
		return s.vsctl(ctx, "set", "Datapath", id, "capabilities:ct_zero_snat=false")
	})
}

// RestartDatabase kills the node's OVSDB and starts it again from its file, while Open vSwitch and OVN's controller keep
// running. It returns once the database listens.
func (s *Switch) RestartDatabase(ctx context.Context) error {
	return s.runner.Restart(ctx, database)
}

// database is the name of the node's OVSDB.
const database = "db"

// Endpoint returns the endpoint of the node's OVSDB.
func (s *Switch) Endpoint() string { return "unix:" + s.runner.In(database+".sock") }

func (s *Switch) vsctl(ctx context.Context, args ...string) error {
	return s.runner.Once(ctx, "ovs-vsctl", append([]string{"--db=" + s.Endpoint()}, args...)...)
}

// Interface is a row of a node's OVSDB that assigns a link to a port.
type Interface struct {
	Link string
	Port string            // external_ids:iface-id
	IDs  map[string]string // all external_ids
}

// Interfaces returns the rows of ports, by port.
func (s *Switch) Interfaces(ctx context.Context) ([]Interface, error) {
	return Interfaces(ctx, s.Endpoint())
}

// Interfaces returns the rows of ports in the OVSDB at an endpoint, by port.
func Interfaces(ctx context.Context, endpoint string) ([]Interface, error) {
	found, err := openvswitch.Find("ovn", "ovs-vsctl")
	if err != nil {
		return nil, err
	}
	r := openvswitch.Runner{Programs: found}
	var out, errs bytes.Buffer
	c := r.Command("ovs-vsctl", "--db="+endpoint, "--timeout=60", "--format=json", "--columns=name,external_ids", "find", "Interface")
	if err := proc.Run(ctx, c, nil, &out, &errs); err != nil {
		return nil, fmt.Errorf("list the interfaces of %s: %w: %s", endpoint, err, errs.String())
	}
	return parseInterfaces(out.Bytes())
}

// parseInterfaces reads ovs-vsctl's table of names and maps (RFC 7047, section 5.1).
func parseInterfaces(table []byte) ([]Interface, error) {
	var t struct {
		Data [][]json.RawMessage `json:"data"`
	}
	if err := json.Unmarshal(table, &t); err != nil {
		return nil, fmt.Errorf("parse the interface table: %w", err)
	}
	var list []Interface
	for _, row := range t.Data {
		i := Interface{IDs: map[string]string{}}
		var tagged []json.RawMessage // "map", [[key, value], ...]
		var pairs [][2]string
		if len(row) != 2 {
			return nil, fmt.Errorf("parse the interface table: row with %d columns", len(row))
		}
		if err := errors.Join(json.Unmarshal(row[0], &i.Link), json.Unmarshal(row[1], &tagged)); err != nil {
			return nil, fmt.Errorf("parse the interface table: %w", err)
		}
		if err := json.Unmarshal(tagged[len(tagged)-1], &pairs); err != nil {
			return nil, fmt.Errorf("parse the interface table: %s: %w", i.Link, err)
		}
		for _, p := range pairs {
			i.IDs[p[0]] = p[1]
		}
		if i.Port = i.IDs["iface-id"]; i.Port != "" {
			list = append(list, i)
		}
	}
	slices.SortFunc(list, func(a, b Interface) int { return cmp.Or(cmp.Compare(a.Port, b.Port), cmp.Compare(a.Link, b.Link)) })
	return list, nil
}

// Switches returns all nodes by name.
func (v *OVN) Switches() (all []*Switch) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(v.nodes)) {
		all = append(all, v.nodes[name])
	}
	return all
}

// Switch returns a node's switch, or nil.
func (v *OVN) Switch(node string) *Switch {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.nodes[node]
}

// RemoveNode kills a node's programs, like a power failure, and removes its chassis. Its links are removed with its
// namespace. An unknown node is not an error.
func (v *OVN) RemoveNode(name string) error {
	v.mu.Lock()
	s := v.nodes[name]
	if s != nil {
		delete(v.nodes, name)
		delete(v.numbers, s.number)
	}
	closed := v.closed
	v.mu.Unlock()
	if s == nil {
		return nil
	}
	err := s.runner.Kill()
	if closed {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	return errors.Join(err, v.central.Once(ctx, "ovn-sbctl", "--no-leader-only", "--db=unix:"+v.central.In("sb.sock"), "--if-exists", "chassis-del", name))
}
