package memapi

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

	"github.com/berthnet/berth/internal/operator/watched"
)

// overAPI is a manager whose objects are in memory, also those that are read past its
// cache.
type overAPI struct {
	manager.Manager
	api *API
}

func (m overAPI) GetAPIReader() client.Reader { return m.api }

func (m overAPI) GetEventRecorder(string) recorder.EventRecorder { return &events.FakeRecorder{} }

// NewManager is a manager over an API that keeps some kinds in memory.
func NewManager(api *API, kinds []*watched.Kind) (manager.Manager, error) {
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
		Cache:          cache.Options{ByObject: watched.ByObject(kinds), NewInformer: informer},
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
