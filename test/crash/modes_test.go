package crash

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/ipfamily"
	_ "github.com/berthnet/berth/internal/kernel/plug/nsveth"
	_ "github.com/berthnet/berth/internal/kernel/plug/ovs"
	_ "github.com/berthnet/berth/internal/kernel/plug/routedvlan"
	_ "github.com/berthnet/berth/internal/kernel/plug/vlan"
	_ "github.com/berthnet/berth/internal/node/daemon" // these register their failpoints
	_ "github.com/berthnet/berth/internal/node/daemon/egresspart"
	_ "github.com/berthnet/berth/internal/node/daemon/nicpart"
	_ "github.com/berthnet/berth/internal/node/daemon/policypart"
	_ "github.com/berthnet/berth/internal/node/networkpolicy"
	_ "github.com/berthnet/berth/internal/node/nics"
	_ "github.com/berthnet/berth/internal/operator/addresspool"
	_ "github.com/berthnet/berth/internal/operator/networkpolicy"
	_ "github.com/berthnet/berth/internal/operator/nodeenis"
	_ "github.com/berthnet/berth/internal/operator/podnics"
	_ "github.com/berthnet/berth/internal/source/enisource"
	_ "github.com/berthnet/berth/internal/source/nodenetworksupplier"
	_ "github.com/berthnet/berth/internal/source/pool"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/cloud/spec"
	"github.com/berthnet/berth/lab/cloud/vpc"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/lab/run/poll"
	"github.com/berthnet/berth/lab/run/proc"
	"github.com/berthnet/berth/test/harness"
)

// mode is what differs between the modes in which Berth runs.
type mode struct {
	name lab.Mode
	soak lab.Mode // what a soak calls it; its name when empty
	// options are a lab's, except its mode and numbers of nodes and operators.
	options lab.Options
	faults  []spec.Fault // of the cloud
	pods    int          // that a node is asked for at most

	daemon, operator []string // failpoints that these pass
	kills            []string // those of them that are killed at in turn

	slices   []int     // of gates with a short round
	ops      int       // of a short round
	every    int       // operations from one trouble to the next, on average
	troubles []trouble // as likely as they are often here
	loses    bool      // nodes are lost at times, and come again

	// empty waits until nodes without pods have no more than they keep.
	empty func(ctx context.Context, l *lab.Lab) error
}

var modes = []mode{nodeMode, operatorMode, poolMode, portMode, policyMode}

// nodeMode has addresses for nine pods on three ENIs, so that cooling and exhaustion happen all the
// time.
var nodeMode = mode{
	name: lab.NodeMode, pods: 9, faults: faults,
	options: lab.Options{InstanceType: "t3.small", DaemonArgs: []string{
		"--warm-ip-target=2", "--minimum-ip-target=2", "--settle-time=2s", "--orphan-age=3s", "--orphan-interval=1s",
	}},
	daemon:   append(named("eni.", "inventory.", "intent."), ofDaemon...),
	kills:    append(named("eni.", "inventory.", "intent."), ofDaemon...),
	slices:   harness.EvenSlices,
	ops:      300,
	every:    6,
	troubles: []trouble{ec2Away, stopDaemon, killDaemon, killDaemon, killDaemon, killDaemon, killDaemon, killDaemon},
	empty:    backTo(1, -1),
}

// operatorMode has nodes that keep one address warm and no pods on the primary ENI. Six pods fill the
// two further ENIs of a t3.small.
var operatorMode = mode{
	name: lab.OperatorMode, pods: 6, faults: faults,
	options:  lab.Options{InstanceType: "t3.small"},
	daemon:   append(named("nodenetwork.", "inventory.save."), ofDaemon...),
	operator: ofENIOperator,
	kills:    ofENIOperator,
	slices:   harness.OddSlices,
	ops:      200,
	every:    10,
	troubles: []trouble{ec2Away, killAPIServer, haltOperator, haltOperator, killDaemon, killOperator, killOperator, killOperator},
	empty:    backTo(2, 1), // one warm address
}

