package podnics

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/operator/podnics/nicplan"
	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/portfake"
)

// answers are what became of jobs.
type answers struct {
	mu sync.Mutex // guards all
	of map[types.UID]answer
}

func (a *answers) take(j job, got answer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, twice := a.of[j.uid]; twice {
		panic(fmt.Sprintf("%s is answered twice", j.uid))
	}
	a.of[j.uid] = got
}

// failed counts the answers of each class.
func (a *answers) failed() map[vpcport.Class]int {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := map[vpcport.Class]int{}
	for _, got := range a.of {
		if got.err != nil {
			n[vpcport.ClassOf(got.err)]++
		}
	}
	return n
}

// onDesk has jobs done by a provider in virtual time, and returns how long it took.
func onDesk(t *testing.T, p vpcport.Provider, jobs []job) (*answers, time.Duration) {
	t.Helper()
	a := &answers{of: map[types.UID]answer{}}
	d := newDesks(clock.Real{}, a.take)
	began := time.Now()
	d.open(context.Background())
	for _, j := range jobs {
		d.submit("a", p, j)
	}
	for {
		synctest.Wait()
		a.mu.Lock()
		n := len(a.of)
		a.mu.Unlock()
		if n == len(jobs) {
			break
		}
		if time.Since(began) > time.Hour {
			t.Fatalf("%d of %d answers", n, len(jobs))
		}
		time.Sleep(10 * time.Millisecond) //nolint:forbidigo // virtual time
	}
	took := time.Since(began)
	d.close()
	return a, took
}

func createJob(i int, addresses ...vpcport.NewAddress) job {
	uid := types.UID(fmt.Sprintf("uid-%d", i))
	w := nicplan.Want{Device: vpcport.Device(cluster, string(uid)), Network: "n-big", Addresses: addresses, MAC: vpcport.DerivedMAC(cluster, string(uid), 0)}
	return job{uid: uid, step: nicplan.Step{Kind: nicplan.Create}, want: w}
}

// bigProvider has a network with room for thousands, and a small one.
func bigProvider(o portfake.Options) *portfake.Provider {
	p := portfake.New(o)
	p.AddNetwork(vpcport.Network{ID: "n-big", MTU: 1500, Subnets: []vpcport.Subnet{
		{ID: "s-big", CIDR: netip.MustParsePrefix("10.0.0.0/16"), Gateway: netip.MustParseAddr("10.0.0.1")}, small,
	}})
	p.AddHost("node-a", ovn)
	return p
}

// The ports of 2,000 pods of one moment are asked for in as few calls as the provider
// lets, and take no longer than those calls must.
func TestManyPortsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const pods, latency, atOnce = 2000, 400 * time.Millisecond, 8
		p := bigProvider(portfake.Options{Latency: latency, AtOnce: atOnce})
		var jobs []job
		for i := range pods {
			jobs = append(jobs, createJob(i))
		}
		a, took := onDesk(t, p, jobs)
		if n := a.failed(); len(n) > 0 || len(p.All()) != pods {
			t.Errorf("failed %v, %d ports", n, len(p.All()))
		}
		calls := p.Front.Count("Create")
		bound := time.Duration((calls+atOnce-1)/atOnce) * latency
		t.Logf("%d calls, %v; the calls alone take %v", calls, took, bound)
		if calls != (pods+63)/64 || took > bound*115/100 {
			t.Errorf("%d calls, %v, want %d in %v", calls, took, (pods+63)/64, bound*115/100)
		}
		var polled []job
		for i, port := range p.All() {
			polled = append(polled, job{uid: types.UID(fmt.Sprintf("uid-%d", i)), step: nicplan.Step{Kind: nicplan.Poll, Port: port.ID}})
		}
		p.Front.ResetCalls()
		if a, _ := onDesk(t, p, polled); len(a.failed()) > 0 || p.Front.Count("Ports") != pods/100 || p.Front.Count("Get") != 0 {
			t.Errorf("failed %v, %d calls", a.failed(), p.Front.Count("Ports", "Get"))
		}
	})
}

// Few calls that are not full are under way at once: the others wait for more, and not for
// long.
func TestTrickleOfPorts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ports, every, latency = 300, 10 * time.Millisecond, 400 * time.Millisecond
		p := bigProvider(portfake.Options{Latency: latency, AtOnce: 8})
		a := &answers{of: map[types.UID]answer{}}
		d := newDesks(clock.Real{}, a.take)
		d.open(context.Background())
		for i := range ports {
			d.submit("a", p, createJob(i))
			time.Sleep(every) //nolint:forbidigo // virtual time
		}
		time.Sleep(latency + gatherMore) //nolint:forbidigo // virtual time
		if len(a.failed()) > 0 || len(a.of) != ports {
			t.Errorf("%d answers, failed %v, %v after the last one was asked for", len(a.of), a.failed(), latency+gatherMore)
		}
		d.close()
		if n := p.Front.Count("Create"); n > ports/5 {
			t.Errorf("%d calls for %d ports", n, ports)
		}
	})
}

