package warm_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/internal/cloud"
	"github.com/berthnet/berth/internal/cloud/cloudfake"
	"github.com/berthnet/berth/internal/eni"
	"github.com/berthnet/berth/internal/operator/vpcport/warm"
	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/ec2"
)

const (
	cluster = "test"
	vpcUID  = "uid-e"
)

// bed is an EC2 with the instance i-1 (m5.large: nine branches) on Node node-1, its VPC e, and a pool,
// in virtual time.
type bed struct {
	t        *testing.T
	ec2      *cloudfake.Cloud
	provider *ec2.Provider
	pool     *warm.Pool
	metrics  *warm.Metrics

	mu       sync.Mutex // guards all below
	vpc      warm.VPC
	shut     bool
	recorded map[string]bool
	fails    error // of the listing of PodNICs
}

// inBed does a test with a pool that has so many ports of each kind ready.
func inBed(t *testing.T, ports int, do func(b *bed)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &bed{t: t, ec2: cloudfake.New(cloudfake.Options{}), metrics: warm.NewMetrics()}
		b.ec2.AddSubnet("subnet-a", "zone-a", "10.0.0.0/20", nil)
		b.ec2.AddSecurityGroup("sg-web", nil)
		b.ec2.AddInstance("i-1", "m5.large", "subnet-a")
		b.ec2.AddENI("i-1", 1, cloud.InterfaceTrunk, map[string]string{eni.TagCluster: cluster, eni.TagOwner: eni.Owner, eni.TagInstanceID: "i-1"})
		b.provider = ec2.Open(ec2.Settings{Cloud: b.ec2, Cluster: cluster, VPC: cloudfake.VPC, Settle: time.Second})
		b.vpc = warm.VPC{UID: vpcUID, Network: cloudfake.VPC, Provider: b.provider, Ports: ports}
		ctx, cancel := context.WithCancel(t.Context())
		b.begin(ctx)
		do(b)
		cancel()
		time.Sleep(time.Hour) //nolint:forbidigo // virtual: what waits for nothing any more ends
	})
}

