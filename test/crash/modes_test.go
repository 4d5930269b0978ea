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

// mode describes the differences between Berth's modes.
type mode struct {
	name lab.Mode
	soak lab.Mode // name of the soak; name if empty
	// options are the options of a lab, except its mode and numbers of nodes and operators.
	options lab.Options
	faults  []spec.Fault // cloud faults
	pods    int          // maximum number of pods per node

	daemon, operator []string // failpoints on the paths of these programs
	kills            []string // failpoints to kill at, in turn

	slices   []int     // gate slices with a short round; without any, only make sampled has one
	ops      int       // operations in a short round
	every    int       // average operations between two troubles
	troubles []trouble // each as likely as its number of entries
	loses    bool      // nodes are lost and recreated

	// empty waits until nodes without pods hold only what the policy keeps.
	empty func(ctx context.Context, l *lab.Lab) error
}

var modes = []mode{nodeMode, operatorMode, poolMode, portMode, policyMode}

// nodeMode has addresses for nine pods on three ENIs, so that cooling and exhaustion occur constantly.
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

// operatorMode has nodes that keep one address warm and no pods on the primary ENI. Six pods fill the two secondary
// ENIs of a t3.small.
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

// ofDaemon lists the failpoints of a daemon without NICs, ofPortDaemon those of one with NICs.
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

// poolMode has blocks of four addresses, so that blocks are requested and released constantly, and a pool with a few
// blocks more than the nodes need.
var poolMode = mode{
	name: lab.PoolMode, pods: 10,
	options: lab.Options{
		Pools:        []v1alpha1.AddressPool{lab.Pool(v1alpha1.DefaultPool, 2, v1alpha1.PoolSubnet{IPv4: "10.2.0.0/26", IPv6: "fd02::/122"})},
		OperatorArgs: []string{"--block-claim-grace=20s"},
	},
	daemon:   append(named("pool."), ofDaemon...),
	operator: named("operator.pool."),
	// Operator steps for deleted pools or nodes are covered by the operator's own tests, and daemon steps
	// unrelated to pools are covered in node mode.
	kills:    named("pool.", "operator.pool.accept.", "operator.pool.cut.", "operator.pool.answer."),
	slices:   harness.OddSlices,
	ops:      120,
	every:    10,
	troubles: []trouble{killAPIServer, haltOperator, haltOperator, killDaemon, killDaemon, killOperator, killOperator, killOperator},
	empty:    blocks(1),
}

// portMode has pods with one to four ports each, in two VPCs with the same addresses, on nodes with the real OVN.
var portMode = mode{
	name: lab.PortMode, pods: 6, options: lab.Options{VPCs: twoVPCs()},
	daemon:   append(named("port.", "plug.link.", "plug.ovs.", "plug.hybrid."), ofPortDaemon...),
	operator: named("operator.port."),
	// The operator's own package covers its other steps, which need no lab.
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

// furtherSoaks run only by name: ports in addition to another mode's interface, egress and branches, which need the
// virtual machine, and IPv6.
var furtherSoaks = []mode{
	portsBeside("pool+ports", poolMode), egressMode,
	ofFamilies(nodeMode, ipfamily.Dual), ofFamilies(operatorMode, ipfamily.Dual),
	ofFamilies(nodeMode, ipfamily.OnlyIPv6), ofFamilies(operatorMode, ipfamily.OnlyIPv6), withBranches(operatorMode),
}

// ofFamilies returns a mode with pods of the given IP families.
func ofFamilies(m mode, families ipfamily.Set) mode {
	m.soak, m.options.IPFamilies = m.name+"+"+lab.Mode(families), families
	if m.name == lab.OperatorMode {
		m.empty = backTo(2, -1) // the IPv6 prefix may stay
	}
	return m
}

// furtherKillModes are modes with IPv6, used if all cases of TestProgramsKilledAtEveryFailpoint are requested. One
// prefix is enough for IPv6-only pods, so only dual-stack nodes grow and shrink.
var furtherKillModes = []mode{ofFamilies(nodeMode, ipfamily.Dual), ofFamilies(operatorMode, ipfamily.Dual), killedAt(ofFamilies(nodeMode, ipfamily.OnlyIPv6), ofDaemon)}

// killedAt returns a mode with other failpoints to kill at.
func killedAt(m mode, kills []string) mode {
	m.kills = kills
	return m
}

// portsBeside returns a mode whose pods may have ports as additional interfaces.
func portsBeside(title lab.Mode, m mode) mode {
	own := m.empty
	m.soak, m.ops, m.every = title, portMode.ops, portMode.every
	m.options.VPCPorts, m.options.VPCs = true, twoVPCs()
	m.daemon, m.operator = slices.Concat(m.daemon, portMode.daemon), slices.Concat(m.operator, portMode.operator)
	m.troubles = slices.Concat(m.troubles, portMode.troubles)
	m.empty = func(ctx context.Context, l *lab.Lab) error { return errors.Join(own(ctx, l), onlyUsers(ctx, l)) }
	return m
}

// title returns the name of a mode's soak.
func (m mode) title() lab.Mode { return cmp.Or(m.soak, m.name) }

// needsMachine reports whether a mode needs the virtual machine's kernel, whose control plane outlives labs.
func (m mode) needsMachine() bool { return m.options.Egress || m.options.PortCloud != nil }

// noPorts waits until no PodNICs of pods are left: their ports are deleted first.
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

// leases returns settings for operators while nothing is killed: a leader stays leader on a busy machine. A single
// operator needs no Lease.
func leases(operators int) []string {
	if operators == 1 {
		return []string{"--leader-elect=false"}
	}
	return []string{"--lease-duration=60s", "--renew-deadline=50s", "--retry-period=300ms"}
}

// hasty are settings of operators during troubles: another operator takes over within seconds.
var hasty = []string{"--lease-duration=2s", "--renew-deadline=1500ms"}

// named returns the failpoints with one of the given prefixes.
func named(prefixes ...string) []string {
	return slices.DeleteFunc(failpoint.Names(), func(name string) bool {
		return !slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) })
	})
}

