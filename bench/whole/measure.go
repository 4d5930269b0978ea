package whole

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/bench/objects"
	"github.com/berthnet/berth/bench/usage"
)

// patience is how long a run waits for the operator at most.
const patience = 15 * time.Minute

// measure does the run.
func (r *run) measure(ctx context.Context, out *Outcome) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := r.start(); err != nil {
		return err
	}
	begin := time.Now()
	made := make(chan error, 1)
	go func() {
		made <- r.each(ctx, func(ctx context.Context, i int) error { return r.client.Create(ctx, r.nodeNetwork(i)) })
	}()
	f, err := r.waitUntilFilled(ctx)
	if err != nil {
		return err
	}
	if err := <-made; err != nil {
		return fmt.Errorf("make NodeNetworks: %w", err)
	}
	out.Filled, out.Median = f.times[len(f.times)-1].Sub(begin), f.times[(len(f.times)-1)/2].Sub(begin)
	r.countCalls(out)
	if out.FillCPU, err = usage.CPU(r.operator.PID()); err != nil {
		return err
	}
	r.Say("  %d nodes filled in %v; %s", r.Nodes, out.Filled.Round(100*time.Millisecond), r.callsPerNode(out))
	return r.report(ctx, f.objects, out)
}

// report has pods use addresses on all nodes and measures what that costs the
// operator, and how large it is afterwards.
func (r *run) report(ctx context.Context, all map[string]*v1alpha1.NodeNetwork, out *Outcome) error {
	before, err := usage.CPU(r.operator.PID())
	if err != nil {
		return err
	}
	names := slices.Sorted(maps.Keys(all))
	if err := r.each(ctx, func(ctx context.Context, i int) error { return r.use(ctx, all[names[i]]) }); err != nil {
		return err
	}
	after, err := usage.Settled(ctx, r.operator.PID())
	if err != nil {
		return err
	}
	out.ReportCPU = after - before
	out.Memory, err = usage.Memory(r.operator.PID())
	return err
}

// each calls do for every node, eight at a time, and returns the first error.
func (r *run) each(ctx context.Context, do func(ctx context.Context, i int) error) error {
	return objects.Each(ctx, r.Nodes, 8, do)
}

// nodeNetwork is what a daemon makes for its node.
func (r *run) nodeNetwork(i int) *v1alpha1.NodeNetwork {
	least, free := int32(r.Used+r.Free), int32(r.Free)
	return &v1alpha1.NodeNetwork{
		ObjectMeta: metav1.ObjectMeta{Name: nodeName(i)},
		Spec: v1alpha1.NodeNetworkSpec{
			InstanceID: r.lab.Cloud.Instances.ID(nodeName(i)), InstanceType: instanceType,
			ENI: v1alpha1.ENISpec{MinAllocate: &least, PreAllocate: &free},
		},
	}
}

// filled are the nodes that have their addresses, and when they got them.
type filled struct {
	objects map[string]*v1alpha1.NodeNetwork
	times   []time.Time
}

// waitUntilFilled returns once all nodes are.
func (r *run) waitUntilFilled(ctx context.Context) (*filled, error) {
	f, said := &filled{objects: map[string]*v1alpha1.NodeNetwork{}}, time.Now()
	err := objects.Until(ctx, r.client, &v1alpha1.NodeNetworkList{}, r.operator.Exited(), func(nn *v1alpha1.NodeNetwork) bool {
		if f.objects[nn.Name] == nil && len(nn.Spec.IPAM.Available) >= r.Used+r.Free {
			f.objects[nn.Name] = nn
			f.times = append(f.times, time.Now())
		}
		if time.Since(said) > 20*time.Second {
			r.Say("  %d of %d nodes filled", len(f.objects), r.Nodes)
			said = time.Now()
		}
		return len(f.objects) == r.Nodes
	})
	if err != nil {
		return nil, fmt.Errorf("%d of %d nodes filled: %w", len(f.objects), r.Nodes, err)
	}
	return f, nil
}

// use reports that pods use addresses of a node, as its daemon would.
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
	data, err := client.MergeFrom(base).Data(patch)
	if err != nil {
		return fmt.Errorf("encode a report: %w", err)
	}
	if err := r.client.Status().Patch(ctx, base, client.RawPatch(types.MergePatchType, data), client.FieldOwner(v1alpha1.OwnerDaemon)); err != nil {
		return fmt.Errorf("report the use of %s: %w", nn.Name, err)
	}
	return nil
}

// countCalls takes EC2's counts, and what the limits force for them.
func (r *run) countCalls(out *Outcome) {
	out.Calls = map[string]int{}
	for action, s := range r.lab.Cloud.API.Stats() {
		granted := s.Count
		for code, n := range s.Errors {
			if code == "RequestLimitExceeded" {
				granted -= n
				out.Throttled += n
			} else if action == "CreateNetworkInterface" {
				out.FailedENIs += n
			}
		}
		out.Calls[action] = granted
		if l := r.Limit; l.Refill > 0 && !strings.HasPrefix(action, "Describe") {
			least := time.Duration(max(0, float64(granted)-l.Bucket) / l.Refill * float64(time.Second))
			out.Bound = max(out.Bound, least+r.Delay)
		}
	}
}

func (r *run) callsPerNode(out *Outcome) string {
	var all []string
	for _, action := range slices.Sorted(maps.Keys(out.Calls)) {
		all = append(all, fmt.Sprintf("%s %d", action, out.Calls[action]))
	}
	return strings.Join(all, ", ")
}
