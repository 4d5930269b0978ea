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

// bed is an EC2 with the instance i-1 (m5.large: nine branches) on Node node-1, its VPC e, and a pool,
// in virtual time.
type bed struct {
	t   *testing.T
	ec2 *cloudfake.Cloud
	*branch.Provider
	late    *late
	pool    *warm.Pool
	end     context.CancelFunc // of the pool
	metrics *warm.Metrics

	mu       sync.Mutex // guards all below
	vpc      warm.VPC
	shut     bool
	recorded map[string]bool
	fails    error // of the listing of PodNICs
	most     int   // of node-1
	lost     error // why nothing can be resolved
}

// inBed does a test with a pool that has so many ports of each kind ready.
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
		passes(time.Hour) // what waits for nothing any more ends
	})
}

// inWarmBed is inBed once the pool had time to make ports like that of the NIC 1, which is in sg-web.
func inWarmBed(t *testing.T, ports int, do func(b *bed)) {
	t.Helper()
	inBed(t, ports, func(b *bed) {
		b.nic("1", request("sg-web"))
		lasts(time.Minute)
		do(b)
	})
}

// begin runs a pool, as an operator does that begins to lead, in the place of the one before.
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

// request asks for a port on i-1 in groups.
func request(groups ...string) *vpcport.NewPort {
	return &vpcport.NewPort{NetworkID: cloudfake.VPC, Groups: groups, Host: "i-1"}
}

func (b *bed) nic(uid string, r *vpcport.NewPort) {
	b.pool.Note(types.UID(uid), warm.NIC{VPC: "e", Host: "i-1", Node: "node-1", Request: r})
}

// passes returns after some time, which is virtual: nothing really waits.
func passes(d time.Duration) { <-time.After(d) }

// lasts lets some time pass, and all be done that is due by then.
func lasts(d time.Duration) {
	passes(d)
	synctest.Wait()
}

// ready checks how many ports are ready, without a question to EC2.
func (b *bed) ready(what string, ready int) {
	b.t.Helper()
	if n := b.pool.Ready()["e"]; n != ready {
		b.t.Errorf("%s: %d are ready, want %d", what, n, ready)
	}
}

// has checks how many ports are ready, and how many ENIs EC2 has for the pool.
func (b *bed) has(what string, ready, enis int) {
	b.t.Helper()
	if n, list := b.pool.Ready()["e"], b.enis(); n != ready || len(list) != enis {
		b.t.Errorf("%s: %d are ready, want %d; EC2 has %d, want %d: %+v", what, n, ready, len(list), enis, list)
	}
}

// metric is what a metric of VPC e says, with a result if it has such.
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
			labels := m.GetLabel() // in the order of their names
			if f.GetName() == name && (result == "" || labels[0].GetValue() == result) {
				return m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
	}
	return 0
}

// late is a cloud whose creations and associations take a while to be asked for.
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

// Resolve implements vpcport.Resolver, of the bed's provider.
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

// set changes what the pool is given.
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

// leave makes an ENI that is marked as the pool's, as an operator does that is killed then.
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

// lists is listed, which must not fail.
func (b *bed) lists() {
	b.t.Helper()
	if err := b.listed(); err != nil {
		b.t.Error(err)
	}
}

// listed is what an operator's sweep does.
func (b *bed) listed() error {
	began := time.Now()
	list, err := b.Provider.Ports(context.Background(), vpcport.Filter{NetworkID: cloudfake.VPC, Owner: vpcport.Owner})
	if err != nil {
		return err
	}
	return b.pool.Listed(context.Background(), "e", list, began)
}

// gets gives a new NIC in groups a port, and returns its ID; empty: there is none.
func (b *bed) gets(groups ...string) string {
	p, _ := b.pool.Take("nic", "e", *request(groups...))
	return p.ID
}

// getsNone checks that a new NIC in sg-web gets no port.
func (b *bed) getsNone(what string) {
	b.t.Helper()
	if id := b.gets("sg-web"); id != "" {
		b.t.Errorf("%s: a NIC gets %s", what, id)
	}
}

