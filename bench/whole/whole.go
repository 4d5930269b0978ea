// Package whole runs berth-operator as it is shipped, against a real Kubernetes API server and the lab's
// EC2 over HTTP. The nodes are only objects; the benchmark writes their daemons' usage reports.
package whole

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/bench/must"
	"github.com/berthnet/berth/bench/objects"
	"github.com/berthnet/berth/bench/usage"
	"github.com/berthnet/berth/lab/cloud/endpoints"
	"github.com/berthnet/berth/lab/cloud/spec"
	"github.com/berthnet/berth/lab/cloud/vpc"
	"github.com/berthnet/berth/lab/run/kube"
	"github.com/berthnet/berth/lab/run/proc"
)

// Order is one run.
type Order struct {
	Nodes int
	// Used is the number of addresses that pods use on each node once it is filled, Free the number of
	// further addresses.
	Used, Free int
	// Limit is the bucket of each action that changes something; zero: EC2 does not throttle.
	Limit spec.RateLimit
	Delay time.Duration // of each EC2 call

	Operator string // the program
	Assets   string // of the control plane
	CRDs     string // folder of CustomResourceDefinitions
	Say      func(format string, args ...any)
}

// Outcome is what a run measured of the operator's process.
type Outcome struct {
	Filled    time.Duration // from the first object until the last node has its addresses
	Median    time.Duration // until half of the nodes have theirs
	FillCPU   time.Duration // until Filled
	ReportCPU time.Duration // for a usage report of each node
	Calls                   // until Filled, of which Bound is a lower bound
	Memory    int64         // private, in bytes, at the end
}

// run is the state of one run.
type run struct {
	Order
	dir      string
	kube     *kube.ControlPlane
	lab      *endpoints.Cloud
	client   client.WithWatch
	operator *proc.Process
}

// InstanceType has 8 ENIs of 30 addresses each, the primary one included.
const InstanceType = "m5.4xlarge"

// Run sets up the environment, measures, and removes it.
func Run(ctx context.Context, o Order) (out Outcome, err error) {
	defer must.Catch(&err)
	r := &run{Order: o, dir: must.Get(os.MkdirTemp("", "bench-"))}
	defer func() { err = errors.Join(err, r.close()) }()
	r.raise(ctx)
	if out, err = r.measure(ctx); err != nil {
		return out, fmt.Errorf("%w\n%s", err, r.operator.LogTail(20))
	}
	return out, nil
}

// raise starts the control plane and EC2, and creates the Nodes. The NodeNetworks, which the operator waits
// for, are created later.
func (r *run) raise(ctx context.Context) {
	r.Say("  starting a control plane and an EC2 with %d instances", r.Nodes)
	r.lab = must.Get(endpoints.Serve(r.spec()))
	r.kube = must.Get(kube.Start(ctx, kube.Options{Assets: r.Assets, Dir: filepath.Join(r.dir, "kube"), CRDs: os.DirFS(r.CRDs)}))
	ctrllog.SetLogger(logr.Discard()) // of the client; errors are returned
	scheme := runtime.NewScheme()
	must.OK(errors.Join(clientscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)))
	r.client = must.Get(client.NewWithWatch(r.kube.Config(), client.Options{Scheme: scheme}))
	r.each(ctx, func(ctx context.Context, i int) error {
		n := &corev1.Node{}
		n.Name, n.Spec.ProviderID = nodeName(i), "aws:///lab/"+r.lab.Cloud.Instances.ID(nodeName(i))
		return r.client.Create(ctx, n)
	})
}

// subnets have room for 10,000 nodes with 18 addresses and two ENIs each.
const subnets = 4

// spec returns an EC2 with the nodes' instances.
func (r *run) spec() spec.Spec {
	s := spec.Default()
	s.Instances = nil
	for i := range r.Nodes {
		s.Instances = append(s.Instances, spec.Instance{Name: nodeName(i), Type: InstanceType})
	}
	Enlarge(&s, r.Limit, r.Delay)
	return s
}