// ofDaemon are the failpoints of a daemon without NICs, ofPortDaemon of one with NICs.
var (
	ofPortDaemon = slices.DeleteFunc(named("daemon."), func(name string) bool { return strings.HasPrefix(name, "daemon.egress.") })
	ofDaemon     = slices.DeleteFunc(slices.Clone(ofPortDaemon), func(name string) bool {
		return strings.HasPrefix(name, "daemon.nics.") || strings.HasPrefix(name, "daemon.policies.")
	})
)

var ofENIOperator = slices.DeleteFunc(named("eni.", "operator."), func(name string) bool {
	return slices.ContainsFunc([]string{"operator.pool.", "operator.port.", "operator.warm.", "operator.gateways.", "operator.egressclient.", "operator.policies."}, func(prefix string) bool {
		return strings.HasPrefix(name, prefix)
	})
})

// poolMode has blocks of four addresses, so that they come and go all the time, and a pool with a few
// blocks more than the nodes need.
var poolMode = mode{
	name: lab.PoolMode, pods: 10,
	options: lab.Options{
		Pools:        []v1alpha1.AddressPool{lab.Pool(v1alpha1.DefaultPool, 2, v1alpha1.PoolSubnet{IPv4: "10.2.0.0/26", IPv6: "fd02::/122"})},
		OperatorArgs: []string{"--block-claim-grace=20s"},
	},
	daemon:   append(named("pool."), ofDaemon...),
	operator: named("operator.pool."),
	// Steps of the operator for which a pool or a node must go are in its own tests, and steps of the
	// daemon that have nothing to do with pools are killed at in node mode.
	kills:    named("pool.", "operator.pool.accept.", "operator.pool.cut.", "operator.pool.answer."),
	slices:   harness.OddSlices,
	ops:      120,
	every:    10,
	troubles: []trouble{killAPIServer, haltOperator, haltOperator, killDaemon, killDaemon, killOperator, killOperator, killOperator},
	empty:    blocks(1),
}

// portMode has pods with one to four ports each, in two VPCs with the same addresses, on nodes with
// the real OVN.
var portMode = mode{
	name: lab.PortMode, pods: 6, options: lab.Options{VPCs: twoVPCs()},
	daemon:   append(named("port.", "plug.link.", "plug.ovs.", "plug.hybrid."), ofPortDaemon...),
	operator: named("operator.port."),
	// The operator's own package kills at its other steps, which need no lab.
	kills: slices.DeleteFunc(named("daemon.nics.", "port.", "plug.link.", "plug.ovs.", "operator.port.create.", "operator.port.record.", "operator.port.forget."),
		func(name string) bool { return slices.Contains(elsewhere, name) }),
	slices: harness.EvenSlices,
	ops:    80,
	every:  2,
	troubles: []trouble{
		neutronFails, neutronFails, neutronAway, tokensRevoked, overQuota, hostAway, portChanged, portChanged, restartDatabase, killAPIServer, haltOperator,
		killDaemon, killDaemon, killDaemon, killDaemon, killOperator, killOperator,
	},
	loses: true,
	empty: onlyUsers,
}

// furtherSoaks run only when named: ports beside another mode's interface, egress and branches, which
// need the virtual machine, and IPv6.
var furtherSoaks = []mode{
	portsBeside("pool+ports", poolMode), egressMode,
	ofFamilies(nodeMode, ipfamily.Dual), ofFamilies(operatorMode, ipfamily.Dual),
	ofFamilies(nodeMode, ipfamily.OnlyIPv6), ofFamilies(operatorMode, ipfamily.OnlyIPv6), withBranches(operatorMode),
}

// ofFamilies is a mode with pods of some IP families.
func ofFamilies(m mode, families ipfamily.Set) mode {
	m.soak, m.options.IPFamilies = m.name+"+"+lab.Mode(families), families
	if m.name == lab.OperatorMode {
		m.empty = backTo(2, -1) // whose IPv6 prefix may stay
	}
	return m
}

