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

// replies are what calls came to.
type replies struct {
	mu sync.Mutex // guards all
	of map[types.UID]nicplan.Reply
}

func (a *replies) take(c call, got nicplan.Reply) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, twice := a.of[c.uid]; twice {
		panic(fmt.Sprintf("%s has two replies", c.uid))
	}
	a.of[c.uid] = got
}

// failed counts the answers of each class.
func (a *replies) failed() map[vpcport.Class]int {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := map[vpcport.Class]int{}
	for _, got := range a.of {
		if got.Err != nil {
			n[vpcport.ClassOf(got.Err)]++
		}
	}
	return n
}

// batch has calls done by a provider in virtual time, and returns how long it took.
func batched(t *testing.T, p vpcport.Provider, calls []call) (*replies, time.Duration) {
	t.Helper()
	a := &replies{of: map[types.UID]nicplan.Reply{}}
	d := newBatcher(clock.Real{}, a.take)
	began := time.Now()
	d.open(context.Background())
	for _, j := range calls {
		d.submit("a", p, j)
	}
	for {
		synctest.Wait()
		a.mu.Lock()
		n := len(a.of)
		a.mu.Unlock()
		if n == len(calls) {
			break
		}
		if time.Since(began) > time.Hour {
			t.Fatalf("%d of %d answers", n, len(calls))
		}
		time.Sleep(10 * time.Millisecond) //nolint:forbidigo // virtual time
	}
	took := time.Since(began)
	d.close()
	return a, took
}