// However many ask at once, a port is given away once.
func TestTakenOnce(t *testing.T) {
	inWarmBed(t, 2, func(b *bed) {
		b.has("they are made", 2, 2)
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
				t.Errorf("%s was given away %d times", id, n)
			}
		}
		if len(times) < 2 {
			t.Errorf("%v were given away, want 2 at least", times)
		}
		b.lists() // which shows them as the pool's still
		lasts(time.Minute)
		if id := b.gets("sg-web"); id == "" || times[id] > 0 {
			t.Errorf("then %q is given away, of those made since", id)
		}
		b.ec2.Front.Inject(cloudfake.Fault{Op: "CreateENI", Err: cloudfake.Err(cloud.SubnetFull, "")})
		b.nic("cold", request())
		cold := b.metric("berth_operator_warm_port_takes_total", "cold")
		for _, r := range []*vpcport.NewPort{request(), request(), {NetworkID: cloudfake.VPC, Groups: []string{"sg-web"}}, {NetworkID: cloudfake.VPC, Groups: []string{"sg-web"}, Host: "i-2"}} {
			if p, ok := b.pool.Take("cold", "e", *r); ok {
				t.Errorf("%+v gets %s", r, p.ID)
			}
			b.nic("cold", request()) // as each time that it is looked at
		}
		lasts(time.Minute)
		if n := b.metric("berth_operator_warm_ports", ""); n != float64(b.pool.Ready()["e"]) || n < 1 {
			t.Errorf("the metric says that %v are ready, of %v", n, b.pool.Ready())
		}
		if n := b.metric("berth_operator_warm_port_takes_total", "cold"); n != cold+1 {
			t.Errorf("the metric says that %v NICs were cold, want %v", n, cold+1)
		}
	})
}

// What cannot be made is not asked for again and again, and is made once it can be.
func TestNoRoomInTheSubnet(t *testing.T) {
	inBed(t, 1, func(b *bed) {
		b.ec2.Front.Inject(cloudfake.Fault{Op: "CreateENI", Err: cloudfake.Err(cloud.SubnetFull, "InsufficientFreeAddressesInSubnet")})
		of := request("sg-web")
		of.NetworkID = "vpc-before" // of a VPC object of the same name
		b.nic("0", of)
		b.nic("1", request("sg-web"))
		lasts(time.Hour)
		if n := b.calls("CreateENI"); n < 10 || n > 40 {
			t.Errorf("%d calls within an hour, want one every few minutes", n)
		}
		b.ec2.Front.ClearFaults()
		b.nic("1", request("sg-web"))
		lasts(10 * time.Minute)
		b.has("there is room", 1, 1)
	})
}

// A port whose reply was lost is not made twice; one that a dead operator made and did not bind goes; and
// those that are of use are used, once it is sure that they are nobody's.
func TestFoundPorts(t *testing.T) {
	inBed(t, 1, func(b *bed) {
		b.ec2.Front.Inject(cloudfake.Fault{Op: "CreateENI", Times: 1, After: true, Err: cloudfake.Err(cloud.Transient, "")})
		b.nic("1", request("sg-web"))
		lasts(30 * time.Second)
		b.has("asked for again", 1, 1)
		b.leave("half")
		for range 4 {
			b.lists()
			lasts(time.Minute)
		}
		b.has("the other, which is no branch, goes", 1, 1)
		mine := b.enis()[0].ID

		b.set(func() { b.fails = errors.New("the API server is away") })
		b.begin() // another operator
		b.nic("1", request("sg-web"))
		lasts(time.Minute)
		b.has("not as long as nobody says whose it is", 0, 1)
		b.set(func() { b.fails = nil })
		lasts(time.Minute)
		b.has("what the operator before did may not show yet", 0, 1)
		for range 3 {
			b.lists()
			lasts(time.Minute)
		}
		b.has("seen once more", 1, 1)

		b.set(func() { b.recorded = map[string]bool{mine: true} })
		b.begin() // and another
		b.nic("1", request("sg-web"))
		lasts(time.Minute)
		b.has("a NIC has it", 1, 2)
		if id := b.gets("sg-web"); id == "" || id == mine {
			t.Errorf("%q is given away", id)
		}
	})
}

// What an operator before this one deleted, and listings show still, is given to nobody.
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
			if err := b.pool.Listed(t.Context(), "e", shown, time.Now()); err != nil { // it trails
				t.Fatal(err)
			}
			lasts(time.Second)
			if id := b.gets("sg-web"); id == shown[0].ID {
				t.Errorf("%s is given away", id)
			}
		}
		lasts(time.Minute)
		b.lists()
		lasts(time.Minute)
		b.has("another is made", 1, 1)
	})
}

