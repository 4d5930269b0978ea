package nicpolicy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/nicrequest"
)

// securityGroupPolicies are the Amazon VPC resource controller's.
var securityGroupPolicies = schema.GroupVersionResource{Group: "vpcresources.k8s.aws", Version: "v1beta1", Resource: "securitygrouppolicies"}

const (
	// lookEvery is how often it is seen whether the kind is installed.
	lookEvery = 30 * time.Second
	// lookFirst is how often while that is not known.
	lookFirst = time.Second
	// lookTimeout bounds one look.
	lookTimeout = 10 * time.Second
)

// longest is how large the specification of a SecurityGroupPolicy may be, in bytes of JSON. Its kind is not Berth's and knows no bound.
const longest = 16 << 10

// errUnknown is the answer before it is known which SecurityGroupPolicies there are.
var errUnknown = errors.New("it is not known yet which SecurityGroupPolicies there are")

// foreign has the SecurityGroupPolicies of the cluster in memory. Their kind need not be
// installed; it is noticed when that changes.
type foreign struct {
	api     dynamic.Interface
	clock   clock.Clock
	log     *slog.Logger
	changed func() // called when other namespaces may have some; quick

	mu    sync.Mutex // guards known, store and said
	known bool
	store cache.Indexer // nil: the kind is not installed
	said  string        // the error that was told last
}

// run looks again and again until ctx ends.
func (f *foreign) run(ctx context.Context) error {
	var stop func() // of what is followed; nil: nothing is
	for {
		installed, err := f.look(ctx)
		switch {
		case ctx.Err() != nil:
		case err != nil:
			f.complain(err)
		case installed && stop == nil:
			stop = f.follow(ctx)
		case !installed:
			if stop != nil {
				stop()
				stop = nil
			}
			f.settle(nil)
		}
		wait := lookEvery
		if _, err := f.read(); err != nil {
			wait = lookFirst
		}
		select {
		case <-ctx.Done():
			if stop != nil {
				stop()
			}
			return nil
		case <-f.clock.After(wait):
		}
	}
}

// look tells whether the kind is installed.
func (f *foreign) look(ctx context.Context) (installed bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	_, err = f.api.Resource(securityGroupPolicies).List(ctx, metav1.ListOptions{Limit: 1})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("list SecurityGroupPolicies: %w", err)
	}
	return true, nil
}

// follow keeps all in memory until stop, which waits for what runs.
func (f *foreign) follow(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	informer := dynamicinformer.NewFilteredDynamicInformer(f.api, securityGroupPolicies, metav1.NamespaceAll, 0,
		cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}, nil).Informer()
	// None fails before an informer runs.
	_ = informer.SetTransform(trimForeign)
	_, _ = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { f.changed() }, UpdateFunc: func(any, any) { f.changed() }, DeleteFunc: func(any) { f.changed() },
	})
	_ = informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) { f.complain(err) })
	var wg sync.WaitGroup
	wg.Go(func() { informer.RunWithContext(ctx) })
	wg.Go(func() {
		if cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
			f.settle(informer.GetIndexer())
		}
	})
	return func() {
		cancel()
		wg.Wait()
	}
}

// trimForeign keeps of a SecurityGroupPolicy what a policy is made of, and of one that is too large that it is.
func trimForeign(in any) (any, error) {
	o, ok := in.(*unstructured.Unstructured)
	if !ok {
		return in, nil
	}
	of := o.Object
	out := &unstructured.Unstructured{Object: map[string]any{"apiVersion": of["apiVersion"], "kind": of["kind"]}}
	out.SetNamespace(o.GetNamespace())
	out.SetName(o.GetName())
	out.SetUID(o.GetUID())
	out.SetResourceVersion(o.GetResourceVersion())
	out.SetCreationTimestamp(o.GetCreationTimestamp())
	out.Object["spec"] = of["spec"]
	if spec, err := json.Marshal(of["spec"]); err != nil || len(spec) > longest {
		out.Object["spec"] = map[string]any{tooLarge: true}
	}
	return out, nil
}

// tooLarge is the only field that trimForeign leaves of a large specification. The kind has none of that name.
const tooLarge = "berth.dev/too-large"

// settle notes what there is; nil: the kind is not installed.
func (f *foreign) settle(store cache.Indexer) {
	f.mu.Lock()
	news := !f.known || (f.store == nil) != (store == nil)
	f.known, f.store, f.said = true, store, ""
	f.mu.Unlock()
	if !news {
		return
	}
	if store != nil {
		f.log.Info("SecurityGroupPolicies are installed, and read")
	}
	f.changed()
}

