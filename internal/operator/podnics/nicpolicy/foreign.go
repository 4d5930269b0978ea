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

// securityGroupPolicies is the kind of the Amazon VPC resource controller.
var securityGroupPolicies = schema.GroupVersionResource{Group: "vpcresources.k8s.aws", Version: "v1beta1", Resource: "securitygrouppolicies"}

const (
	// lookEvery is the interval in which is checked whether the kind is installed.
	lookEvery = 30 * time.Second
	// lookFirst is that interval while it is not known.
	lookFirst = time.Second
	// lookTimeout bounds one check.
	lookTimeout = 10 * time.Second
)

// longest is the largest spec of a SecurityGroupPolicy, in bytes of JSON. The definition of that kind has no limit.
const longest = 16 << 10

// errUnknown is the error before the SecurityGroupPolicies were read.
var errUnknown = errors.New("the SecurityGroupPolicies of the cluster were not read yet")

// foreign caches the SecurityGroupPolicies of the cluster. Their kind may be installed or removed at any time.
type foreign struct {
	api     dynamic.Interface
	clock   clock.Clock
	log     *slog.Logger
	changed func() // called when the namespaces with some may have changed; must return quickly

	mu    sync.Mutex // guards known, store and said
	known bool
	store cache.Indexer // nil: the kind is not installed
	said  string        // the error that was logged last
}

// run follows the kind until ctx ends.
func (f *foreign) run(ctx context.Context) error {
	var stop func() // ends the informer; nil: there is none
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

// look reports whether the kind is installed.
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

// follow runs an informer until stop, which waits for its end.
func (f *foreign) follow(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	informer := dynamicinformer.NewFilteredDynamicInformer(f.api, securityGroupPolicies, metav1.NamespaceAll, 0,
		cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}, nil).Informer()
	// These do not fail before an informer runs.
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

// trimForeign keeps the fields of a SecurityGroupPolicy that make a policy, or if it is too large only that fact.
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

// tooLarge is the only field that trimForeign leaves in a large spec. The kind has no field of that name.
const tooLarge = "berth.dev/too-large"

// settle sets the store; nil: the kind is not installed.
func (f *foreign) settle(store cache.Indexer) {
	f.mu.Lock()
	news := !f.known || (f.store == nil) != (store == nil)
	f.known, f.store, f.said = true, store, ""
	f.mu.Unlock()
	if !news {
		return
	}
	if store != nil {
		f.log.Info("the kind SecurityGroupPolicy is installed: its objects count")
	}
	f.changed()
}

// complain logs an error, unless the last one was the same.
func (f *foreign) complain(err error) {
	f.mu.Lock()
	news := f.said != err.Error()
	f.said = err.Error()
	f.mu.Unlock()
	if news {
		f.log.Warn("reading the SecurityGroupPolicies of the cluster failed: those that were read before count", "err", err)
	}
}

// read returns the store; nil if the kind is not installed.
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

// of returns the policies of a namespace from the cache, or from the API server if live. Too many of them, or one that is
// too large, are an error: a pod that it selects must not run without its groups.
func (f *foreign) of(ctx context.Context, namespace string, live bool) ([]nicrequest.Policy, error) {
	store, err := f.read()
	if err != nil || store == nil {
		return nil, err
	}
	items, err := store.ByIndex(cache.NamespaceIndex, namespace)
	if err != nil {
		return nil, fmt.Errorf("list SecurityGroupPolicies of namespace %s in memory: %w", namespace, err)
	}
	if live && len(items) <= most { // not if the cache has too many
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

// namespaces returns the namespaces with SecurityGroupPolicies.
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

// fromForeign converts a SecurityGroupPolicy. As with the Amazon VPC CNI, one without a selector or without groups, or
// with an invalid selector, selects nothing.
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