// furtherKillModes are modes with IPv6, if all cases of TestProgramsKilledAtEveryFailpoint are asked
// for. One prefix is enough for IPv6-only pods, so only dual-stack nodes grow and shrink.
var furtherKillModes = []mode{ofFamilies(nodeMode, ipfamily.Dual), ofFamilies(operatorMode, ipfamily.Dual), killedAt(ofFamilies(nodeMode, ipfamily.OnlyIPv6), ofDaemon)}

// killedAt is a mode with other failpoints to kill at.
func killedAt(m mode, kills []string) mode {
	m.kills = kills
	return m
}

// portsBeside is a mode whose pods may have ports as further interfaces.
func portsBeside(title lab.Mode, m mode) mode {
	own := m.empty
	m.soak, m.ops, m.every = title, portMode.ops, portMode.every
	m.options.VPCPorts, m.options.VPCs = true, twoVPCs()
	m.daemon, m.operator = slices.Concat(m.daemon, portMode.daemon), slices.Concat(m.operator, portMode.operator)
	m.troubles = slices.Concat(m.troubles, portMode.troubles)
	m.empty = func(ctx context.Context, l *lab.Lab) error { return errors.Join(own(ctx, l), onlyUsers(ctx, l)) }
	return m
}

// title is the name of a mode's soak.
func (m mode) title() lab.Mode { return cmp.Or(m.soak, m.name) }

// needsMachine reports whether a mode needs the virtual machine's kernel, whose control plane outlives
// labs.
func (m mode) needsMachine() bool { return m.options.Egress || m.options.PortCloud != nil }

// noPorts waits until no PodNIC of a pod is left: its port goes first.
func noPorts(ctx context.Context, l *lab.Lab) error {
	return poll.Until(ctx, func() error {
		nics, err := l.Kube.PodNICs(ctx)
		if err != nil {
			return err
		}
		users := func(n v1alpha1.PodNIC) bool { return n.Spec.Pod == nil }
		return harness.Equal("PodNICs of pods", len(slices.DeleteFunc(nics, users)), 0)
	})
}

// cooling is the cooling period of all labs (harness.Quick).
const cooling = time.Second

// leases are settings of operators without trouble: a leader stays one on a busy machine. A single
// operator needs no Lease.
func leases(operators int) []string {
	if operators == 1 {
		return []string{"--leader-elect=false"}
	}
	return []string{"--lease-duration=60s", "--renew-deadline=50s", "--retry-period=300ms"}
}

// hasty are settings of operators in times of trouble: another one follows within seconds.
var hasty = []string{"--lease-duration=2s", "--renew-deadline=1500ms"}

// named are the failpoints whose names begin with one of some prefixes.
func named(prefixes ...string) []string {
	return slices.DeleteFunc(failpoint.Names(), func(name string) bool {
		return !slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) })
	})
}

// lab are the options of a test's or a round's lab.
func (m mode) lab(nodes, operators int) lab.Options {
	o := m.options
	o.Nodes, o.DaemonArgs = nodes, append([]string{"--warm-wait=5s"}, o.DaemonArgs...)
	if m.name != lab.NodeMode || o.VPCPorts || o.NetworkPolicies {
		o.OperatorCount, o.OperatorArgs = operators, append(leases(operators), o.OperatorArgs...)
	}
	return harness.Quick(m.name, o)
}

// program is a daemon or an operator of a lab that failpoints may kill.
type program struct {
	*proc.Process
	points []string                    // failpoints that it passes
	arm    func(env map[string]string) // for its next start
	hasty  []string                    // arguments in times of trouble
	died   event                       // at a failpoint
}

// programs are the daemons, by node, and then the operators.
func (m mode) programs(l *lab.Lab) (all []program) {
	for _, n := range l.Nodes() {
		all = append(all, program{
			Process: n.Process, points: m.daemon, died: daemonDeath,
			arm: func(env map[string]string) { n.Env = env },
		})
	}
	for _, o := range l.Operators() {
		all = append(all, program{
			Process: o.Process, points: m.operator, died: operatorDeath, hasty: hasty,
			arm: func(env map[string]string) { l.OperatorEnv = env },
		})
	}
	return all
}

