package virtual

import (
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/cloudfake"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/ipfamily"
)

const cooling = 10 * time.Second

// named returns the failpoints with one of the given prefixes.
func named(prefixes ...string) []string {
	return slices.DeleteFunc(failpoint.Names(), func(name string) bool {
		return !slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) })
	})
}

var ofDaemon = slices.DeleteFunc(named("daemon."), func(name string) bool {
	return strings.HasPrefix(name, "daemon.egress.") || strings.HasPrefix(name, "daemon.nics.") || strings.HasPrefix(name, "daemon.policies.")
})

// Failpoints at which programs are halted, by mode and program.
var (
	nodeDaemon       = slices.Concat(named("eni.", "inventory.", "intent."), ofDaemon)
	operatorDaemon   = slices.Concat(slices.DeleteFunc(named("nodenetwork."), isElsewhere), named("inventory.save."), ofDaemon)
	operatorOperator = named("eni.", "operator.publish.", "operator.withdraw.")
	poolDaemon       = slices.Concat(named("pool."), ofDaemon)
	poolOperator     = named("operator.pool.")
	portDaemon       = slices.Concat(named("port.", "daemon.nics."), ofDaemon)
	portOperator     = named("operator.port.")
	// The steps of the pool of warm branches, and those that take a branch from the pool, tag it and delete it.
	warmOperator = named("operator.warm.", "operator.port.record.", "operator.port.change.", "operator.port.delete.")
)

// elsewhere maps prefixes of failpoints at which nothing is halted here to the reason.
var elsewhere = map[string]string{
	"plug.":              "steps in the real kernel and in Open vSwitch's database, which have no fake: test/crash",
	"networkpolicy.":     policiesElsewhere,
	"daemon.policies.":   policiesElsewhere,
	"operator.policies.": policiesElsewhere,
}

const policiesElsewhere = "network policies are sent by TLS, in real time, and enforced by the kernel: test/crash"

// once lists failpoints that a run passes only once, so that no program is halted at the second hit; sometimes lists
// those that a run may pass twice.
var once = map[string][]string{
	"TestHaltsInNodeMode": named("eni.collect.", "eni.create.", "eni.tag.", "eni.unassign.", "intent.save."),
	"TestHaltsInOperatorMode": named("eni.assign.", "eni.attach.after", "eni.collect.", "eni.create.", "eni.delete.", "eni.detach.", "eni.tag.", "eni.unassign.",
		"nodenetwork.create.", "nodenetwork.replace.deleted"),
	"TestHaltsInPortMode":       {"daemon.nics.changed", "daemon.nics.removed", "operator.port.keep.after"},
	"TestHaltsWithWarmBranches": named("operator.port.change.", "operator.warm.drop."),
	"TestHaltsInPoolMode":       named("operator.pool.end.before", "operator.pool.release.after", "operator.pool.release.deleted"),
}

var sometimes = map[string][]string{
	"TestHaltsInNodeMode": {"eni.attach.after"}, // depends on random waits: an ENI that attaches slowly may be given up
}