// Enlarge gives an EC2's first VPC room for its instances, and the EC2 the limits of its account: a bucket of each action
// that changes something (zero: no limits), and the delay of each call.
func Enlarge(s *spec.Spec, limit spec.RateLimit, delay time.Duration) {
	s.VPCs[0].Subnets, s.VPCs[0].CIDRs = nil, nil
	for i := range subnets { // of 65,531 addresses each
		cidr := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i)}), 16)
		s.VPCs[0].CIDRs = append(s.VPCs[0].CIDRs, cidr)
		s.VPCs[0].Subnets = append(s.VPCs[0].Subnets, spec.Subnet{Name: fmt.Sprint(i), Zone: "lab-1a", CIDR: cidr})
	}
	for i := range s.Instances {
		s.Instances[i].Subnet = fmt.Sprint(i % subnets)
	}
	s.Quotas.NetworkInterfaces = 5 * len(s.Instances)
	s.Delays, s.Consistency = spec.Delays{Attach: spec.Duration(time.Second)}, spec.Consistency{}
	s.Latencies = map[string]spec.Duration{"*": spec.Duration(delay)}
	s.Throttle = "none"
	if limit.Refill > 0 {
		s.Throttle = "documented"
		s.RateLimits = map[string]spec.RateLimit{}
		for _, action := range []string{"Create*", "Attach*", "Modify*", "Assign*"} {
			s.RateLimits[action] = limit
		}
	}
}

func nodeName(i int) string { return fmt.Sprintf("node-%05d", i) }

// start starts the operator.
func (r *run) start() {
	key := r.lab.Credentials()
	r.operator = proc.New("berth-operator", filepath.Join(r.dir, "operator.log"), func() proc.Command {
		return proc.Command{
			Path: r.Operator, Netns: "/proc/thread-self/ns/net",
			Args: []string{
				"--kubeconfig=" + r.kube.AdminKubeconfig(), "--cluster-name=bench", "--leader-elect=false", "--log-level=warn",
				"--metrics-address=127.0.0.1:0", "--health-address=127.0.0.1:0",
			},
			Env: []string{
				"AWS_ENDPOINT_URL_EC2=" + r.lab.EC2URL, "AWS_REGION=" + r.lab.Cloud.Region(),
				"AWS_ACCESS_KEY_ID=" + key.AccessKeyID, "AWS_SECRET_ACCESS_KEY=" + key.SecretAccessKey,
			},
		}
	})
	must.OK(r.operator.Start())
}

// close stops the processes and removes the files.
func (r *run) close() error {
	var errs []error
	if r.operator != nil {
		errs = append(errs, r.operator.Kill())
	}
	if r.kube != nil {
		errs = append(errs, r.kube.Stop())
	}
	if r.lab != nil {
		r.lab.Close()
	}
	return errors.Join(append(errs, os.RemoveAll(r.dir))...)
}

// patience limits the wait for the operator.
const patience = 15 * time.Minute

// measure executes the run.
func (r *run) measure(ctx context.Context) (out Outcome, err error) {
	defer must.Catch(&err)
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	r.start()
	begin := time.Now()
	created := make(chan error, 1)
	go func() {
		created <- objects.Each(ctx, r.Nodes, writers, func(ctx context.Context, i int) error { return r.client.Create(ctx, r.nodeNetwork(i)) })
	}()
	all, times := r.waitUntilFilled(ctx)
	must.OK(<-created)
	out.Filled, out.Median = times[len(times)-1].Sub(begin), times[(len(times)-1)/2].Sub(begin)
	out.Calls = CallsOf(r.lab.Cloud, r.Limit, r.Delay)
	out.FillCPU = must.Get(usage.CPU(r.operator.PID()))
	r.Say("  %d nodes filled in %v; %v", r.Nodes, out.Filled.Round(100*time.Millisecond), out.Granted)

	before := must.Get(usage.CPU(r.operator.PID()))
	names := slices.Sorted(maps.Keys(all))
	r.each(ctx, func(ctx context.Context, i int) error { return r.use(ctx, all[names[i]]) })
	out.ReportCPU = must.Get(usage.Settled(ctx, r.operator.PID())) - before
	out.Memory = must.Get(usage.Memory(r.operator.PID()))
	return out, nil
}

// writers is the number of concurrent writes of nodes' objects.
const writers = 8

// each calls do for every node.
func (r *run) each(ctx context.Context, do func(ctx context.Context, i int) error) {
	must.OK(objects.Each(ctx, r.Nodes, writers, do))
}