// backTo waits until every node is back to a number of ENIs besides its trunk, with a number of
// secondary addresses unless that is negative.
func backTo(enis, addresses int) func(ctx context.Context, l *lab.Lab) error {
	return func(ctx context.Context, l *lab.Lab) error {
		return eachNode(ctx, l, func(n *node.Node) error {
			mine, has := slices.DeleteFunc(harness.ENIs(l, n), func(e vpc.ENI) bool { return e.Type == "trunk" }), 0
			for _, e := range mine {
				has += len(e.Secondary)
			}
			if len(mine) != enis || addresses >= 0 && has != addresses {
				return fmt.Errorf("%s has %d ENIs with %d addresses, expected %d with %d (-1: any)", n.Name, len(mine), has, enis, addresses)
			}
			return nil
		})
	}
}

// blocks waits until every node is back to so many blocks.
func blocks(want int) func(ctx context.Context, l *lab.Lab) error {
	return func(ctx context.Context, l *lab.Lab) error {
		return eachNode(ctx, l, func(n *node.Node) error {
			all, err := l.Kube.Blocks(ctx)
			if err != nil {
				return err
			}
			others := func(b v1alpha1.AddressBlock) bool { return b.NodeName != n.Name }
			return harness.Equal("blocks of "+n.Name, len(slices.DeleteFunc(all, others)), want)
		})
	}
}

// eachNode waits until is returns nil for all nodes, and returns its last errors when ctx ends.
func eachNode(ctx context.Context, l *lab.Lab, is func(*node.Node) error) error {
	return poll.Until(ctx, func() error {
		var errs []error
		for _, n := range l.Nodes() {
			errs = append(errs, is(n))
		}
		return errors.Join(errs...)
	})
}

// elsewhere are failpoints at which tests of their own packages kill.
var elsewhere = named(
	"nodenetwork.", "operator.pool.finalizer.", "operator.pool.end.", "operator.pool.release.",
	"daemon.egress.", "daemon.nics.removed", "daemon.nics.recorded", "daemon.nics.changed", "operator.port.nic.", "operator.port.remove.", "operator.port.keep.", "operator.port.change.", "operator.port.delete.", "port.remove.", "plug.hybrid.", "plug.vlan.", "plug.routed.",
	"operator.warm.", "operator.gateways.", "operator.egressclient.",
)

// TestEveryFailpointIsKilledAt fails for a failpoint that no mode kills at.
func TestEveryFailpointIsKilledAt(t *testing.T) {
	killed := map[string]int{}
	for _, m := range slices.Concat(modes, []mode{alcorMode, machineMode}) {
		for _, name := range m.kills {
			killed[name]++
			if !slices.Contains(m.daemon, name) && !slices.Contains(m.operator, name) {
				t.Errorf("%s mode: no program passes %s", m.name, name)
			}
		}
	}
	for _, name := range failpoint.Names() {
		if killed[name] == 0 && !slices.Contains(elsewhere, name) {
			t.Errorf("%s is killed at in no mode", name)
		}
	}
	for prefix, want := range map[string]int{"eni.": 18, "daemon.": 12, "pool.": 8, "plug.ovs.": 6, "plug.nsveth.": 5, "plug.vlan.": 8, "plug.routed.": 9, "operator.port.": 10, "networkpolicy.": 6, "daemon.policies.": 3, "operator.policies.": 5, "operator.pool.accept.": 2, "operator.pool.cut.": 2, "operator.pool.answer.": 1} {
		if got := len(named(prefix)); got < want {
			t.Errorf("only %d failpoints %s are registered", got, prefix)
		}
	}
	if n := len(ofENIOperator); n < 20 {
		t.Errorf("only %d failpoints of the operator are registered", n)
	}
}
