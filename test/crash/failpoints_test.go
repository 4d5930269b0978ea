package crash

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	_ "github.com/berthnet/berth/internal/daemon" // registers its failpoints
	"github.com/berthnet/berth/internal/eni"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/vpclab/lab"
	"github.com/berthnet/berth/internal/vpclab/node"
	"github.com/berthnet/berth/internal/vpclab/vpc"
	"github.com/berthnet/berth/test/harness"
)

// TestKillAtEveryFailpoint kills the daemon of one node with SIGKILL at every
// step of ADD, DEL, growth and shrink in turn. Pods are retried as a kubelet
// does; after the restart everything must agree, and after the last pod every
// ENI but the primary must be gone.
func TestKillAtEveryFailpoint(t *testing.T) {
	l := raise(t, 2)
	book := newLedger()
	names := daemonFailpoints()
	if len(names) < 20 {
		t.Fatalf("only %d failpoints are registered: %v", len(names), names)
	}
	for _, name := range names {
		if !t.Run(name, func(t *testing.T) { killAt(t, l, book, name) }) {
			break // the lab is no longer what the next one expects
		}
	}
	t.Logf("%d failpoints, %d pods made, %d removed", len(names), book.adds, book.dels)
}

// daemonFailpoints are those that a daemon in node mode passes.
func daemonFailpoints() []string {
	return slices.DeleteFunc(failpoint.Names(), func(name string) bool {
		return strings.HasPrefix(name, "operator.") || strings.HasPrefix(name, "nodenetwork.") || strings.HasPrefix(name, "pool.")
	})
}

// arm is what BERTH_FAILPOINTS holds to be killed at a failpoint: those of
// undoing an ADD need one that fails.
func arm(name string) string {
	spec := name + "=kill"
	if strings.HasPrefix(name, "daemon.undo.") {
		spec += ",daemon.add.wired=error@1"
	}
	return spec
}

func killAt(t *testing.T, l *lab.Lab, book *ledger, name string) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	victim := l.Nodes()[0]
	if err := victim.Stop(patience); err != nil {
		t.Fatal(err)
	}
	victim.Env = map[string]string{failpoint.EnvVar: arm(name)}
	prepare(t, l, victim, name)
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	died := victim.Exited()
	restarted := make(chan error, 1)
	go func() {
		select {
		case <-died:
			victim.Env = nil
			restarted <- victim.Start()
		case <-ctx.Done():
			restarted <- fmt.Errorf("failpoint %s was never reached", name)
		}
	}()

	// Seven pods need all three ENIs of a t3.small, and leaving returns two.
	exercise(ctx, t, book, victim, 7)
	if err := <-restarted; err != nil {
		t.Fatal(err)
	}
	if err := victim.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	if err := emptied(ctx, l); err != nil {
		t.Fatalf("ENIs do not go back: %v", err)
	}
	for _, n := range l.Nodes() {
		if n.Running() {
			continue
		}
		if err := n.Start(); err != nil {
			t.Fatal(err)
		}
	}
	harness.Settle(t, l)
}

// prepare sets the stage for the failpoints that the life of a pod alone does
// not reach.
func prepare(t *testing.T, l *lab.Lab, victim *node.Node, name string) {
	t.Helper()
	switch {
	case strings.HasPrefix(name, "eni.collect."):
		other := l.Nodes()[1] // it would be faster at times; killAt starts it again
		if err := other.Stop(patience); err != nil {
			t.Fatal(err)
		}
		leaveOrphan(t, l, victim)
	case strings.HasPrefix(name, "eni.tag."):
		leaveMistagged(t, l, victim)
	}
}

// exercise makes pods at once, and removes them one after the other.
func exercise(ctx context.Context, t *testing.T, book *ledger, n *node.Node, pods int) {
	var wg sync.WaitGroup
	for i := range pods {
		wg.Go(func() {
			if err := book.add(ctx, t, n, fmt.Sprintf("pod-%d", i)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for i := range pods {
		if err := book.del(ctx, n, fmt.Sprintf("pod-%d", i)); err != nil {
			t.Error(err)
		}
	}
}

// leaveOrphan makes a detached ENI of an instance that is gone, as old as it
// takes to be collected.
func leaveOrphan(t *testing.T, l *lab.Lab, n *node.Node) {
	t.Helper()
	makeENI(t, l, n, vanished)
}

// leaveMistagged attaches an ENI of this cluster that names another instance,
// as one that was moved by hand.
func leaveMistagged(t *testing.T, l *lab.Lab, n *node.Node) {
	t.Helper()
	id := makeENI(t, l, n, n.InstanceID) // detached, one of another would be collected
	enis := l.Books().InstanceENIs(n.InstanceID)
	index := 1
	for slices.ContainsFunc(enis, func(e vpc.ENI) bool { return e.Attachment.DeviceIndex == index }) {
		index++
	}
	_, err := l.Cloud.AttachNetworkInterface(vpc.AttachRequest{ENIID: id, InstanceID: n.InstanceID, DeviceIndex: index})
	harness.OK(t, err)
	harness.OK(t, l.Cloud.CreateTags([]string{id}, vpc.Tags{eni.TagInstanceID: vanished}))
}

// vanished is an instance that there is not.
const vanished = "i-00000000000000bad"

func makeENI(t *testing.T, l *lab.Lab, n *node.Node, owner string) string {
	t.Helper()
	instance, ok := l.Books().Instance(n.InstanceID)
	if !ok {
		t.Fatalf("the books have no instance %s", n.InstanceID)
	}
	e, err := l.Cloud.CreateNetworkInterface(vpc.CreateRequest{
		SubnetID: instance.SubnetID,
		Tags: vpc.Tags{
			eni.TagCluster: n.Cluster, eni.TagOwner: eni.Owner, eni.TagInstanceID: owner,
			eni.TagCreatedAt: time.Now().Add(-24 * time.Hour).UTC().Format(time.RFC3339),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return e.ID
}