// lab returns the options of the lab for a test or a round.
func (m mode) lab(nodes, operators int) lab.Options {
	o := m.options
	o.Nodes, o.DaemonArgs = nodes, append([]string{"--warm-wait=5s"}, o.DaemonArgs...)
	if m.name != lab.NodeMode || o.VPCPorts || o.NetworkPolicies {
		o.OperatorCount, o.OperatorArgs = operators, append(leases(operators), o.OperatorArgs...)
	}
	if o.NetworkPolicies {
		o.CRDs = clusterPolicyKind{}
	}
	return harness.Quick(m.name, o)
}

// program is a daemon or operator of a lab that failpoints may kill.
type program struct {
	*proc.Process
	points []string                    // failpoints on its paths
	arm    func(env map[string]string) // sets the environment of its next start
	hasty  []string                    // arguments during troubles
	died   event                       // event to count when it dies at a failpoint
}

// programs returns the daemons, by node, followed by the operators.
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

// backTo waits until every node has the given number of ENIs, not counting its trunk, with the given number of
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

// blocks waits until every node has the given number of blocks.
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

// eachNode waits until check returns nil for all nodes, and returns its last errors when ctx ends.
func eachNode(ctx context.Context, l *lab.Lab, check func(*node.Node) error) error {
	return poll.Until(ctx, func() error {
		var errs []error
		for _, n := range l.Nodes() {
			errs = append(errs, check(n))
		}
		return errors.Join(errs...)
	})
}

// elsewhere lists the failpoints covered by tests of their own packages.
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
				t.Errorf("%s mode: failpoint %s is on no program's path", m.name, name)
			}
		}
	}
	for _, name := range failpoint.Names() {
		if killed[name] == 0 && !slices.Contains(elsewhere, name) {
			t.Errorf("no mode kills at %s", name)
		}
	}
	for prefix, want := range map[string]int{"eni.": 18, "daemon.": 12, "pool.": 8, "plug.ovs.": 6, "plug.nsveth.": 5, "plug.vlan.": 8, "plug.routed.": 9, "operator.port.": 10, "networkpolicy.": 6, "daemon.policies.": 3, "operator.policies.": 5, "operator.pool.accept.": 2, "operator.pool.cut.": 2, "operator.pool.answer.": 1} {
		if got := len(named(prefix)); got < want {
			t.Errorf("only %d failpoints with the prefix %s are registered", got, prefix)
		}
	}
	if n := len(ofENIOperator); n < 20 {
		t.Errorf("only %d failpoints of the operator are registered", n)
	}
}
