package virtual

import (
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthnet/berth/internal/cloud"
	"github.com/berthnet/berth/internal/cloud/cloudfake"
	"github.com/berthnet/berth/internal/eni"
	"github.com/berthnet/berth/internal/failpoint"
)

const cooling = 30 * time.Second

// named are the failpoints whose names begin with one of some prefixes.
func named(prefixes ...string) []string {
	return slices.DeleteFunc(failpoint.Names(), func(name string) bool {
		return !slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) })
	})
}

// armed is what is armed to halt a program at a failpoint: those of undoing an ADD need one
// that fails.
func armed(name string) string {
	spec := name + "=halt"
	if strings.HasPrefix(name, "daemon.undo.") {
		spec += ",daemon.add.wired=error@1"
	}
	return spec
}

var ofDaemon = slices.DeleteFunc(named("daemon."), func(name string) bool {
	return strings.HasPrefix(name, "daemon.egress.") || strings.HasPrefix(name, "daemon.nics.")
})

func TestNodeMode(t *testing.T) {
	for _, name := range append(named("eni.", "inventory.", "intent."), ofDaemon...) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { nodeMode(t, name) })
		})
	}
}

func nodeMode(t *testing.T, name string) {
	n := newNode(t, "--pod-events=never", "--warm-wait=5s", "--cooling-period="+cooling.String(), "--warm-ip-target=2", "--minimum-ip-target=2",
		"--settle-time=2s", "--orphan-age=1m", "--orphan-interval=30s")
	n.cloud = cloudfake.New(cloudfake.Options{Latency: 100 * time.Millisecond, AttachTime: time.Second})
	n.cloud.AddSubnet(subnetID, "zone-a", "10.0.0.0/20", nil)
	n.cloud.AddInstance(instance, instanceType, subnetID)
	n.cloud.SetLag(time.Second)
	n.kernel.HasLink = func(mac net.HardwareAddr) bool {
		return slices.ContainsFunc(n.cloud.Truth(), func(e cloud.ENI) bool {
			return slices.Equal(e.MAC, mac) && e.Attachment != nil && e.Attachment.Status == "attached"
		})
	}
	n.leaveOrphans()
	n.haltAt(armed(name))
	n.start()
	n.exercise(n.primaryAlone)
	n.close()
	n.wantHalt(name)
}

// leaveOrphans leaves what others made: an ENI of this cluster that is attached and names
// another instance, and a detached one of an instance that is gone.
func (n *node) leaveOrphans() {
	const vanished = "i-0bad"
	tags := map[string]string{eni.TagCluster: clusterName, eni.TagOwner: eni.Owner, eni.TagInstanceID: vanished}
	n.cloud.AddENI(instance, 1, cloud.InterfaceOrdinary, tags)
	tags[eni.TagCreatedAt] = time.Now().Add(-24 * time.Hour).UTC().Format(time.RFC3339)
	if _, err := n.cloud.CreateENI(n.t.Context(), cloud.CreateENI{SubnetID: subnetID, Description: eni.Description(vanished), Tags: tags}); err != nil {
		n.t.Fatal(err)
	}
}

// exercise makes as many pods as the node takes, replaces some of them at once, removes
// all, and wants everything to be at rest in between. At the end the node must have what it
// keeps.
func (n *node) exercise(empty func() error) {
	n.t.Helper()
	n.pods.each(0, 9, n.pods.add)
	n.settle()
	n.pods.each(0, 5, n.pods.del)
	n.pods.each(9, 14, n.pods.add)
	n.settle()
	n.pods.each(5, 14, n.pods.del)
	n.settle(empty)
}
