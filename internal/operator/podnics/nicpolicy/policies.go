package nicpolicy

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/nicrequest"
	"github.com/berthnet/berth/internal/operator/objects"
	"github.com/berthnet/berth/internal/operator/watched"
)

// Objects are the NICPolicies in the cache.
var Objects = watched.Of(&v1alpha1.NICPolicy{}, &v1alpha1.NICPolicyList{}, watched.Trim)

// Policies reads the policies of both kinds.
type Policies struct {
	cached, live client.Reader
	foreign      foreign
	own          string // the operator's own namespace, in which policies have no effect
	tell         []func()
}

// NewPolicies returns the policies as read by mgr, whether it leads or not. Its cache must have Objects. Policies in the
// operator's own namespace have no effect: its pods could not start without an operator.
func NewPolicies(mgr manager.Manager, own string, c clock.Clock, log *slog.Logger) (*Policies, error) {
	api, err := dynamic.NewForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient())
	if err != nil {
		return nil, fmt.Errorf("connect to the Kubernetes API for SecurityGroupPolicies: %w", err)
	}
	found, err := discovery.NewDiscoveryClientForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient())
	if err != nil {
		return nil, fmt.Errorf("connect to the Kubernetes API for SecurityGroupPolicies: %w", err)
	}
	p := &Policies{cached: mgr.GetClient(), live: mgr.GetAPIReader(), own: own}
	p.foreign = foreign{&watched.Optional{
		API: api, Discovery: found, Resource: securityGroupPolicies, Kind: string(nicrequest.KindSecurityGroupPolicy), Transform: trimForeign, Clock: c, Log: log,
		Changed: func() {
			for _, f := range p.tell {
				f()
			}
		},
	}}
	return p, mgr.Add(always(p.foreign.Run))
}

// always runs in every operator, whether it leads or not, because each serves the webhook.
type always func(context.Context) error

// Start implements manager.Runnable.
func (a always) Start(ctx context.Context) error { return a(ctx) }

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (always) NeedLeaderElection() bool { return false }

// Changed registers a function that is called when SecurityGroupPolicies have changed; NICPolicies are watched in the cache. It
// must return quickly, and be registered before the manager starts.
func (p *Policies) Changed(tell func()) { p.tell = append(p.tell, tell) }

// most is how many policies of a kind a namespace may have. Each of its pods is matched against all of them, while pods of other
// namespaces wait.
const most = 100

// Of returns the policies of a namespace from the cache or, if live is set, from the API server. It is an error if there are too
// many: pods selected by the last ones would have to be rejected anyway.
func (p *Policies) Of(ctx context.Context, namespace string, live bool) ([]nicrequest.Policy, error) {
	if namespace == p.own {
		return nil, nil
	}
	readers := []client.Reader{p.cached}
	if live {
		readers = append(readers, p.live) // not needed if the cache already has too many
	}
	var list *v1alpha1.NICPolicyList
	for _, r := range readers {
		list = &v1alpha1.NICPolicyList{} // decoding into a reused list would keep fields that new items lack
		if err := r.List(ctx, list, client.InNamespace(namespace)); err != nil {
			return nil, fmt.Errorf("list NICPolicies of namespace %s: %w", namespace, err)
		}
		if n := len(list.Items); n > most {
			return nil, fmt.Errorf("namespace %s has %d NICPolicies, expected %d at most: delete some", namespace, n, most)
		}
	}
	all, err := p.foreign.of(ctx, namespace, live)
	if err != nil {
		return nil, err
	}
	for i := range list.Items {
		one, err := read(&list.Items[i])
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, nil
}

// read converts a NICPolicy. It returns an error for a policy that the API server would not accept.
func read(o *v1alpha1.NICPolicy) (nicrequest.Policy, error) {
	p := nicrequest.Policy{
		Kind: nicrequest.KindNICPolicy, Name: o.Name, Created: o.CreationTimestamp.Time,
		VPC: o.Spec.VPC, Subnet: o.Spec.Subnet, SecurityGroups: o.Spec.SecurityGroups,
	}
	var err error
	if s := o.Spec.PodSelector; s != nil {
		if p.Pods, err = s.Compile(); err != nil {
			return p, fmt.Errorf("%s: spec.podSelector: %w", p, err)
		}
	}
	if s := o.Spec.ServiceAccountSelector; s != nil {
		if p.Accounts, err = s.Compile(); err != nil {
			return p, fmt.Errorf("%s: spec.serviceAccountSelector: %w", p, err)
		}
	}
	return p, nil
}

// Namespaces returns the sorted names of the namespaces with policies.
func (p *Policies) Namespaces(ctx context.Context) ([]string, error) {
	list, err := objects.List[v1alpha1.NICPolicyList](ctx, p.cached)
	if err != nil {
		return nil, err
	}
	names, err := p.foreign.namespaces()
	if err != nil {
		return nil, err
	}
	for i := range list.Items {
		names = append(names, list.Items[i].Namespace)
	}
	names = slices.DeleteFunc(names, func(n string) bool { return n == p.own })
	slices.Sort(names)
	return slices.Compact(names), nil
}

// Since returns when the oldest policy of a namespace was created, or false if there is none.
func (p *Policies) Since(ctx context.Context, namespace string) (time.Time, bool, error) {
	all, err := p.Of(ctx, namespace, false)
	if err != nil || len(all) == 0 {
		return time.Time{}, false, err
	}
	oldest := slices.MinFunc(all, func(x, y nicrequest.Policy) int { return x.Created.Compare(y.Created) })
	return oldest.Created, true, nil
}
