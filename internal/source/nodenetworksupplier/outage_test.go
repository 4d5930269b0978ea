package nodenetworksupplier

import (
	"slices"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/test/harness"
)

// The API server dies: pods come and go from memory, a restarted daemon serves
// from its file and keeps back what it had confirmed, and what happened
// meanwhile is told afterwards.
func TestAPIServerOutage(t *testing.T) {
	m := startMachine(t)
	m.operator(give(10, 15))
	kept := map[int]source.Lease{1: m.add(1)}
	m.operator(releasing("10.0.0.15"))
	m.released("10.0.0.15")

	back := harness.WithoutAPIServer(t)
	kept[2] = m.add(2)
	kept[3] = m.add(3)
	m.Release(key(1))
	delete(kept, 1)
	m.until("the daemon sees the outage", func() bool { return m.Snapshot().LastError != "" })

	m.stop()
	m.start()
	for i, l := range kept {
		if err := m.Restore(request(i), l); err != nil {
			t.Fatal(err)
		}
	}
	for i := 4; i <= 6; i++ { // from the file: nobody else can tell
		kept[i] = m.add(i)
	}
	m.until("a pod too many is told why it has to wait", func() bool {
		l, err := m.try(7, 200*time.Millisecond)
		ex, ok := err.(*source.Exhausted) //nolint:errorlint // the contract is this very type
		if !ok {
			t.Fatalf("a pod too many got %v, %v", l.IPv4, err)
		}
		return ex.Reason == "unreachable"
	})

	back()
	o := m.reports(5)
	for i, l := range kept {
		if u := o.Status.IPAM.Used[l.IPv4.String()]; u.UID != request(i).Pod.UID {
			t.Errorf("%v is reported as %+v", l.IPv4, u)
		}
	}
	if !slices.Equal(o.Status.IPAM.Released, []string{"10.0.0.15"}) {
		t.Errorf("released: %v", o.Status.IPAM.Released)
	}
	m.operator(releasing())
	m.gets(7, 15)
}
