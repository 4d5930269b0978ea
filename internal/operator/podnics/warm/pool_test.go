package warm_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/cloudfake"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/operator/podnics/warm"
	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/branch"
)

const (
	cluster = "test"
	vpcUID  = "uid-e"
)

// bed is a fake EC2 with the instance i-1 (m5.large: nine branches) on Node node-1, its VPC e, and a pool, in virtual time.
type bed struct {
	t   *testing.T
	ec2 *cloudfake.Cloud
	*branch.Provider
	late    *late
	pool    *warm.Pool
	end     context.CancelFunc // of the pool
	metrics *warm.Metrics

	mu       sync.Mutex // guards the fields below
	vpc      warm.VPC
	shut     bool
	recorded map[string]bool
	fails    error // error of listing PodNICs
	most     int   // maximum number of branches of node-1
	lost     error // error of Resolve
}

// inBed runs a test with a pool that keeps this many ports of each kind.
func inBed(t *testing.T, ports int, do func(b *bed)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &bed{t: t, ec2: cloudfake.New(cloudfake.Options{}), metrics: warm.NewMetrics(), most: 9}
		b.ec2.State.AddSubnet("subnet-a", "zone-a", "10.0.0.0/20", nil)
		b.ec2.State.AddSecurityGroup("sg-web", nil)
		b.ec2.State.AddInstance("i-1", "m5.large", "subnet-a")
		b.ec2.State.AddENI("i-1", 1, cloud.InterfaceTrunk, map[string]string{eni.TagCluster: cluster, eni.TagOwner: eni.Owner, eni.TagInstanceID: "i-1"})
		b.late = &late{Cloud: b.ec2}
		b.Provider = branch.Open(branch.Settings{Cloud: b.late, Cluster: cluster, VPC: cloudfake.VPC, Settle: time.Second})
		b.vpc = warm.VPC{UID: vpcUID, Network: cloudfake.VPC, Provider: b, Ports: ports}
		b.begin()
		do(b)
		b.end()
		passes(time.Hour) // lets goroutines that wait for nothing end
	})
}

// inWarmBed works like inBed, but calls do after the pool had time to create ports like that of NIC 1, which is in sg-web.
func inWarmBed(t *testing.T, ports int, do func(b *bed)) {
	t.Helper()
	inBed(t, ports, func(b *bed) {
		b.nic("1", request("sg-web"))
		lasts(time.Minute)
		do(b)
	})
}

// begin runs a pool as a new leader does, in place of the previous one.
func (b *bed) begin() {
	if b.end != nil {
		b.end()
		synctest.Wait()
	}
	ctx, end := context.WithCancel(b.t.Context())
	b.end = end
	b.pool = warm.New(warm.Options{
		Cluster: cluster, Logger: slog.New(slog.NewTextHandler(b.t.Output(), nil)), Metrics: b.metrics,
		VPC: func(name string) (warm.VPC, bool) {
			b.mu.Lock()
			defer b.mu.Unlock()
			return b.vpc, name == "e" && !b.shut
		},
		Exists: func(uid string) bool {
			b.mu.Lock()
			defer b.mu.Unlock()
			return uid == b.vpc.UID
		},
		Most: func(_ context.Context, node string) int {
			b.mu.Lock()
			defer b.mu.Unlock()
			return map[string]int{"node-1": b.most}[node]
		},
		Recorded: func(context.Context) (map[string]bool, error) {
			b.mu.Lock()
			defer b.mu.Unlock()
			return b.recorded, b.fails
		},
	})
	go func() {
		if err := b.pool.Run(ctx); err != nil {
			b.t.Error(err)
		}
	}()
}

// request returns a request for a port on i-1 in these groups.
func request(groups ...string) *vpcport.NewPort {
	return &vpcport.NewPort{NetworkID: cloudfake.VPC, Groups: groups, Host: "i-1"}
}

func (b *bed) nic(uid string, r *vpcport.NewPort) {
	b.pool.Note(types.UID(uid), warm.NIC{VPC: "e", Host: "i-1", Node: "node-1", Request: r})
}

