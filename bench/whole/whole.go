// Package whole runs the whole operator, as it is shipped, against a real
// Kubernetes API server and the lab's EC2 over HTTP. The nodes are objects:
// their daemons' part, the reports of use, is written for them.
package whole

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/lab/cloud/endpoints"
	"github.com/berthnet/berth/lab/cloud/spec"
	"github.com/berthnet/berth/lab/run/kube"
	"github.com/berthnet/berth/lab/run/proc"
)

// Order is one run.
type Order struct {
	Nodes int
	// Used is how many addresses pods use on each node once it is filled, and
	// Free how many more it has.
	Used, Free int
	// Limit is the bucket of each action that changes something; none: EC2 refuses nothing.
	Limit spec.RateLimit
	Delay time.Duration // of each EC2 call

	Operator string // the program
	Assets   string // of the control plane
	CRDs     string // folder of their definitions
	Say      func(format string, args ...any)
}

// Outcome is what a run measured of the operator's process.
type Outcome struct {
	Filled     time.Duration // from the first object until the last node had its addresses
	Median     time.Duration // until half of them had
	Bound      time.Duration // of Filled, by EC2's limits alone
	FillCPU    time.Duration // until then
	ReportCPU  time.Duration // for a report of use of each node
	Calls      map[string]int
	Throttled  int
	FailedENIs int   // creations refused for another reason than their rate
	Memory     int64 // private, in bytes, at the end
}

// run is what is up during a run.
type run struct {
	Order
	dir      string
	kube     *kube.ControlPlane
	lab      *endpoints.Cloud
	client   client.WithWatch
	operator *proc.Process
}

// instanceType has 8 ENIs of 30 addresses each, the primary one included.
const instanceType = "m5.4xlarge"

// Run raises everything, measures, and takes it down.
func Run(ctx context.Context, o Order) (out Outcome, err error) {
	r := &run{Order: o}
	defer func() { err = errors.Join(err, r.close()) }()
	if r.dir, err = os.MkdirTemp("", "bench-"); err != nil {
		return out, fmt.Errorf("make a directory: %w", err)
	}
	if err := r.raise(ctx); err != nil {
		return out, err
	}
	if err := r.measure(ctx, &out); err != nil {
		return out, fmt.Errorf("%w\n%s", err, r.operator.LogTail(20))
	}
	return out, nil
}

// raise starts the control plane, EC2 and, once the objects are there, the operator.
func (r *run) raise(ctx context.Context) (err error) {
	r.Say("  raising a control plane and an EC2 with %d instances", r.Nodes)
	if r.lab, err = endpoints.Serve(r.spec()); err != nil {
		return fmt.Errorf("serve an EC2: %w", err)
	}
	r.kube, err = kube.Start(ctx, kube.Options{Assets: r.Assets, Dir: filepath.Join(r.dir, "kube"), CRDs: os.DirFS(r.CRDs)})
	if err != nil {
		return err
	}
	ctrllog.SetLogger(logr.Discard()) // of the client; errors come as such
	scheme := runtime.NewScheme()
	if err := errors.Join(clientscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return err
	}
	if r.client, err = client.NewWithWatch(r.kube.Config(), client.Options{Scheme: scheme}); err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	return r.makeNodes(ctx)
}

// subnets have room for 10,000 nodes with 18 addresses and two ENIs each.
const subnets = 4

// spec is an EC2 with the nodes' instances.
func (r *run) spec() spec.Spec {
	s := spec.Default()
	s.VPCs[0].Subnets, s.VPCs[0].CIDRs = nil, nil
	for i := range subnets { // of 65,531 addresses each
		cidr := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i)}), 16)
		s.VPCs[0].CIDRs = append(s.VPCs[0].CIDRs, cidr)
		s.VPCs[0].Subnets = append(s.VPCs[0].Subnets, spec.Subnet{Name: fmt.Sprint(i), Zone: "lab-1a", CIDR: cidr})
	}
	s.Instances = nil
	for i := range r.Nodes {
		s.Instances = append(s.Instances, spec.Instance{Name: nodeName(i), Type: instanceType, Subnet: fmt.Sprint(i % subnets)})
	}
	s.Quotas.NetworkInterfaces = 5 * r.Nodes
	s.Delays, s.Consistency = spec.Delays{Attach: spec.Duration(time.Second)}, spec.Consistency{}
	s.Latencies = map[string]spec.Duration{"*": spec.Duration(r.Delay)}
	s.Throttle = "none"
	if r.Limit.Refill > 0 {
		s.Throttle = "documented"
		s.RateLimits = map[string]spec.RateLimit{}
		for _, action := range []string{"Create*", "Attach*", "Modify*", "Assign*"} {
			s.RateLimits[action] = r.Limit
		}
	}
	return s
}

func nodeName(i int) string { return fmt.Sprintf("node-%05d", i) }

// makeNodes makes the objects of the nodes but for NodeNetworks, which are what
// the operator waits for.
func (r *run) makeNodes(ctx context.Context) error {
	return r.each(ctx, func(ctx context.Context, i int) error {
		n := &corev1.Node{}
		n.Name, n.Spec.ProviderID = nodeName(i), "aws:///lab/"+r.lab.Cloud.Instances.ID(nodeName(i))
		return r.client.Create(ctx, n)
	})
}

// start starts the operator.
func (r *run) start() error {
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
	return r.operator.Start()
}

// close takes down what is up.
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
