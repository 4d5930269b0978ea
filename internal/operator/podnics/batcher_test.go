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

// replies are the replies by NIC.
type replies struct {
	mu sync.Mutex // guards all
	of map[types.UID]nicplan.Reply
}

func (a *replies) take(c call, got nicplan.Reply) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, twice := a.of[c.uid]; twice {
		panic(fmt.Sprintf("call of %s got two replies", c.uid))
	}
	a.of[c.uid] = got
}

// failed counts the errors by class.
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

// batched makes calls with a provider in virtual time, and returns the replies and the time it took.
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
			t.Fatalf("got %d of %d replies within an hour", n, len(calls))
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

// bigProvider returns a provider with a subnet for thousands of ports and a small one.
func bigProvider(o portfake.Options) *portfake.Provider {
	p := portfake.New(o)
	p.AddNetwork(vpcport.Network{ID: "n-big", MTU: 1500, Subnets: []vpcport.Subnet{
		{ID: "s-big", CIDR: netip.MustParsePrefix("10.0.0.0/16"), Gateway: netip.MustParseAddr("10.0.0.1")}, small,
	}})
	p.AddHost("node-a", ovn)
	return p
}

// The ports of 2,000 pods created at the same moment take as few requests as the provider allows, and little more
// time than these requests.
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
			t.Errorf("failures = %v with %d ports created, want no failure and a port per pod", n, len(p.All()))
		}
		requests := p.Front.Count("Create")
		bound := time.Duration((requests+atOnce-1)/atOnce) * latency
		t.Logf("%d requests in %v, at least %v", requests, took, bound)
		if requests != (pods+63)/64 || took > bound*115/100 {
			t.Errorf("%d requests in %v, want %d in at most %v", requests, took, (pods+63)/64, bound*115/100)
		}
		var polled []call
		for i, port := range p.All() {
			polled = append(polled, call{uid: types.UID(fmt.Sprintf("uid-%d", i)), step: nicplan.Step{Kind: nicplan.Poll, Port: port.ID}})
		}
		p.Front.ResetCalls()
		if a, _ := batched(t, p, polled); len(a.failed()) > 0 || p.Front.Count("Ports") != pods/100 || p.Front.Count("Get") != 0 {
			t.Errorf("failures of polls %v with %d requests", a.failed(), p.Front.Count("Ports", "Get"))
		}
	})
}

// Few partly filled requests are in flight at a time: other calls wait for more, but not for long.
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
			t.Errorf("%d replies, failures %v, %v after the last call", len(a.of), a.failed(), latency+gatherMore)
		}
		d.close()
		if n := p.Front.Count("Create"); n > ports/5 {
			t.Errorf("%d requests for %d ports, want at most a fifth", n, ports)
		}
	})
}

// Polls yield to calls that give pods their ports, but not indefinitely.
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
			t.Errorf("poll among creations took %v, want %v and the time of a request", took, pollsYield)
		}
		d.close()
		d = newBatcher(clock.Real{}, func(call, nicplan.Reply) { polled <- time.Now() })
		d.open(context.Background())
		began = time.Now()
		d.submit("a", p, call{uid: "polled", step: nicplan.Step{Kind: nicplan.Poll, Port: port.ID}})
		if took := (<-polled).Sub(began); took != gather+latency {
			t.Errorf("poll alone took %v, want %v", took, gather+latency)
		}
		d.close()
	})
}

// If there is no room for a whole batch, it fills the remaining room with few requests.
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
				t.Errorf("%s: failures %v, %d ports created, want %d", tt.name, n, len(p.All()), tt.made)
			}
			if n := p.Front.Count("Create"); n > 16 {
				t.Errorf("%s: %d requests, want at most 16", tt.name, n)
			}
		})
	}
}

// An impossible request of one NIC does not affect the others in its batch.
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
			t.Errorf("failures = %v, want one each of MACTaken, AddressTaken and ReferenceGone", n)
		}
		if vpcport.ClassOf(a.of["uid-7"].Err) != vpcport.MACTaken || vpcport.ClassOf(a.of["uid-20"].Err) != vpcport.AddressTaken || len(p.All()) != 2+19 {
			t.Errorf("replies = %v with %d ports, want two refusals and 19 new ports", a.of, len(p.All()))
		}
	})
}

// Look finds ports that a stale listing does not show yet, and does not report deleted ones.
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
				t.Errorf("reply for %s = %+v, want port %q", uid, got, want)
			}
		}
	})
}

// A failure that would affect all NICs of a scope delays them all. After the delay, one NIC probes, and its success
// resumes the others.
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
			t.Errorf("pass(%s) = %v until %v, want %v", uid, ok, failed.Until, want)
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
			t.Errorf("call of %s resumed %v, want %v", uid, resumed, want)
		}
		for _, name := range want {
			if !resumed[name] {
				t.Errorf("call of %s did not resume %s", uid, name)
			}
		}
	}
	ended("a", vpcport.SubnetFull)
	pass("b", full, nicplan.Create, false)
	pass("b", inSubnet("other"), nicplan.Create, true)
	pass("b", full, nicplan.Look, true)
	clk.Advance(time.Minute)
	pass("a", full, nicplan.Create, true)
	pass("b", full, nicplan.Create, false) // a probes for all
	pass("c", full, nicplan.Create, false)
	ended("a", vpcport.SubnetFull)
	if f := nics["a"].attempts.Failed; f.Times != 2 || !f.Until.After(clk.Now()) {
		t.Errorf("after the second failure = %+v, want two failures and a delay", f)
	}
	clk.Advance(time.Minute)
	pass("b", full, nicplan.Create, true)
	pass("a", full, nicplan.Create, false)
	b.forget("b", nics["b"].key) // no longer probes
	pass("c", full, nicplan.Create, true)
	ended("c", vpcport.Unknown, "a")
	pass("a", full, nicplan.Create, true)

	// A failure of the credentials delays all calls of the VPC. The deletion of a port does not end that.
	ended("a", vpcport.Unauthorized)
	pass("c", full, nicplan.Look, false)
	ended("b", vpcport.OverQuota)
	if resumed := b.room("blue"); len(resumed) != 1 || resumed[0].class != vpcport.OverQuota {
		t.Errorf("room() resumed %+v, want the NIC over quota", resumed)
	}
	if resumed := b.open("blue"); len(resumed) != 2 || len(b.of) != 0 {
		t.Errorf("open() resumed %+v, want all", resumed)
	}
}