// complain logs an error, unless it did so last.
func (f *foreign) complain(err error) {
	f.mu.Lock()
	news := f.said != err.Error()
	f.said = err.Error()
	f.mu.Unlock()
	if news {
		f.log.Warn("cannot read the SecurityGroupPolicies of the cluster; those that were read count", "error", err)
	}
}

// read is what there is; nil where the kind is not installed.
func (f *foreign) read() (cache.Indexer, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.known {
		if f.said != "" {
			return nil, fmt.Errorf("%w: %s", errUnknown, f.said)
		}
		return nil, errUnknown
	}
	return f.store, nil
}

// of are those of a namespace; live reads them past the memory. The error is also of too many, or of one that is too large: a
// pod that it selects must not run without its groups.
func (f *foreign) of(ctx context.Context, namespace string, live bool) ([]nicrequest.Policy, error) {
	store, err := f.read()
	if err != nil || store == nil {
		return nil, err
	}
	items, err := store.ByIndex(cache.NamespaceIndex, namespace)
	if err != nil {
		return nil, fmt.Errorf("list SecurityGroupPolicies of namespace %s in memory: %w", namespace, err)
	}
	if live && len(items) <= most { // so many as are known already are not read again
		items = nil
		list, err := f.api.Resource(securityGroupPolicies).Namespace(namespace).List(ctx, metav1.ListOptions{Limit: most + 1})
		if apierrors.IsNotFound(err) { // the kind was just removed
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("list SecurityGroupPolicies of namespace %s: %w", namespace, err)
		}
		for i := range list.Items {
			o, _ := trimForeign(&list.Items[i])
			items = append(items, o)
		}
	}
	if len(items) > most {
		return nil, fmt.Errorf("namespace %s has more than %d SecurityGroupPolicies: delete some", namespace, most)
	}
	var all []nicrequest.Policy
	for _, item := range items {
		o := item.(*unstructured.Unstructured)
		if _, large, _ := unstructured.NestedBool(o.Object, "spec", tooLarge); large {
			return nil, fmt.Errorf("the spec of SecurityGroupPolicy %s/%s has more than %d bytes of JSON: make it shorter", namespace, o.GetName(), longest)
		}
		if p, ok := fromForeign(o); ok {
			all = append(all, p)
		}
	}
	return all, nil
}

// namespaces are those with at least one.
func (f *foreign) namespaces() ([]string, error) {
	store, err := f.read()
	if err != nil || store == nil {
		return nil, err
	}
	return store.ListIndexFuncValues(cache.NamespaceIndex), nil
}

// foreignPolicy is a SecurityGroupPolicy (amazon-vpc-resource-controller-k8s,
// apis/vpcresources/v1beta1).
type foreignPolicy struct {
	Spec struct {
		PodSelector            *metav1.LabelSelector `json:"podSelector"`
		ServiceAccountSelector *metav1.LabelSelector `json:"serviceAccountSelector"`
		SecurityGroups         struct {
			GroupIDs []string `json:"groupIds"`
		} `json:"securityGroups"`
	} `json:"spec"`
}

// fromForeign is what a SecurityGroupPolicy says. One without a selector, without groups or
// with a selector that makes no sense selects nothing, as with the Amazon VPC CNI.
func fromForeign(o *unstructured.Unstructured) (nicrequest.Policy, bool) {
	var f foreignPolicy
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &f); err != nil {
		return nicrequest.Policy{}, false
	}
	pods, accounts := f.Spec.PodSelector, f.Spec.ServiceAccountSelector
	if pods == nil && accounts == nil || len(f.Spec.SecurityGroups.GroupIDs) == 0 {
		return nicrequest.Policy{}, false
	}
	p := nicrequest.Policy{Kind: nicrequest.KindSecurityGroupPolicy, Name: o.GetName(), Created: o.GetCreationTimestamp().Time, SecurityGroups: f.Spec.SecurityGroups.GroupIDs}
	var errPods, errAccounts error
	if pods != nil {
		p.Pods, errPods = metav1.LabelSelectorAsSelector(pods)
	}
	if accounts != nil {
		p.Accounts, errAccounts = metav1.LabelSelectorAsSelector(accounts)
	}
	return p, errPods == nil && errAccounts == nil
}