// begin runs a pool, as an operator does that begins to lead.
func (b *bed) begin(ctx context.Context) {
	b.pool = warm.New(warm.Options{
		Cluster: cluster, Logger: slog.New(slog.NewTextHandler(b.t.Output(), nil)), Metrics: b.metrics,
		VPC: func(name string) (warm.VPC, bool) {
			b.mu.Lock()
			defer b.mu.Unlock()
			return b.vpc, name == "e" && !b.shut
		},
		Most: func(_ context.Context, node string) int { return map[string]int{"node-1": 9}[node] },
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

// nic tells the pool of a NIC.
func (b *bed) nic(uid string, r *vpcport.NewPort) {
	b.pool.Note(types.UID(uid), warm.NIC{VPC: "e", Host: "i-1", Node: "node-1", Request: r})
}

// lasts lets some time pass.
func lasts(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // virtual
	synctest.Wait()
}

// has checks how many ports are ready, and how many ENIs EC2 has for the pool.
func (b *bed) has(what string, ready, enis int) {
	b.t.Helper()
	list, err := b.ec2.ENIs(context.Background(), cloud.ENIFilter{Tags: map[string]string{eni.TagOwner: ec2.Owner}})
	if n := b.pool.Ready("e"); err != nil || n != ready || len(list) != enis {
		b.t.Errorf("%s: %d are ready, want %d; EC2 has %d, want %d: %v %+v", what, n, ready, len(list), enis, err, list)
	}
}

// gauge is what the metric of ready ports says.
func (b *bed) gauge() float64 {
	b.t.Helper()
	r := prometheus.NewRegistry()
	r.MustRegister(b.metrics.Collectors()...)
	all, err := r.Gather()
	if err != nil {
		b.t.Fatal(err)
	}
	for _, f := range all {
		if f.GetName() == "berth_operator_warm_ports" {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	return -1
}

// listed is what an operator's sweep does.
func (b *bed) listed() error {
	began := time.Now()
	list, err := b.provider.Ports(context.Background(), vpcport.Filter{NetworkID: cloudfake.VPC, Owner: vpcport.Owner})
	if err != nil {
		return err
	}
	return b.pool.Listed(context.Background(), "e", list, began)
}

// However many ask at once, a port is given away once.
func TestTakenOnce(t *testing.T) {
	inBed(t, 2, func(b *bed) {
		b.nic("1", request("sg-web"))
		lasts(time.Minute)
		b.has("they are made", 2, 2)
		var mu sync.Mutex
		times := map[string]int{}
		var all sync.WaitGroup
		for range 32 {
			all.Go(func() {
				if p, ok := b.pool.Take("e", *request("sg-web")); ok {
					mu.Lock()
					defer mu.Unlock()
					times[p.ID]++
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
		if err := b.listed(); err != nil { // which shows them as the pool's still
			t.Error(err)
		}
		lasts(time.Minute)
		if p, ok := b.pool.Take("e", *request("sg-web")); !ok || times[p.ID] > 0 {
			t.Errorf("then %s is given away, %v, of those made since", p.ID, ok)
		}
		for _, r := range []*vpcport.NewPort{request(), {NetworkID: cloudfake.VPC, Groups: []string{"sg-web"}}, {NetworkID: cloudfake.VPC, Groups: []string{"sg-web"}, Host: "i-2"}} {
			if p, ok := b.pool.Take("e", *r); ok {
				t.Errorf("%+v gets %s", r, p.ID)
			}
		}
		lasts(time.Minute)
		if n := b.gauge(); n != 2 {
			t.Errorf("the metric says %v, want 2", n)
		}
	})
}

// What cannot be made is not asked for again and again, and is made once it can be.
func TestNoRoomInTheSubnet(t *testing.T) {
	inBed(t, 1, func(b *bed) {
		b.ec2.Inject(cloudfake.Fault{Op: "CreateENI", Err: cloudfake.Err(cloud.SubnetFull, "InsufficientFreeAddressesInSubnet")})
		b.nic("1", request("sg-web"))
		lasts(time.Hour)
		n := 0
		for _, c := range b.ec2.Calls() {
			if c.Op == "CreateENI" {
				n++
			}
		}
		if n < 10 || n > 40 {
			t.Errorf("%d calls within an hour, want one every few minutes", n)
		}
		b.ec2.ClearFaults()
		b.nic("1", request("sg-web"))
		lasts(10 * time.Minute)
		b.has("there is room", 1, 1)
	})
}

// A port whose reply was lost, one that a dead operator made, and one whose binding it did not
// finish: none is left for ever, and those that are of use are used.
func TestFoundPorts(t *testing.T) {
	inBed(t, 1, func(b *bed) {
		b.ec2.Inject(cloudfake.Fault{Op: "CreateENI", Times: 1, After: true, Err: cloudfake.Err(cloud.Transient, "")})
		b.nic("1", request("sg-web"))
		lasts(30 * time.Second)
		b.has("asked for again", 1, 2)
		for range 3 {
			if err := b.listed(); err != nil {
				t.Error(err)
			}
			lasts(time.Minute)
		}
		b.has("the other, which is no branch, goes", 1, 1)

		ctx, cancel := context.WithCancel(b.t.Context())
		defer cancel()
		b.mu.Lock()
		b.fails = errors.New("the API server is away")
		b.mu.Unlock()
		b.begin(ctx) // another operator
		b.nic("1", request("sg-web"))
		lasts(time.Minute)
		b.has("not as long as nobody says whose it is", 0, 1)
		b.mu.Lock()
		b.fails = nil
		b.mu.Unlock()
		lasts(time.Minute)
		b.has("found", 1, 1)

		list, _ := b.ec2.ENIs(ctx, cloud.ENIFilter{Tags: map[string]string{eni.TagOwner: ec2.Owner}})
		b.mu.Lock()
		b.recorded = map[string]bool{list[0].ID: true}
		b.mu.Unlock()
		b.begin(ctx) // and another
		b.nic("1", request("sg-web"))
		lasts(time.Minute)
		b.has("a NIC has it", 1, 2)
		if p, ok := b.pool.Take("e", *request("sg-web")); !ok || p.ID == list[0].ID {
			t.Errorf("%s is given away, %v", p.ID, ok)
		}
	})
}

// What a pod lacks the pool gives up, and keeps none for a while.
func TestYields(t *testing.T) {
	inBed(t, 2, func(b *bed) {
		b.nic("1", request("sg-web"))
		lasts(time.Minute)
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
		b.ec2.AddSecurityGroup("sg-open", nil)
		b.nic("1", request("sg-web"))
		lasts(time.Minute)
		list, _ := b.ec2.ENIs(b.t.Context(), cloud.ENIFilter{Tags: map[string]string{eni.TagOwner: ec2.Owner}})
		if err := b.ec2.SetGroups(b.t.Context(), list[0].ID, []string{"sg-open"}); err != nil {
			t.Fatal(err)
		}
		if err := b.listed(); err != nil {
			t.Error(err)
		}
		if p, ok := b.pool.Take("e", *request("sg-web")); ok {
			t.Errorf("a pod in sg-web gets %+v", p)
		}
		b.nic("2", request("sg-open"))
		lasts(10 * time.Second)
		if p, ok := b.pool.Take("e", *request("sg-open")); !ok || p.ID != list[0].ID {
			t.Errorf("a pod in sg-open gets %s, %v; want %s", p.ID, ok, list[0].ID)
		}
	})
}

// Nothing is done for a VPC that is not open; one that is being deleted loses its ports, also
// those on their way.
func TestVPCThatEnds(t *testing.T) {
	inBed(t, 2, func(b *bed) {
		b.nic("1", request("sg-web"))
		lasts(time.Minute)
		b.mu.Lock()
		b.shut = true
		b.mu.Unlock()
		b.nic("2", request())
		lasts(time.Hour)
		b.has("shut", 2, 2)
		if _, ok := b.pool.Take("e", *request("sg-web")); ok {
			t.Error("a port of a VPC that is not open is given away")
		}
		b.mu.Lock()
		b.shut, b.vpc.Ending = false, true
		b.mu.Unlock()
		lasts(time.Minute)
		b.has("ending", 0, 0)
		if _, ok := b.pool.Take("e", *request("sg-web")); ok {
			t.Error("a port of a VPC that ends is given away")
		}
	})
}

// A kind that nobody needs any more has ports for a while, and what the NICs of a node need is
// never the pool's.
func TestDemand(t *testing.T) {
	inBed(t, 1, func(b *bed) {
		for i := range 8 {
			b.nic(fmt.Sprint(i), request("sg-web"))
		}
		b.mu.Lock()
		b.vpc.Ports = 0
		b.mu.Unlock()
		lasts(time.Minute)
		b.has("none are wanted", 0, 0)
		b.mu.Lock()
		b.vpc.Ports = 1
		b.mu.Unlock()
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