// nodeNetwork returns the object that a daemon creates for its node.
func (r *run) nodeNetwork(i int) *v1alpha1.NodeNetwork {
	least, free := int32(r.Used+r.Free), int32(r.Free)
	return &v1alpha1.NodeNetwork{
		ObjectMeta: metav1.ObjectMeta{Name: nodeName(i)},
		Spec: v1alpha1.NodeNetworkSpec{
			InstanceID: r.lab.Cloud.Instances.ID(nodeName(i)), InstanceType: InstanceType,
			ENI: v1alpha1.ENISpec{MinAllocate: &least, PreAllocate: &free},
		},
	}
}

// waitUntilFilled returns once all nodes have their addresses, with their objects and the
// times.
func (r *run) waitUntilFilled(ctx context.Context) (all map[string]*v1alpha1.NodeNetwork, times []time.Time) {
	all = map[string]*v1alpha1.NodeNetwork{}
	reported := time.Now()
	err := objects.Until(ctx, r.client, &v1alpha1.NodeNetworkList{}, r.operator.Exited(), func(nn *v1alpha1.NodeNetwork) bool {
		if all[nn.Name] == nil && len(nn.Spec.IPAM.Available) >= r.Used+r.Free {
			all[nn.Name] = nn
			times = append(times, time.Now())
		}
		if time.Since(reported) > 20*time.Second {
			r.Say("  %d of %d nodes filled", len(all), r.Nodes)
			reported = time.Now()
		}
		return len(all) == r.Nodes
	})
	if err != nil {
		must.OK(fmt.Errorf("%d of %d nodes filled: %w", len(all), r.Nodes, err))
	}
	return all, times
}

// use reports that pods use addresses of a node, as its daemon does.
func (r *run) use(ctx context.Context, nn *v1alpha1.NodeNetwork) error {
	used := map[string]v1alpha1.UsedAddress{}
	for _, a := range slices.Sorted(maps.Keys(nn.Spec.IPAM.Available))[:r.Used] {
		used[a] = v1alpha1.UsedAddress{
			Owner: "default/web-" + strconv.Itoa(len(used)), UID: fmt.Sprintf("%s-%08d-4000-8000-000000000000", nn.Name, len(used)),
			Resource: nn.Spec.IPAM.Available[a].Resource,
		}
	}
	patch := &v1alpha1.NodeNetwork{ObjectMeta: metav1.ObjectMeta{Name: nn.Name}}
	patch.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("NodeNetwork"))
	base := patch.DeepCopy()
	patch.Status.IPAM = v1alpha1.IPAMStatus{Used: used, UsedCount: int32(len(used)), InstanceID: nn.Spec.InstanceID}
	data := must.Get(client.MergeFrom(base).Data(patch))
	if err := r.client.Status().Patch(ctx, base, client.RawPatch(types.MergePatchType, data), client.FieldOwner(v1alpha1.OwnerDaemon)); err != nil {
		return fmt.Errorf("report the usage of %s: %w", nn.Name, err)
	}
	return nil
}

// Calls are the calls of an EC2.
type Calls struct {
	Granted    map[string]int // by action, without throttled ones
	Throttled  int
	FailedENIs int           // creations that failed for other reasons than throttling
	Bound      time.Duration // least time in which the limits grant these calls
}

// CallsOf returns the calls of an EC2 with the limit and the delay of Enlarge.
func CallsOf(ec2 *vpc.Cloud, limit spec.RateLimit, delay time.Duration) Calls {
	c := Calls{Granted: map[string]int{}}
	for action, s := range ec2.API.Stats() {
		granted := s.Count
		for code, n := range s.Errors {
			if code == "RequestLimitExceeded" {
				granted -= n
				c.Throttled += n
			} else if action == "CreateNetworkInterface" {
				c.FailedENIs += n
			}
		}
		c.Granted[action] = granted
		if limit.Refill > 0 && !strings.HasPrefix(action, "Describe") {
			least := time.Duration(max(0, float64(granted)-limit.Bucket) / limit.Refill * float64(time.Second))
			c.Bound = max(c.Bound, least+delay)
		}
	}
	return c
}
