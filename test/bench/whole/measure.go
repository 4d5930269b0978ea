package whole

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/test/bench/proc"
)

// patience is how long a run waits for the operator at most.
const patience = 8 * time.Minute

// measure does the run.
func (r *run) measure(ctx context.Context, out *Outcome) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	changes, err := r.client.Watch(ctx, &v1alpha1.NodeNetworkList{})
	if err != nil {
		return fmt.Errorf("watch NodeNetworks: %w", err)
	}
	defer changes.Stop()
	if err := r.start(ctx); err != nil {
		return err
	}
	begin := time.Now()
	made := make(chan error, 1)
	go func() { made <- r.each(func(i int) error { return r.client.Create(ctx, r.nodeNetwork(i)) }) }()
	all, times, err := r.watchUntilFilled(ctx, changes)
	if err != nil {
		return err
	}
	if err := <-made; err != nil {
		return fmt.Errorf("make NodeNetworks: %w", err)
	}
	slices.SortFunc(times, func(a, b time.Time) int { return a.Compare(b) })
	out.Filled, out.Median = times[len(times)-1].Sub(begin), times[(len(times)-1)/2].Sub(begin)
	r.countCalls(out)
	if out.FillCPU, err = r.cpu(); err != nil {
		return err
	}
	r.Say("  %d nodes filled in %v; %s", r.Nodes, out.Filled.Round(100*time.Millisecond), r.callsPerNode(out))
	return r.report(ctx, all, out)
}

// report has pods use addresses on all nodes and measures what that costs the
// operator, and how large it is afterwards.
func (r *run) report(ctx context.Context, all map[string]*v1alpha1.NodeNetwork, out *Outcome) error {
	before, err := r.cpu()
	if err != nil {
		return err
	}
	names := slices.Sorted(maps.Keys(all))
	if err := r.each(func(i int) error { return r.use(ctx, all[names[i]]) }); err != nil {
		return err
	}
	after, err := r.settled(ctx)
	if err != nil {
		return err
	}
	out.ReportCPU = after - before
	out.Memory, err = proc.Memory(r.operator.Process.Pid)
	return err
}

// each calls do for every node, eight at a time, and returns the first error.
func (r *run) each(do func(i int) error) error {
	var (
		wg    sync.WaitGroup
		once  sync.Once
		first error
	)
	for w := range 8 {
		wg.Go(func() {
			for i := w; i < r.Nodes; i += 8 {
				if err := do(i); err != nil {
					once.Do(func() { first = err })
					return
				}
			}
		})
	}
	wg.Wait()
	return first
}

// nodeNetwork is what a daemon makes for its node.
func (r *run) nodeNetwork(i int) *v1alpha1.NodeNetwork {
	instance, _ := r.lab.Cloud.Snapshot().Instance(nodeName(i))
	least, free := int32(r.Used+r.Free), int32(r.Free)
	return &v1alpha1.NodeNetwork{
		ObjectMeta: metav1.ObjectMeta{Name: nodeName(i)},
		Spec: v1alpha1.NodeNetworkSpec{
			InstanceID: instance.ID, InstanceType: instanceType,
			ENI: v1alpha1.ENISpec{MinAllocate: &least, PreAllocate: &free},
		},
	}
}

// watchUntilFilled returns all objects once each has its addresses, and when
// each got them.
func (r *run) watchUntilFilled(ctx context.Context, changes watch.Interface) (map[string]*v1alpha1.NodeNetwork, []time.Time, error) {
	all, times := map[string]*v1alpha1.NodeNetwork{}, make([]time.Time, 0, r.Nodes)
	for len(all) < r.Nodes {
		select {
		case e, ok := <-changes.ResultChan():
			if !ok {
				return nil, nil, fmt.Errorf("the watch ended with %d of %d nodes filled", len(all), r.Nodes)
			}
			nn, ok := e.Object.(*v1alpha1.NodeNetwork)
			if ok && e.Type != watch.Deleted && all[nn.Name] == nil && len(nn.Spec.IPAM.Available) >= r.Used+r.Free {
				all[nn.Name] = nn
				times = append(times, time.Now())
			}
		case err := <-r.exited:
			r.exited = nil
			return nil, nil, fmt.Errorf("the operator ended with %d of %d nodes filled: %w", len(all), r.Nodes, err)
		case <-ctx.Done():
			return nil, nil, fmt.Errorf("%d of %d nodes filled after %v: %w", len(all), r.Nodes, patience, ctx.Err())
		}
	}
	return all, times, nil
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

// settled returns the operator's CPU time once it has nearly nothing to do any
// more: less than 2 % of a second.
func (r *run) settled(ctx context.Context) (time.Duration, error) {
	last, err := r.cpu()
	for err == nil {
		select {
		case <-ctx.Done():
			return 0, fmt.Errorf("wait for the operator to rest: %w", ctx.Err())
		case <-time.After(time.Second): // another process's edge
		}
		var now time.Duration
		if now, err = r.cpu(); err == nil && now-last < 20*time.Millisecond {
			return now, nil
		}
		last = now
	}
	return 0, err
}

// cpu is what the operator's process used so far.
func (r *run) cpu() (time.Duration, error) { return proc.CPU(r.operator.Process.Pid) }

// countCalls takes EC2's counts, and what the limits force for them.
func (r *run) countCalls(out *Outcome) {
	out.Calls = map[string]int{}
	for action, s := range r.lab.Cloud.Calls() {
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