// Polls let calls go first by which pods get their ports, but not for ever.
func TestPollsYield(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const latency = 400 * time.Millisecond
		p := bigProvider(portfake.Options{Latency: latency, AtOnce: 8})
		port := p.AddPort(vpcport.Port{NetworkID: "n-big"})
		polled := make(chan time.Time, 1)
		d := newDesks(clock.Real{}, func(j job, _ answer) {
			if j.step.Kind == nicplan.Poll {
				polled <- time.Now()
			}
		})
		d.open(context.Background())
		for i := range 64 * 8 * 10 { // four seconds of calls
			d.submit("a", p, createJob(i))
		}
		began := time.Now()
		d.submit("a", p, job{uid: "polled", step: nicplan.Step{Kind: nicplan.Poll, Port: port.ID}})
		took := (<-polled).Sub(began)
		if took < yields || took > yields+2*latency+gather {
			t.Errorf("a poll among calls that make ports took %v, want %v and a turn", took, yields)
		}
		d.close()
		d = newDesks(clock.Real{}, func(job, answer) { polled <- time.Now() })
		d.open(context.Background())
		began = time.Now()
		d.submit("a", p, job{uid: "polled", step: nicplan.Step{Kind: nicplan.Poll, Port: port.ID}})
		if took := (<-polled).Sub(began); took != gather+latency {
			t.Errorf("a poll alone took %v, want %v", took, gather+latency)
		}
		d.close()
	})
}

// A batch that does not fit as a whole fills what room there is, in few calls.
func TestNoRoomForAll(t *testing.T) {
	for _, tt := range []struct {
		name  string
		set   func(*portfake.Provider)
		where []vpcport.NewAddress
		class vpcport.Class
		made  int
	}{
		{"subnet", func(*portfake.Provider) {}, []vpcport.NewAddress{{SubnetID: "s-small"}}, vpcport.SubnetFull, 5},
		{"quota", func(p *portfake.Provider) { p.SetQuota(37) }, nil, vpcport.OverQuota, 37},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := bigProvider(portfake.Options{})
			tt.set(p)
			var jobs []job
			for i := range 64 {
				jobs = append(jobs, createJob(i, tt.where...))
			}
			a, _ := onDesk(t, p, jobs)
			if n := a.failed(); n[tt.class] != 64-tt.made || len(n) != 1 || len(p.All()) != tt.made {
				t.Errorf("%s: failed %v, %d ports, want %d", tt.name, n, len(p.All()), tt.made)
			}
			if n := p.Front.Count("Create"); n > 16 {
				t.Errorf("%s: %d calls", tt.name, n)
			}
		})
	}
}

// What one NIC asks for that cannot be holds up none of those that are asked for with it.
func TestOneOfABatchIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := bigProvider(portfake.Options{})
		p.AddPort(vpcport.Port{NetworkID: "n-big", MAC: vpcport.DerivedMAC(cluster, "uid-7", 0)})
		p.AddPort(vpcport.Port{NetworkID: "n-big", Addresses: []vpcport.FixedIP{{SubnetID: "s-big", IP: netip.MustParseAddr("10.0.0.9")}}})
		var jobs []job
		for i := range 20 {
			jobs = append(jobs, createJob(i))
		}
		jobs = append(jobs, createJob(20, vpcport.NewAddress{SubnetID: "s-big", IP: netip.MustParseAddr("10.0.0.9")}), createJob(21, vpcport.NewAddress{SubnetID: "s-none"}))
		a, _ := onDesk(t, p, jobs)
		if n := a.failed(); n[vpcport.MACTaken] != 1 || n[vpcport.AddressTaken] != 1 || n[vpcport.ReferenceGone] != 1 || len(n) != 3 {
			t.Errorf("failed %v", n)
		}
		if vpcport.ClassOf(a.of["uid-7"].err) != vpcport.MACTaken || vpcport.ClassOf(a.of["uid-20"].err) != vpcport.AddressTaken || len(p.All()) != 2+19 {
			t.Errorf("answers %v, %d ports", a.of, len(p.All()))
		}
	})
}

// A look finds what a listing does not show yet, and knows what is gone from it.
func TestLookBehindAListing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := bigProvider(portfake.Options{Lag: time.Minute})
		there := p.AddPort(vpcport.Port{NetworkID: "n-big", Device: vpcport.Device(cluster, "uid-0"), Owner: vpcport.Owner})
		given := p.AddPort(vpcport.Port{NetworkID: "n-big"})
		look := func(uid types.UID, recorded, given string) job {
			w := nicplan.Want{Device: vpcport.Device(cluster, string(uid)), Network: "n-big", Given: given}
			return job{uid: uid, step: nicplan.Step{Kind: nicplan.Look}, want: w, have: nicplan.Have{Recorded: recorded}}
		}
		a, _ := onDesk(t, p, []job{look("uid-0", there.ID, ""), look("uid-1", "", given.ID), look("uid-2", "gone", ""), look("uid-3", "", "none")})
		for uid, want := range map[types.UID]string{"uid-0": there.ID, "uid-1": given.ID, "uid-2": "", "uid-3": ""} {
			got := a.of[uid]
			if got.err != nil || len(got.ports) > 1 || len(got.ports) == 1 != (want != "") || want != "" && got.ports[0].ID != want {
				t.Errorf("%s: %+v, want %q", uid, got, want)
			}
		}
	})
}