// passes advances virtual time.
func passes(d time.Duration) { <-time.After(d) }

// lasts advances virtual time and lets everything due by then happen.
func lasts(d time.Duration) {
	passes(d)
	synctest.Wait()
}

// ready checks how many ports are ready, without asking EC2.
func (b *bed) ready(what string, ready int) {
	b.t.Helper()
	if n := b.pool.Ready()["e"]; n != ready {
		b.t.Errorf("%s: %d ports are ready, want %d", what, n, ready)
	}
}

// has checks how many ports are ready, and how many ENIs the pool has at EC2.
func (b *bed) has(what string, ready, enis int) {
	b.t.Helper()
	if n, list := b.pool.Ready()["e"], b.enis(); n != ready || len(list) != enis {
		b.t.Errorf("%s: %d ports are ready, want %d; %d ENIs, want %d: %+v", what, n, ready, len(list), enis, list)
	}
}

// metric returns the value of a metric of VPC e, with this result if it has that label.
func (b *bed) metric(name, result string) float64 {
	b.t.Helper()
	r := prometheus.NewRegistry()
	r.MustRegister(b.metrics.Collectors()...)
	all, err := r.Gather()
	if err != nil {
		b.t.Fatal(err)
	}
	for _, f := range all {
		for _, m := range f.GetMetric() {
			labels := m.GetLabel() // sorted by name
			if f.GetName() == name && (result == "" || labels[0].GetValue() == result) {
				return m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
	}
	return 0
}

// late is a cloud whose creations and associations are delayed.
type late struct {
	*cloudfake.Cloud
	by atomic.Int64 // nanoseconds
}

func (l *late) CreateENI(ctx context.Context, r cloud.CreateENI) (cloud.ENI, error) {
	e, err := l.Cloud.CreateENI(ctx, r)
	passes(time.Duration(l.by.Load()))
	return e, err
}

func (l *late) AssociateBranch(ctx context.Context, a cloud.Association, token string) (cloud.Association, error) {
	passes(time.Duration(l.by.Load()))
	return l.Cloud.AssociateBranch(ctx, a, token)
}

// Resolve implements vpcport.Resolver for the bed's provider.
func (b *bed) Resolve(ctx context.Context, n vpcport.NewPort) (vpcport.Resolved, error) {
	b.mu.Lock()
	lost := b.lost
	b.mu.Unlock()
	if lost != nil {
		return vpcport.Resolved{}, lost
	}
	return b.Provider.Resolve(ctx, n)
}

func (b *bed) slow(by time.Duration) { b.late.by.Store(int64(by)) }

// set changes the inputs of the pool.
func (b *bed) set(do func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	do()
}

func (b *bed) enis() []cloud.ENI {
	b.t.Helper()
	list, err := b.ec2.ENIs(context.Background(), cloud.ENIFilter{Tags: map[string]string{eni.TagOwner: branch.Owner}})
	if err != nil {
		b.t.Fatal(err)
	}
	return list
}

// leave creates an ENI with the pool's mark, as an operator does that is then killed.
func (b *bed) leave(id string) string {
	b.t.Helper()
	e, err := b.ec2.CreateENI(context.Background(), cloud.CreateENI{
		SubnetID: "subnet-a", Groups: []string{"sg-web"}, Description: warm.NamePrefix + "e",
		Tags: map[string]string{eni.TagCluster: cluster, eni.TagOwner: branch.Owner, eni.TagNIC: vpcport.WarmDevice(cluster, vpcUID, id)},
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return e.ID
}

func (b *bed) calls(op string) (n int) {
	for _, c := range b.ec2.Front.Calls() {
		if c.Op == op {
			n++
		}
	}
	return n
}

// lists calls listed, which must succeed.
func (b *bed) lists() {
	b.t.Helper()
	if err := b.listed(); err != nil {
		b.t.Error(err)
	}
}

// listed lists the ports as an operator's sweep does.
func (b *bed) listed() error {
	began := time.Now()
	list, err := b.Provider.Ports(context.Background(), vpcport.Filter{NetworkID: cloudfake.VPC, Owner: vpcport.Owner})
	if err != nil {
		return err
	}
	return b.pool.Listed(context.Background(), "e", list, began)
}

// gets takes a port for a new NIC in these groups, and returns its ID, or "" if there is none.
func (b *bed) gets(groups ...string) string {
	p, _ := b.pool.Take("nic", "e", *request(groups...))
	return p.ID
}

// getsNone checks that a new NIC in sg-web gets no port.
func (b *bed) getsNone(what string) {
	b.t.Helper()
	if id := b.gets("sg-web"); id != "" {
		b.t.Errorf("%s: Take() = port %s, want none", what, id)
	}
}

// However many NICs ask concurrently, each port is given away once.
func TestPortIsGivenAwayOnce(t *testing.T) {
	inWarmBed(t, 2, func(b *bed) {
		b.has("ports created", 2, 2)
		var mu sync.Mutex
		times := map[string]int{}
		var all sync.WaitGroup
		for range 32 {
			all.Go(func() {
				if id := b.gets("sg-web"); id != "" {
					mu.Lock()
					defer mu.Unlock()
					times[id]++
				}
			})
		}
		all.Wait()
		for id, n := range times {
			if n != 1 {
				t.Errorf("port %s was given away %d times", id, n)
			}
		}
		if len(times) < 2 {
			t.Errorf("ports given away = %v, want at least 2", times)
		}
		b.lists() // still shows them as the pool's
		lasts(time.Minute)
		if id := b.gets("sg-web"); id == "" || times[id] > 0 {
			t.Errorf("Take() = port %q, want one created since", id)
		}
		b.ec2.Front.Inject(cloudfake.Fault{Op: "CreateENI", Err: cloudfake.Err(cloud.SubnetFull, "")})
		b.nic("cold", request())
		cold := b.metric("berth_operator_warm_port_takes_total", "cold")
		for _, r := range []*vpcport.NewPort{request(), request(), {NetworkID: cloudfake.VPC, Groups: []string{"sg-web"}}, {NetworkID: cloudfake.VPC, Groups: []string{"sg-web"}, Host: "i-2"}} {
			if p, ok := b.pool.Take("cold", "e", *r); ok {
				t.Errorf("Take(%+v) = port %s, want none", r, p.ID)
			}
			b.nic("cold", request()) // as on each reconciliation
		}
		lasts(time.Minute)
		if n := b.metric("berth_operator_warm_ports", ""); n != float64(b.pool.Ready()["e"]) || n < 1 {
			t.Errorf("berth_operator_warm_ports = %v, want %v", n, b.pool.Ready())
		}
		if n := b.metric("berth_operator_warm_port_takes_total", "cold"); n != cold+1 {
			t.Errorf("cold takes = %v, want %v", n, cold+1)
		}
	})
}

// A port that cannot be created is not retried too often, and is created once that is possible.
func TestNoRoomInTheSubnet(t *testing.T) {
	inBed(t, 1, func(b *bed) {
		b.ec2.Front.Inject(cloudfake.Fault{Op: "CreateENI", Err: cloudfake.Err(cloud.SubnetFull, "InsufficientFreeAddressesInSubnet")})
		of := request("sg-web")
		of.NetworkID = "vpc-before" // of an earlier VPC object of the same name
		b.nic("0", of)
		b.nic("1", request("sg-web"))
		lasts(time.Hour)
		if n := b.calls("CreateENI"); n < 10 || n > 40 {
			t.Errorf("%d CreateENI calls within an hour, want one every few minutes", n)
		}
		b.ec2.Front.ClearFaults()
		b.nic("1", request("sg-web"))
		lasts(10 * time.Minute)
		b.has("created once there is room", 1, 1)
	})
}

// A port is not created twice after a lost reply. A port that a dead operator created and did not bind is deleted. Usable ports are used once
// it is certain that they belong to nobody.
func TestFoundPorts(t *testing.T) {
	inBed(t, 1, func(b *bed) {
		b.ec2.Front.Inject(cloudfake.Fault{Op: "CreateENI", Times: 1, After: true, Err: cloudfake.Err(cloud.Transient, "")})
		b.nic("1", request("sg-web"))
		lasts(30 * time.Second)
		b.has("request repeated", 1, 1)
		b.leave("half")
		for range 4 {
			b.lists()
			lasts(time.Minute)
		}
		b.has("port that is not bound deleted", 1, 1)
		mine := b.enis()[0].ID

		b.set(func() { b.fails = errors.New("API server unavailable") })
		b.begin() // another operator
		b.nic("1", request("sg-web"))
		lasts(time.Minute)
		b.has("not offered while PodNICs cannot be listed", 0, 1)
		b.set(func() { b.fails = nil })
		lasts(time.Minute)
		b.has("not offered while an earlier deletion may not show yet", 0, 1)
		for range 3 {
			b.lists()
			lasts(time.Minute)
		}
		b.has("offered after later listings", 1, 1)

		b.set(func() { b.recorded = map[string]bool{mine: true} })
		b.begin() // yet another operator
		b.nic("1", request("sg-web"))
		lasts(time.Minute)
		b.has("port recorded in a PodNIC", 1, 2)
		if id := b.gets("sg-web"); id == "" || id == mine {
			t.Errorf("Take() = port %q, want another than the recorded one", id)
		}
	})
}

// A port that an earlier operator deleted, but that stale listings still show, is not given away.
func TestFoundAndGone(t *testing.T) {
	inWarmBed(t, 1, func(b *bed) {
		before := time.Now()
		shown, err := b.Provider.Ports(b.t.Context(), vpcport.Filter{NetworkID: cloudfake.VPC, Owner: vpcport.Owner})
		if err != nil {
			t.Fatal(err)
		}
		if err := b.ec2.DeleteENI(t.Context(), shown[0].ID); err != nil {
			t.Fatal(err)
		}
		b.begin() // another operator
		if err := b.pool.Listed(t.Context(), "e", shown, before); err != nil {
			t.Fatal(err)
		}
		b.nic("1", request("sg-web"))
		for range 3 {
			lasts(15 * time.Second)
			if err := b.pool.Listed(t.Context(), "e", shown, time.Now()); err != nil { // stale
				t.Fatal(err)
			}
			lasts(time.Second)
			if id := b.gets("sg-web"); id == shown[0].ID {
				t.Errorf("Take() = deleted port %s", id)
			}
		}
		lasts(time.Minute)
		b.lists()
		lasts(time.Minute)
		b.has("another port created", 1, 1)
	})
}

// A port is not given away after an attempt to delete it, whatever the result. The deletion is retried, with increasing delays.
func TestFailedDeletionIsRetried(t *testing.T) {
	inWarmBed(t, 1, func(b *bed) {
		id := b.enis()[0].ID
		b.ec2.Front.Inject(cloudfake.Fault{Op: "DeleteENI", ENI: id, Err: cloudfake.Err(cloud.Transient, "")})
		b.pool.Yield("e")
		lasts(time.Second)
		for range 4 {
			if b.gets("sg-web") == id {
				t.Errorf("Take() = port %s after an attempt to delete it", id)
			}
			lasts(15 * time.Minute)
		}
		if n := b.calls("DeleteENI"); n < 5 || n > 40 {
			t.Errorf("%d DeleteENI calls within an hour, want one every few minutes", n)
		}
		b.ec2.Front.ClearFaults()
		lasts(10 * time.Minute)
		if slices.ContainsFunc(b.enis(), func(e cloud.ENI) bool { return e.ID == id }) || b.pool.Ready()["e"] != 1 {
			t.Errorf("%d ports are ready, ENIs = %+v, want one other than %s", b.pool.Ready()["e"], b.enis(), id)
		}
	})
}

// A listing does not show ports created after it began, and shows ports in creation as unbound.
func TestStaleListings(t *testing.T) {
	inBed(t, 1, func(b *bed) {
		began := time.Now()
		b.nic("1", request("sg-web"))
		lasts(time.Minute)
		if err := b.pool.Listed(b.t.Context(), "e", nil, began); err != nil {
			t.Fatal(err)
		}
		b.has("created after the listing began", 1, 1)
		b.ec2.Front.Inject(cloudfake.Fault{Op: "AssociateBranch", Times: 1, Err: cloudfake.Err(cloud.Conflict, "InvalidVlanId.Duplicate")})
		b.slow(10 * time.Second)
		b.nic("2", request())
		lasts(15 * time.Second) // created, but not associated yet
		b.lists()
		b.slow(0)
		lasts(5 * time.Minute)
		b.has("created once and not deleted", 2, 2)
		b.pool.Note("1", warm.NIC{VPC: "e", Host: "i-1", Node: "node-1", Port: b.leave("of a NIC"), Request: request("sg-web")})
		for range 4 {
			b.lists()
			lasts(time.Minute)
		}
		b.has("a NIC's port still has the pool's mark", 2, 3)
	})
}

// However many kinds there are, few calls are in flight at a time. Found ports are not deleted before NICs had time to become known.
func TestManyKinds(t *testing.T) {
	inBed(t, 1, func(b *bed) {
		b.set(func() { b.most = 1000 })
		b.slow(time.Minute)
		for i := range 50 {
			b.nic(fmt.Sprint(i), request(fmt.Sprint("sg-", i)))
		}
		lasts(50 * time.Second)
		if n := b.calls("CreateENI"); n == 0 || n > 8 {
			t.Errorf("%d calls in flight, want 1 to 8", n)
		}
		b.slow(0)
	})
	inWarmBed(t, 1, func(b *bed) {
		b.begin()
		b.lists()
		lasts(50 * time.Second)
		b.has("before any NIC is known", 0, 1)
	})
}

// When a pod lacks an address or quota, the pool gives up its ports and keeps none for a while.
func TestPoolGivesUpPorts(t *testing.T) {
	inWarmBed(t, 2, func(b *bed) {
		b.has("ports created", 2, 2)
		b.pool.Yield("e")
		lasts(10 * time.Second)
		b.has("given up", 0, 0)
		lasts(9 * time.Minute)
		b.has("still given up", 0, 0)
		lasts(2 * time.Minute)
		b.has("ports created again", 2, 2)
	})
}

// Existing ports are used according to EC2's data about them, whatever groups they have and whoever changed these.
func TestPortsWithOtherProperties(t *testing.T) {
	inBed(t, 1, func(b *bed) {
		b.ec2.State.AddSecurityGroup("sg-open", nil)
		b.nic("1", request("sg-web"))
		lasts(time.Minute)
		changed := b.enis()[0].ID
		if err := b.ec2.SetGroups(b.t.Context(), changed, []string{"sg-open"}); err != nil {
			t.Fatal(err)
		}
		b.slow(100 * time.Millisecond) // the replacement takes time
		b.lists()
		b.getsNone("groups changed")
		b.nic("2", request("sg-open"))
		lasts(time.Second)
		if id := b.gets("sg-open"); id != changed {
			t.Errorf("Take() in sg-open = port %q, want %s", id, changed)
		}
	})
}

// A branch created before its VPC got another IP family is not given away, and is replaced.
func TestPortsOfFewerFamilies(t *testing.T) {
	inBed(t, 1, func(b *bed) {
		b.ec2.State.SetIPv6("subnet-a", "2001:db8:0:1::/64")
		b.nic("1", request("sg-web"))
		lasts(time.Minute)
		b.has("single-stack port", 1, 1)
		b.set(func() {
			b.Provider = branch.Open(branch.Settings{Cloud: b.late, Cluster: cluster, VPC: cloudfake.VPC, Settle: time.Second, Families: ipfamily.Dual})
			b.vpc.Families = 2
		})
		b.getsNone("dual-stack pod")
		b.lists()
		lasts(5 * time.Minute)
		b.has("dual-stack port", 1, 1)
		if p, ok := b.pool.Take("nic", "e", *request("sg-web")); !ok || len(p.Addresses) != 2 {
			t.Errorf("Take() for a dual-stack pod = addresses %+v, %v, want two addresses", p.Addresses, ok)
		}
	})
}

// A branch whose host lost its trunk is not used. If the state of the host cannot be determined, its branches stay.
func TestHostWithoutTrunk(t *testing.T) {
	inWarmBed(t, 1, func(b *bed) {
		b.ec2.Front.Inject(cloudfake.Fault{Err: cloudfake.Err(cloud.Transient, "")})
		if b.listed() == nil {
			t.Error("listing succeeded although EC2 is unavailable")
		}
		lasts(time.Minute)
		b.ready("EC2 unavailable", 1)
		b.ec2.Front.ClearFaults()
		b.set(func() { b.lost = &vpcport.Error{Class: vpcport.Transient, Message: "no answer"} })
		b.lists()
		b.has("host cannot be resolved", 1, 1)
		b.set(func() { b.lost = &vpcport.Error{Class: vpcport.Conflict, Message: "there is no trunk"} })
		b.lists()
		b.getsNone("host without trunk")
		b.set(func() { b.lost = nil })
		lasts(2 * time.Minute)
		b.has("trunk restored", 1, 1)
	})
}

// The pool does nothing for a VPC that is not open. If a VPC is being deleted, its ports are deleted, including those in creation, and
// nothing is passed on to a VPC of the same name.
func TestDeletedVPCEmptiesItsPool(t *testing.T) {
	inWarmBed(t, 2, func(b *bed) {
		b.set(func() { b.shut = true })
		b.nic("2", request())
		lasts(time.Hour)
		b.has("shut", 2, 2)
		b.getsNone("VPC not open")
		b.set(func() { b.shut = false })
		b.slow(time.Minute)
		lasts(30 * time.Second) // two more are in creation
		b.set(func() { b.vpc.Ending = true })
		lasts(20 * time.Second)
		b.getsNone("VPC being deleted")
		b.ec2.Front.Inject(cloudfake.Fault{Op: "DeleteENI", Times: 3, Err: cloudfake.Err(cloud.Transient, "")})
		b.set(func() { b.shut = true })
		lasts(time.Hour)
		b.has("VPC deleted", 0, 0)

		b.slow(0)
		b.set(func() { b.shut, b.vpc.Ending = false, false })
		b.nic("2", request())
		lasts(time.Minute)
		b.has("VPC not being deleted", 4, 4)
		b.set(func() { b.vpc.UID = "another" })
		b.getsNone("VPC recreated")
		lasts(time.Minute)
		b.has("recreated VPC with the same name", 4, 8)
	})
}

// A kind that is no longer needed keeps ports for a while, and the pool never takes room that the NICs of a node need.
func TestDemand(t *testing.T) {
	inBed(t, 1, func(b *bed) {
		for i := range 8 {
			b.nic(fmt.Sprint(i), request("sg-web"))
		}
		b.set(func() { b.vpc.Ports = 0 })
		lasts(time.Minute)
		b.has("no warm ports configured", 0, 0)
		b.set(func() { b.vpc.Ports = 1 })
		b.nic("8", nil) // with a fixed address
		lasts(time.Minute)
		b.has("NICs use all the room", 0, 0)
		b.pool.Forget("8")
		lasts(time.Minute)
		b.has("room for one", 1, 1)
		b.nic("8", nil)
		lasts(time.Minute)
		b.has("warm port made room", 0, 0)
		for i := range 9 {
			b.pool.Forget(types.UID(fmt.Sprint(i)))
		}
		lasts(9 * time.Minute)
		b.has("needed recently", 1, 1)
		lasts(3 * time.Minute)
		b.has("no longer needed", 0, 0)
	})
}