// A port whose deletion has started is given to nobody, whatever came of that; it is tried again, and not
// without end.
func TestDeletionThatFails(t *testing.T) {
	inWarmBed(t, 1, func(b *bed) {
		id := b.enis()[0].ID
		b.ec2.Front.Inject(cloudfake.Fault{Op: "DeleteENI", ENI: id, Err: cloudfake.Err(cloud.Transient, "")})
		b.pool.Yield("e")
		lasts(time.Second)
		for range 4 {
			if b.gets("sg-web") == id {
				t.Errorf("%s is given away", id)
			}
			lasts(15 * time.Minute)
		}
		if n := b.calls("DeleteENI"); n < 5 || n > 40 {
			t.Errorf("%d deletions within an hour, want one every few minutes", n)
		}
		b.ec2.Front.ClearFaults()
		lasts(10 * time.Minute)
		if slices.ContainsFunc(b.enis(), func(e cloud.ENI) bool { return e.ID == id }) || b.pool.Ready()["e"] != 1 {
			t.Errorf("%d are ready, EC2 has %+v; want another than %s", b.pool.Ready()["e"], b.enis(), id)
		}
	})
}

// A listing says nothing of what was made after it began, and shows what is being made as nobody's.
func TestListingsThatTrail(t *testing.T) {
	inBed(t, 1, func(b *bed) {
		began := time.Now()
		b.nic("1", request("sg-web"))
		lasts(time.Minute)
		if err := b.pool.Listed(b.t.Context(), "e", nil, began); err != nil {
			t.Fatal(err)
		}
		b.has("it was made since", 1, 1)
		b.ec2.Front.Inject(cloudfake.Fault{Op: "AssociateBranch", Times: 1, Err: cloudfake.Err(cloud.Conflict, "InvalidVlanId.Duplicate")})
		b.slow(10 * time.Second)
		b.nic("2", request())
		lasts(15 * time.Second) // it is created, and no branch yet
		b.lists()
		b.slow(0)
		lasts(5 * time.Minute)
		b.has("made once, and not deleted", 2, 2)
		b.pool.Note("1", warm.NIC{VPC: "e", Host: "i-1", Node: "node-1", Port: b.leave("of a NIC"), Request: request("sg-web")})
		for range 4 {
			b.lists()
			lasts(time.Minute)
		}
		b.has("a NIC has one with the pool's mark", 2, 3)
	})
}

// However many kinds there are, few calls are under way at once; and what was found is not deleted
// before NICs had time to be known.
func TestManyKinds(t *testing.T) {
	inBed(t, 1, func(b *bed) {
		b.set(func() { b.most = 1000 })
		b.slow(time.Minute)
		for i := range 50 {
			b.nic(fmt.Sprint(i), request(fmt.Sprint("sg-", i)))
		}
		lasts(50 * time.Second)
		if n := b.calls("CreateENI"); n == 0 || n > 8 {
			t.Errorf("%d calls at once", n)
		}
		b.slow(0)
	})
	inWarmBed(t, 1, func(b *bed) {
		b.begin()
		b.lists()
		lasts(50 * time.Second)
		b.has("no NIC is known yet", 0, 1)
	})
}

// What a pod lacks the pool gives up, and keeps none for a while.
func TestYields(t *testing.T) {
	inWarmBed(t, 2, func(b *bed) {
		b.has("they are made", 2, 2)
		b.pool.Yield("e")
		lasts(10 * time.Second)
		b.has("given up", 0, 0)
		lasts(9 * time.Minute)
		b.has("for a while", 0, 0)
		lasts(2 * time.Minute)
		b.has("made again", 2, 2)
	})
}

// Ports that were there before the operator are used for what they are by EC2's word; whatever
// groups they have, and whoever changed those.
func TestPortsThatAreOther(t *testing.T) {
	inBed(t, 1, func(b *bed) {
		b.ec2.State.AddSecurityGroup("sg-open", nil)
		b.nic("1", request("sg-web"))
		lasts(time.Minute)
		changed := b.enis()[0].ID
		if err := b.ec2.SetGroups(b.t.Context(), changed, []string{"sg-open"}); err != nil {
			t.Fatal(err)
		}
		b.slow(100 * time.Millisecond) // the port that replaces it is not there at once
		b.lists()
		b.getsNone("its groups are others")
		b.nic("2", request("sg-open"))
		lasts(time.Second)
		if id := b.gets("sg-open"); id != changed {
			t.Errorf("a pod in sg-open gets %q, want %s", id, changed)
		}
	})
}

