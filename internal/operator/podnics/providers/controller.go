package providers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/operator/podnics"
	"github.com/berthnet/berth/internal/operator/queue"
	"github.com/berthnet/berth/internal/operator/watched"
	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/lanes"
)

// Options are the settings of a Controller. Zero durations and numbers take the defaults named.
type Options struct {
	// Namespace is the operator's own, with the Secrets that have credentials.
	Namespace string
	// Interval is about how often a network that was found is looked up again; 1 min.
	Interval time.Duration
	// EC2 is how VPCs of EC2 are reached; nil: there are none.
	EC2 *EC2
	// Provider, unless nil, is the provider of all VPCs in place of those that their specs name.
	Provider vpcport.Provider
	// Calls is how many calls to one endpoint are in flight at most, unless its provider says so
	// (vpcport.Traits.AtOnce); 8.
	Calls int

	Observer Observer // of calls; nil: none
	Clock    clock.Clock
	Logger   *slog.Logger
}

// Observer is told of the calls to the providers of VPCs. Its methods must return quickly, and may be
// called concurrently.
type Observer interface {
	// Called reports a call about a VPC with its error, how long it waited for its turn, and how long
	// it took after that.
	Called(vpc, op string, err error, waited, took time.Duration)
	// Gone reports that a VPC does not exist any more.
	Gone(vpc string)
}

// workers is how many VPCs are reconciled at once. Each may wait lookTimeout for its provider.
const workers = 16

// Controller works on VPC objects.
type Controller struct {
	o        Options
	client   client.Client // reads from the cache
	live     client.Reader // reads from the API server
	events   events.EventRecorder
	opener   *opener
	secrets  *secrets
	networks *networks
	reported *reports
	vpcs     queue.Queue

	mu     sync.Mutex        // guards states, but not their fields
	states map[string]*state // by VPC; the one worker that reconciles the VPC uses its fields
}

// Watches returns the kinds that the cache must keep for Setup.
func Watches() []*watched.Kind { return []*watched.Kind{podnics.VPCs, podnics.PodNICs} }

// Setup adds the controller to mgr, whose cache must have been made with Watches and
// podnics.Index. It works while mgr leads.
func Setup(mgr ctrl.Manager, o Options) (*Controller, error) {
	o.Clock = cmp.Or[clock.Clock](o.Clock, clock.Real{})
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	o.Interval = cmp.Or(o.Interval, time.Minute)
	watch, err := client.NewWithWatch(mgr.GetConfig(), client.Options{Scheme: mgr.GetScheme(), HTTPClient: mgr.GetHTTPClient(), Mapper: mgr.GetRESTMapper()})
	if err != nil {
		return nil, fmt.Errorf("controller of VPCs: %w", err)
	}
	c := &Controller{
		o: o, client: mgr.GetClient(), live: mgr.GetAPIReader(), events: mgr.GetEventRecorder(v1alpha1.OwnerOperator),
		opener:   newOpener(lanes.Options{Calls: o.Calls, Clock: o.Clock}, o.Observer),
		networks: newNetworks(), reported: newReports(), states: map[string]*state{},
	}
	c.secrets = &secrets{
		namespace: o.Namespace, reader: c.live, watcher: watch, clock: o.Clock, log: o.Logger, changed: c.wake,
		byVPC: map[string]use{}, follow: map[string]context.CancelFunc{},
	}
	err = errors.Join(
		ctrl.NewControllerManagedBy(mgr).Named("vpc").
			For(&v1alpha1.VPC{}, builder.WithPredicates(predicate.Or(predicate.GenerationChangedPredicate{}, finalizersChanged))).
			Watches(&v1alpha1.PodNIC{}, queue.Named(vpcOf), builder.WithPredicates(comeOrGo)).
			WatchesRawSource(c.vpcs.Source()).WithOptions(queue.Options(workers, 2*lookTimeout)).
			Complete(queue.RetryConflicts(c.reconcile)),
		mgr.Add(manager.RunnableFunc(c.secrets.run)),
	)
	if err != nil {
		return nil, fmt.Errorf("controller of VPCs: %w", err)
	}
	return c, nil
}

// finalizersChanged passes on updates of finalizers: a VPC gets its own back when somebody removes it.
var finalizersChanged = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
	return len(e.ObjectOld.GetFinalizers()) != len(e.ObjectNew.GetFinalizers())
}}

// comeOrGo passes on PodNICs that are created or deleted.
var comeOrGo = predicate.Funcs{UpdateFunc: func(event.UpdateEvent) bool { return false }}

func vpcOf(o client.Object) string { return o.(*v1alpha1.PodNIC).Spec.VPC }

// Networks returns the open VPCs.
func (c *Controller) Networks() podnics.Networks { return c.networks }

// Alive takes each lock that work for VPCs needs: if it does not return, the controller hangs.
func (c *Controller) Alive() {
	c.stateOf("")
	c.opener.usage()
	_, _ = c.networks.Of("")
}

func (c *Controller) now() time.Time { return c.o.Clock.Now() }
