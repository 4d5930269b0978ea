package ports

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/recorder"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/operator/vpcport"
	"github.com/berthnet/berth/internal/operator/watched"
	provided "github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/lanes"
)

// overAPI is a manager whose objects are in memory, also those that are read past its
// cache.
type overAPI struct {
	manager.Manager
	api *api
}

func (m overAPI) GetAPIReader() client.Reader { return m.api }

func (m overAPI) GetEventRecorder(string) recorder.EventRecorder { return &events.FakeRecorder{} }

// newManager is a manager over api that keeps what the controller needs.
func newManager(api *api) (manager.Manager, error) {
	ctrllog.SetLogger(logr.Discard()) // errors come as such
	informer := func(_ toolscache.ListerWatcher, o runtime.Object, every time.Duration, by toolscache.Indexers) toolscache.SharedIndexInformer {
		lw, err := api.listWatch(o)
		if err != nil {
			lw = &toolscache.ListWatch{ListWithContextFunc: func(context.Context, metav1.ListOptions) (runtime.Object, error) { return nil, err }}
		}
		return toolscache.NewSharedIndexInformer(lw, o, every, by)
	}
	mgr, err := manager.New(&rest.Config{Host: "in-memory"}, ctrl.Options{
		Scheme: api.scheme, Logger: logr.Discard(), Metrics: metricsserver.Options{BindAddress: "0"},
		Cache:          cache.Options{ByObject: watched.ByObject(vpcport.Watches()), NewInformer: informer},
		MapperProvider: func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return api.mapper, nil },
		NewClient: func(_ *rest.Config, o client.Options) (client.Client, error) {
			return operatorClient{api, o.Cache.Reader}, nil
		},
	})
	if err != nil {
		return nil, fmt.Errorf("make a manager: %w", err)
	}
	return overAPI{mgr, api}, nil
}

// networks are the one VPC.
type networks struct{ opened vpcport.Opened }

func (n networks) Of(string) (vpcport.Opened, error) { return n.opened, nil }

func (networks) Changed(func(string)) {}

const (
	vpcName   = "tenant-a"
	namespace = "shop"
)

func vpcSpec() v1alpha1.VPCSpec {
	return v1alpha1.VPCSpec{
		Provider: v1alpha1.ProviderNeutron, Network: network.ID, DefaultSubnets: []string{network.Subnets[0].ID},
		AllowedNamespaces: &v1alpha1.VPCNamespaces{Names: []string{namespace}},
	}
}

// operate runs the controller until ctx ends. Calls pass lanes, as in production.
func operate(ctx context.Context, api *api, p provided.Provider) error {
	mgr, err := newManager(api)
	if err != nil {
		return err
	}
	if err := vpcport.Index(ctx, mgr.GetFieldIndexer()); err != nil {
		return err
	}
	through := lanes.New(lanes.Options{}).Provider(p, nil)
	_, err = vpcport.Setup(mgr, vpcport.Options{
		Cluster: "bench", Networks: networks{vpcport.Opened{Provider: through, Network: network, Spec: vpcSpec()}},
	})
	if err != nil {
		return err
	}
	return mgr.Start(ctx)
}
