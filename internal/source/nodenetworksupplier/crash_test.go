package nodenetworksupplier

import (
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/source/enisource"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/check"
	"github.com/berthnet/berth/test/harness/crashsource"
	"github.com/berthnet/berth/test/harness/sourcenode"
)

// child returns the source of a daemon that a failpoint may kill.
func child(c sourcenode.Child) error {
	s, err := New(Config{
		NodeName: nodeName, Kubeconfig: c.Kubeconfig, InstanceID: instance, Datapath: links{},
		Cooling: time.Millisecond, Store: enisource.Files{Dir: c.Dir}, Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
		Spec: &v1alpha1.NodeNetworkSpec{InstanceID: instance, InstanceType: itype, ENI: v1alpha1.ENISpec{PreAllocate: new(int32(256))}},
	})
	if err != nil {
		return err
	}
	return c.Leases().Serve(s, request, 300*time.Millisecond, os.Stdin, os.Stdout)
}

// crashNode is a machine whose daemon is a process that is started again when it dies.
type crashNode struct {
	*machine
	*crashsource.Process
	leases crashsource.Leases
}

func newCrashNode(t *testing.T) *crashNode {
	m := &crashNode{machine: newMachine(t)}
	m.Process, m.leases = m.NewChild()
	return m
}

// await waits for a state of the object that a daemon brings about, whether or not it dies.
func (m *crashNode) await(what string, ok func(*v1alpha1.NodeNetwork) bool) {
	m.T.Helper()
	m.until(what, func() bool {
		m.Live()
		o := m.find()
		return o != nil && ok(o)
	})
}

// checkLeases checks that the pods' addresses differ, and that none is among those that the operator
// took, or was allowed to take.
func (m *crashNode) checkLeases(want int, not ...string) {
	m.T.Helper()
	leases, err := m.leases.All()
	harness.OK(m.T, err)
	if len(leases) != want {
		m.T.Errorf("%d pods have addresses, want %d: %v", len(leases), want, leases)
	}
	seen := map[string]int{}
	for i, l := range leases {
		a := l.IPv4.String()
		if other, twice := seen[a]; twice {
			m.T.Errorf("%s is of pods %d and %d", a, i, other)
		}
		seen[a] = i
		if slices.Contains(not, a) {
			m.T.Errorf("pod %d has %s, which the operator may take", i, a)
		}
	}
}

func confirms(released ...string) func(*v1alpha1.NodeNetwork) bool {
	return func(o *v1alpha1.NodeNetwork) bool { return slices.Equal(o.Status.IPAM.Released, released) }
}

// The daemon is killed at every step of creating its object, and of releasing and restoring addresses.
func TestKilledAtEveryStep(t *testing.T) {
	tried := 0
	var hits []string
	for _, point := range failpoint.Names() {
		if !strings.HasPrefix(point, "nodenetwork.") && !strings.HasPrefix(point, "inventory.save.") {
			continue
		}
		tried++
		for _, hit := range []int{1, 2} {
			if hit > 1 && (strings.HasPrefix(point, "nodenetwork.create") || strings.HasPrefix(point, "nodenetwork.replace")) {
				continue // happens once
			}
			hits = append(hits, fmt.Sprintf("%s=kill@%d", point, hit))
		}
	}
	if tried < 11 {
		t.Errorf("only %d failpoints are registered", tried)
	}
	for _, hit := range harness.Sample(t, 9, hits) {
		t.Run(strings.Replace(hit, "=kill", "", 1), func(t *testing.T) { killedAt(t, hit) })
	}
}

func killedAt(t *testing.T, failpoints string) {
	m := newCrashNode(t)
	m.put("i-0ddd") // it is to find the object of another
	m.operator(ofNoUse)
	m.Launch(failpoints)
	m.await("an object of this instance", func(o *v1alpha1.NodeNetwork) bool { return o.Spec.InstanceID == instance })
	m.operator(give(10, 16))
	used := func(n int32) func(*v1alpha1.NodeNetwork) bool {
		return func(o *v1alpha1.NodeNetwork) bool { return o.Status.IPAM.UsedCount == n }
	}
	m.until("two pods have addresses", func() bool { return m.Do("add 1") && m.Do("add 2") }) // 10, 11
	m.await("they are reported", used(2))

	m.operator(releasing("10.0.0.11", "10.0.0.13", "10.0.0.14", "10.0.0.15"))
	m.await("what is free is released", confirms("10.0.0.13", "10.0.0.14", "10.0.0.15"))
	m.Do("add 3") // 12 or 16
	m.operator(func(o *v1alpha1.NodeNetwork) {
		releasing("10.0.0.11", "10.0.0.13", "10.0.0.15")(o) // 14 stays
		unassigned("10.0.0.13")(o)                          // EC2 took it
	})
	m.await("the answer", confirms("10.0.0.15"))
	m.until("pods get what stays", func() bool { return m.Do("add 3") && m.Do("add 4") && m.Do("add 5") }) // 12, 14, 16
	for i := 6; i < 8; i++ {
		if m.Do("add %d", i) {
			t.Errorf("pod %d got an address", i)
		}
	}
	m.checkLeases(5, "10.0.0.13", "10.0.0.15")
	leases, err := m.leases.All()
	harness.OK(t, err)
	for i, l := range leases {
		if l.IPv4 == address(11) {
			m.Do("del %d", i)
		}
	}
	m.await("the one that a pod had is released", confirms("10.0.0.11", "10.0.0.15"))
	m.operator(unassigned("10.0.0.15"))
	m.await("the end of 15 is heard", confirms("10.0.0.11"))
	m.operator(releasing())
	m.await("11 stays after all", confirms())
	m.until("the last pod has an address", func() bool { return m.Do("add 8") })
	m.checkLeases(5, "10.0.0.13", "10.0.0.15")
	m.await("all pods are reported", used(5))
	check.Equal(t, m.Deaths, 1, "deaths of the daemon")
}