// A branch that was made before its VPC got another family is given to no pod, and another is made in its
// place.
func TestPortsOfFewerFamilies(t *testing.T) {
	inBed(t, 1, func(b *bed) {
		b.ec2.State.SetIPv6("subnet-a", "2001:db8:0:1::/64")
		b.nic("1", request("sg-web"))
		lasts(time.Minute)
		b.has("of one family", 1, 1)
		b.set(func() {
			b.Provider = branch.Open(branch.Settings{Cloud: b.late, Cluster: cluster, VPC: cloudfake.VPC, Settle: time.Second, Families: ipfamily.Dual})
			b.vpc.Families = 2
		})
		b.getsNone("a pod of two families")
		b.lists()
		lasts(5 * time.Minute)
		b.has("of both", 1, 1)
		if p, ok := b.pool.Take("nic", "e", *request("sg-web")); !ok || len(p.Addresses) != 2 {
			t.Errorf("a pod of two families gets %+v, %v", p.Addresses, ok)
		}
	})
}

// A branch whose host lost its trunk is of no use, and of one that nobody can be asked about nothing is
// said.
func TestHostWithoutTrunk(t *testing.T) {
	inWarmBed(t, 1, func(b *bed) {
		b.ec2.Front.Inject(cloudfake.Fault{Err: cloudfake.Err(cloud.Transient, "")})
		if b.listed() == nil {
			t.Error("EC2 answers")
		}
		lasts(time.Minute)
		b.ready("nobody says anything", 1)
		b.ec2.Front.ClearFaults()
		b.set(func() { b.lost = &vpcport.Error{Class: vpcport.Transient, Message: "no answer"} })
		b.lists()
		b.has("it is there", 1, 1)
		b.set(func() { b.lost = &vpcport.Error{Class: vpcport.Conflict, Message: "there is no trunk"} })
		b.lists()
		b.getsNone("its host has no trunk")
		b.set(func() { b.lost = nil })
		lasts(2 * time.Minute)
		b.has("it serves again", 1, 1)
	})
}

// Nothing is done for a VPC that is not open; one that is being deleted loses its ports, also
// those on their way; and nothing of it is left for one of its name.
func TestVPCThatEnds(t *testing.T) {
	inWarmBed(t, 2, func(b *bed) {
		b.set(func() { b.shut = true })
		b.nic("2", request())
		lasts(time.Hour)
		b.has("shut", 2, 2)
		b.getsNone("the VPC is not open")
		b.set(func() { b.shut = false })
		b.slow(time.Minute)
		lasts(30 * time.Second) // two more are on their way
		b.set(func() { b.vpc.Ending = true })
		lasts(20 * time.Second)
		b.getsNone("the VPC ends")
		b.ec2.Front.Inject(cloudfake.Fault{Op: "DeleteENI", Times: 3, Err: cloudfake.Err(cloud.Transient, "")})
		b.set(func() { b.shut = true })
		lasts(time.Hour)
		b.has("ended", 0, 0)

		b.slow(0)
		b.set(func() { b.shut, b.vpc.Ending = false, false })
		b.nic("2", request())
		lasts(time.Minute)
		b.has("one that was not", 4, 4)
		b.set(func() { b.vpc.UID = "another" })
		b.getsNone("the VPC is another")
		lasts(time.Minute)
		b.has("another of its name", 4, 8)
	})
}

// A kind that nobody needs any more has ports for a while, and what the NICs of a node need is
// never the pool's.
func TestDemand(t *testing.T) {
	inBed(t, 1, func(b *bed) {
		for i := range 8 {
			b.nic(fmt.Sprint(i), request("sg-web"))
		}
		b.set(func() { b.vpc.Ports = 0 })
		lasts(time.Minute)
		b.has("none are wanted", 0, 0)
		b.set(func() { b.vpc.Ports = 1 })
		b.nic("8", nil) // with an address of its own
		lasts(time.Minute)
		b.has("the NICs have all", 0, 0)
		b.pool.Forget("8")
		lasts(time.Minute)
		b.has("room for one", 1, 1)
		b.nic("8", nil)
		lasts(time.Minute)
		b.has("it makes room", 0, 0)
		for i := range 9 {
			b.pool.Forget(types.UID(fmt.Sprint(i)))
		}
		lasts(9 * time.Minute)
		b.has("it was needed a while ago", 1, 1)
		lasts(3 * time.Minute)
		b.has("it is not needed", 0, 0)
	})
}
