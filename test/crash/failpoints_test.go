package crash

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/cloud/vpc"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/test/harness"
)

// TestProgramsKilledAtEveryFailpoint kills the daemon of one node, or the only operator, with SIGKILL at every step:
// of ADD, DEL, growth and shrink; of publication and the release handshake; of requesting, cutting, draining and
// releasing a block. Pods are retried like a kubelet does. After the restart all views must agree, and after the last
// pod nodes must hold only what the policy keeps. By default it covers every ninth step (harness.Sample), and none
// with IPv6.
func TestProgramsKilledAtEveryFailpoint(t *testing.T) {
	t.Parallel()
	for _, m := range slices.Concat(modes, harness.WithAll(furtherKillModes)) {
		for kills := range slices.Chunk(harness.Sample(t, 9, m.kills), killsOfALab) {
			t.Run(string(m.title()), func(t *testing.T) {
				t.Parallel() // mostly waits for processes to start
				harness.CanRun(t, m.name)
				l := harness.Raise(t, m.lab(2, 1))
				owners := newAddressOwners(m, func(k kind, text string) { t.Errorf("%s: %s", k, text) })
				for _, name := range kills {
					if !t.Run(name, func(t *testing.T) { killAt(t, m, l, owners, name) }) {
						break // the lab is not in the state that the next case expects
					}
				}
				t.Logf("%d failpoints, %d pods added, %d removed", len(kills), owners.adds, owners.dels)
			})
		}
	}
}

// killsOfALab is the number of failpoints tested in one lab. Node mode, which has most failpoints and no control
// plane, gets two labs.
const killsOfALab = 24

func killAt(t *testing.T, m mode, l *lab.Lab, owners *addressOwners, name string) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	// That many pods need all ENIs or blocks, which are released with the pods.
	dieAt(ctx, t, m, l, name, func() { exercise(ctx, t, owners, l.Nodes()[0], m.pods) })
	if err := m.empty(ctx, l); err != nil {
		t.Fatalf("not everything was released: %v", err)
	}
	harness.Settle(t, l)
}

// dieAt arms a failpoint that kills a program during do, and restarts the program.
func dieAt(ctx context.Context, t *testing.T, m mode, l *lab.Lab, name string, do func()) {
	t.Helper()
	programs := m.programs(l)
	victim := programs[slices.IndexFunc(programs, func(p program) bool { return slices.Contains(p.points, name) })]
	harness.OK(t, victim.Stop(patience))
	prepare(ctx, t, l, name)
	victim.arm(map[string]string{failpoint.EnvVar: armed(name)})
	harness.OK(t, victim.Start())
	died := victim.Exited()
	restarted := make(chan error, 1)
	go func() {
		select {
		case <-died:
			victim.arm(nil)
			restarted <- victim.Start()
		case <-ctx.Done():
			restarted <- fmt.Errorf("failpoint %s was never reached", name)
		}
	}()

	do()
	harness.OK(t, <-restarted)
	for _, p := range programs {
		if !p.Running() {
			harness.OK(t, p.Start())
		}
	}
	harness.OK(t, l.WaitReady(ctx))
}

// armed returns the value of BERTH_FAILPOINTS that kills at a failpoint. Failpoints for undoing an ADD need an ADD
// that fails.
func armed(name string) string {
	s := name + "=kill"
	if strings.HasPrefix(name, "daemon.undo.") {
		s += ",daemon.add.wired=error@1"
	}
	return s
}

// prepare makes a lab reach failpoints outside the life of a pod.
func prepare(ctx context.Context, t *testing.T, l *lab.Lab, name string) {
	t.Helper()
	n := l.Nodes()[0]
	if l.NetworkPolicies { // that every pod has
		p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "closed"}}
		harness.OK(t, client.IgnoreAlreadyExists(l.Kube.Client.Create(ctx, p)))
	}
	switch {
	case strings.HasPrefix(name, "eni.collect."):
		if l.Mode == lab.NodeMode { // the other daemon might be faster
			harness.OK(t, l.Nodes()[1].Stop(patience))
		}
		// A detached ENI of a vanished instance, old enough to be collected.
		makeENI(t, l, n, vanished)
	case strings.HasPrefix(name, "eni.tag."):
		leaveMistagged(t, l, n)
	case strings.HasPrefix(name, "operator.pool.accept."):
		another := lab.Pool("another-"+strings.TrimPrefix(name, "operator.pool.accept."), 2, v1alpha1.PoolSubnet{IPv4: fmt.Sprintf("10.3.%d.0/26", len(name))})
		harness.OK(t, l.Kube.Client.Create(ctx, &another))
	}
}

func exercise(ctx context.Context, t *testing.T, owners *addressOwners, n *node.Node, pods int) {
	if err := harness.AtOnce(pods, func(i int) error { return owners.add(ctx, n, fmt.Sprintf("pod-%d", i), shape{}) }); err != nil {
		t.Error(err)
	}
	for i := range pods {
		if err := owners.del(ctx, n, fmt.Sprintf("pod-%d", i)); err != nil {
			t.Error(err)
		}
	}
}

// leaveMistagged attaches an ENI of this cluster whose tag names another instance, as if moved by hand.
func leaveMistagged(t *testing.T, l *lab.Lab, n *node.Node) {
	t.Helper()
	id := makeENI(t, l, n, n.InstanceID) // if detached and of another instance, it would be collected
	enis := l.Snapshot().InstanceENIs(n.InstanceID)
	index := 1
	for slices.ContainsFunc(enis, func(e vpc.ENI) bool { return e.Attachment.DeviceIndex == index }) {
		index++
	}
	_, err := l.Cloud.ENIs.Attach(vpc.AttachRequest{ENIID: id, InstanceID: n.InstanceID, DeviceIndex: index})
	harness.OK(t, err)
	harness.OK(t, l.Cloud.CreateTags([]string{id}, vpc.Tags{eni.TagInstanceID: vanished}))
}

// vanished is the ID of an instance that does not exist.
const vanished = "i-00000000000000bad"

func makeENI(t *testing.T, l *lab.Lab, n *node.Node, owner string) string {
	t.Helper()
	instance, ok := l.Snapshot().Instance(n.InstanceID)
	if !ok {
		t.Fatalf("EC2 has no instance %s", n.InstanceID)
	}
	e, err := l.Cloud.ENIs.Create(vpc.CreateRequest{
		SubnetID: instance.SubnetID, Description: eni.Description(owner),
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