func isElsewhere(name string) bool {
	for prefix := range elsewhere {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// Every failpoint is halted at by a test, or listed in elsewhere.
func TestEveryFailpointIsHaltedAt(t *testing.T) {
	halted := slices.Concat(nodeDaemon, operatorDaemon, operatorOperator, poolDaemon, poolOperator, portDaemon, portOperator, warmOperator, egressDaemon, egressOperator)
	for _, name := range failpoint.Names() {
		if is := slices.Contains(halted, name); is == isElsewhere(name) {
			t.Errorf("%s: halted at = %v, listed in elsewhere = %v, want exactly one", name, is, isElsewhere(name))
		}
	}
	for prefix := range elsewhere {
		if len(named(prefix)) == 0 {
			t.Errorf("no failpoint has the prefix %s", prefix)
		}
	}
	if n := len(slices.Compact(slices.Sorted(slices.Values(halted)))); n < 95 {
		t.Errorf("only %d failpoints are halted at, want at least 95", n)
	}
}

func TestHaltsInNodeMode(t *testing.T) {
	for _, families := range []ipfamily.Set{ipfamily.OnlyIPv4, ipfamily.Dual} {
		t.Run(string(families), func(t *testing.T) {
			eachCrash(t, nodeDaemon, func(t *testing.T, at crash) {
				n := newNode(t, slices.Concat(quick, []string{
					"--ip-families=" + string(families), "--pod-events=never", "--warm-ip-target=2", "--minimum-ip-target=2",
				}, quickReconciler)...)
				n.inVPC(instanceType)
				n.families = families
				n.haltAt(at)
				n.start()
				n.exercise(9, n.primaryAlone)
				n.close()
				n.wantHalt(at)
			})
		})
	}
}

// quick has settings of all daemons, quickReconciler of the program that calls EC2.
var (
	quick           = []string{"--warm-wait=5s", "--cooling-period=" + cooling.String()}
	quickReconciler = []string{"--shrink-delay=5s", "--settle-time=2s", "--orphan-age=20s", "--orphan-interval=10s"}
)

// inVPC makes the node an instance of a type in a fake cloud.
func (n *node) inVPC(kind string) {
	n.instance = kind
	n.cloud = cloudfake.New(cloudfake.Options{Latency: 100 * time.Millisecond, AttachTime: time.Second})
	n.cloud.State.AddSubnet(subnetID, "zone-a", "10.0.0.0/20", nil)
	n.cloud.State.SetIPv6(subnetID, "2001:db8::/64")
	n.cloud.State.AddInstance(instance, kind, subnetID)
	n.cloud.State.SetLag(time.Second)
	n.kernel.HasLink = func(mac net.HardwareAddr) bool {
		return slices.ContainsFunc(n.cloud.State.Truth(), func(e cloud.ENI) bool {
			return slices.Equal(e.MAC, mac) && e.Attachment != nil && e.Attachment.Status == "attached"
		})
	}
	n.leaveOrphans()
	n.families = ipfamily.OnlyIPv4
}

func TestHaltsInOperatorMode(t *testing.T) {
	eachCrash(t, slices.Concat(operatorOperator, operatorDaemon), func(t *testing.T, at crash) {
		n := newNode(t, slices.Concat(quick, []string{"--ipam=eni-operator", "--auto-create-node-network", "--pre-allocate=1"})...)
		n.inVPC(instanceType)
		c := newCluster(t, n.log, slices.Concat([]string{"--ipam=eni-operator"}, quickReconciler)...)
		c.cloud = n.cloud
		c.addNode(n)
		victim := n.program
		if slices.Contains(operatorOperator, at.failpoint) {
			victim = c.program
		}
		if strings.HasPrefix(at.failpoint, "nodenetwork.replace.") { // an object of another instance exists
			check(t, c.admin.Create(t.Context(), &v1alpha1.NodeNetwork{
				ObjectMeta: metav1.ObjectMeta{Name: nodeName}, Spec: v1alpha1.NodeNetworkSpec{InstanceID: "i-0bad", InstanceType: instanceType},
			}))
		}
		victim.haltAt(at)
		c.start()
		n.start()
		if at.failpoint == "nodenetwork.restore.confirmed" {
			for range at.hit {
				c.takeBackReleases(n)
			}
		}
		n.exercise(6, n.oneFurther)
		n.close()
		c.close()
		victim.wantHalt(at)
	})
}

func TestHaltsInPoolMode(t *testing.T) {
	eachCrash(t, slices.Concat(poolOperator, poolDaemon), func(t *testing.T, at crash) {
		n := newNode(t, slices.Concat(quick, []string{"--ipam=pool", "--block-release-delay=10s"})...)
		c := newCluster(t, n.log, "--ipam=pool", "--block-claim-grace=20s", "--orphan-interval=30s")
		c.addNode(n)
		n.families = ipfamily.Dual
		c.addPool(v1alpha1.DefaultPool, "10.2.0.0/26", "fd02::/122")
		c.addPool("another", "10.3.0.0/26", "fd03::/122")
		victim := n.program
		if slices.Contains(poolOperator, at.failpoint) {
			victim = c.program
		}
		victim.haltAt(at)
		c.start()
		n.start()
		n.exercise(10, func() error { return c.blocksAgree(n, 1) })
		check(t, c.admin.Delete(t.Context(), &v1alpha1.AddressPool{ObjectMeta: metav1.ObjectMeta{Name: "another"}}))
		n.close()
		check(t, c.admin.Delete(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}}))
		await(t, c.nothingLeft)
		c.close()
		victim.wantHalt(at)
	})
}

// leaveOrphans creates ENIs of this cluster: an attached one whose tag names another instance, and a detached one of
// a vanished instance.
func (n *node) leaveOrphans() {
	const vanished = "i-0bad"
	tags := map[string]string{eni.TagCluster: clusterName, eni.TagOwner: eni.Owner, eni.TagInstanceID: vanished}
	n.cloud.State.AddENI(instance, 1, cloud.InterfaceOrdinary, tags)
	tags[eni.TagCreatedAt] = time.Now().Add(-24 * time.Hour).UTC().Format(time.RFC3339)
	if _, err := n.cloud.CreateENI(n.t.Context(), cloud.CreateENI{SubnetID: subnetID, Description: eni.Description(vanished), Tags: tags}); err != nil {
		n.t.Fatal(err)
	}
}

// exercise adds as many pods as the node accepts, replaces half of them, and removes all, waiting for rest in
// between. Finally the node must hold only what the policy keeps.
func (n *node) exercise(pods int, empty func() error) {
	n.t.Helper()
	half := (pods + 1) / 2
	n.pods.each(0, pods, n.pods.add)
	n.settle()
	n.pods.each(0, half, n.pods.del)
	n.pods.each(pods, pods+half, n.pods.add)
	n.settle()
	n.pods.each(half, pods+half, n.pods.del)
	n.settle(empty)
}