func createCall(i int, addresses ...vpcport.NewAddress) call {
	uid := types.UID(fmt.Sprintf("uid-%d", i))
	w := nicplan.Desired{Port: vpcport.NewPort{Device: vpcport.Device(cluster, string(uid)), NetworkID: "n-big", Addresses: addresses, MAC: vpcport.DerivedMAC(cluster, string(uid), 0)}}
	return call{uid: uid, step: nicplan.Step{Kind: nicplan.Create}, desired: w}
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
		var calls []call
		for i := range pods {
			calls = append(calls, createCall(i))
		}
		a, took := batched(t, p, calls)
		if n := a.failed(); len(n) > 0 || len(p.All()) != pods {
			t.Errorf("failed %v, %d ports", n, len(p.All()))
		}
		requests := p.Front.Count("Create")
		bound := time.Duration((requests+atOnce-1)/atOnce) * latency
		t.Logf("%d requests, %v; these alone take %v", requests, took, bound)
		if requests != (pods+63)/64 || took > bound*115/100 {
			t.Errorf("%d requests, %v, want %d in %v", requests, took, (pods+63)/64, bound*115/100)
		}
		var polled []call
		for i, port := range p.All() {
			polled = append(polled, call{uid: types.UID(fmt.Sprintf("uid-%d", i)), step: nicplan.Step{Kind: nicplan.Poll, Port: port.ID}})
		}
		p.Front.ResetCalls()
		if a, _ := batched(t, p, polled); len(a.failed()) > 0 || p.Front.Count("Ports") != pods/100 || p.Front.Count("Get") != 0 {
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
		a := &replies{of: map[types.UID]nicplan.Reply{}}
		d := newBatcher(clock.Real{}, a.take)
		d.open(context.Background())
		for i := range ports {
			d.submit("a", p, createCall(i))
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
		d := newBatcher(clock.Real{}, func(c call, _ nicplan.Reply) {
			if c.step.Kind == nicplan.Poll {
				polled <- time.Now()
			}
		})
		d.open(context.Background())
		for i := range 64 * 8 * 10 { // four seconds of calls
			d.submit("a", p, createCall(i))
		}
		began := time.Now()
		d.submit("a", p, call{uid: "polled", step: nicplan.Step{Kind: nicplan.Poll, Port: port.ID}})
		took := (<-polled).Sub(began)
		if took < pollsYield || took > pollsYield+2*latency+gather {
			t.Errorf("a poll among calls that make ports took %v, want %v and a turn", took, pollsYield)
		}
		d.close()
		d = newBatcher(clock.Real{}, func(call, nicplan.Reply) { polled <- time.Now() })
		d.open(context.Background())
		began = time.Now()
		d.submit("a", p, call{uid: "polled", step: nicplan.Step{Kind: nicplan.Poll, Port: port.ID}})
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
			var calls []call
			for i := range 64 {
				calls = append(calls, createCall(i, tt.where...))
			}
			a, _ := batched(t, p, calls)
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
		var calls []call
		for i := range 20 {
			calls = append(calls, createCall(i))
		}
		calls = append(calls, createCall(20, vpcport.NewAddress{SubnetID: "s-big", IP: netip.MustParseAddr("10.0.0.9")}), createCall(21, vpcport.NewAddress{SubnetID: "s-none"}))
		a, _ := batched(t, p, calls)
		if n := a.failed(); n[vpcport.MACTaken] != 1 || n[vpcport.AddressTaken] != 1 || n[vpcport.ReferenceGone] != 1 || len(n) != 3 {
			t.Errorf("failed %v", n)
		}
		if vpcport.ClassOf(a.of["uid-7"].Err) != vpcport.MACTaken || vpcport.ClassOf(a.of["uid-20"].Err) != vpcport.AddressTaken || len(p.All()) != 2+19 {
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
		look := func(uid types.UID, recorded, given string) call {
			w := nicplan.Desired{Port: vpcport.NewPort{Device: vpcport.Device(cluster, string(uid)), NetworkID: "n-big"}, Given: given}
			return call{uid: uid, step: nicplan.Step{Kind: nicplan.Look}, desired: w, observed: nicplan.Observed{Recorded: recorded}}
		}
		a, _ := batched(t, p, []call{look("uid-0", there.ID, ""), look("uid-1", "", given.ID), look("uid-2", "gone", ""), look("uid-3", "", "none")})
		for uid, want := range map[types.UID]string{"uid-0": there.ID, "uid-1": given.ID, "uid-2": "", "uid-3": ""} {
			got := a.of[uid]
			if got.Err != nil || len(got.Ports) > 1 || len(got.Ports) == 1 != (want != "") || want != "" && got.Ports[0].ID != want {
				t.Errorf("%s: %+v, want %q", uid, got, want)
			}
		}
	})
}

// A failure that all NICs of a scope would meet holds them up. After the wait one tries for all, and its
// success resumes the others.
func TestBackoffs(t *testing.T) {
	clk := clock.NewFake(time.Unix(10_000, 0))
	b := newBackoffs(clk)
	nics := map[types.UID]*nic{}
	for _, uid := range []types.UID{"a", "b", "c"} {
		nics[uid] = &nic{key: types.NamespacedName{Name: string(uid)}, vpc: "blue"}
	}
	inSubnet := func(id string) nicplan.Desired {
		return nicplan.Desired{Port: vpcport.NewPort{Addresses: []vpcport.NewAddress{{SubnetID: id}}}}
	}
	full := inSubnet("full")
	pass := func(uid types.UID, d nicplan.Desired, k nicplan.Kind, want bool) {
		t.Helper()
		if failed, ok := b.pass(uid, nics[uid], d, k); ok != want || !ok && !failed.Until.After(clk.Now()) {
			t.Errorf("%s may call: %v until %v, want %v", uid, ok, failed.Until, want)
		}
	}
	ended := func(uid types.UID, class vpcport.Class, want ...string) {
		t.Helper()
		var err error
		if class != vpcport.Unknown {
			err = &vpcport.Error{Class: class}
		}
		resumed := map[string]bool{}
		for _, w := range b.ended(uid, nics[uid], full, nicplan.Create, err) {
			resumed[w.key.Name] = true
		}
		if len(resumed) != len(want) {
			t.Errorf("after the call of %s are resumed %v, want %v", uid, resumed, want)
		}
		for _, name := range want {
			if !resumed[name] {
				t.Errorf("after the call of %s %s is not resumed", uid, name)
			}
		}
	}
	ended("a", vpcport.SubnetFull)
	pass("b", full, nicplan.Create, false)
	pass("b", inSubnet("other"), nicplan.Create, true)
	pass("b", full, nicplan.Look, true)
	clk.Advance(time.Minute)
	pass("a", full, nicplan.Create, true)
	pass("b", full, nicplan.Create, false) // a tries for all
	pass("c", full, nicplan.Create, false)
	ended("a", vpcport.SubnetFull)
	if f := nics["a"].attempts.Failed; f.Times != 2 || !f.Until.After(clk.Now()) {
		t.Errorf("after the second failure: %+v", f)
	}
	clk.Advance(time.Minute)
	pass("b", full, nicplan.Create, true)
	pass("a", full, nicplan.Create, false)
	b.forget("b", nics["b"].key) // it does not try any more
	pass("c", full, nicplan.Create, true)
	ended("c", vpcport.Unknown, "a")
	pass("a", full, nicplan.Create, true)

	// A failure of the credentials holds up all calls of the VPC; a port that is deleted does not end that.
	ended("a", vpcport.Unauthorized)
	pass("c", full, nicplan.Look, false)
	ended("b", vpcport.OverQuota)
	if resumed := b.room("blue"); len(resumed) != 1 || resumed[0].class != vpcport.OverQuota {
		t.Errorf("a deleted port resumes %+v", resumed)
	}
	if resumed := b.open("blue"); len(resumed) != 2 || len(b.of) != 0 {
		t.Errorf("another provider resumes %+v", resumed)
	}
}
