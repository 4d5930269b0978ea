package nics

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/kernel/plug/ovsdb"
	"github.com/berthnet/berth/internal/kubeapi"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/waiters"
	"github.com/berthnet/berth/internal/retry"
)

// Config is the configuration of NICs. NodeName, Plugger and Recorded are required.
type Config struct {
	NodeName   string // of this node's Node
	Kubeconfig string // empty: in the cluster
	Plugger    plug.Plugger
	Switch     Switch   // nil: the node has no Open vSwitch
	Bridges    []string // of Open vSwitch that ports may be plugged into

	FirstIsPort bool // the first interface of pods is a NIC; else its addresses come from an address source
	// FirstMayBeBranch: the first interface is a NIC if one has its name. It is a VLAN to which the node routes.
	FirstMayBeBranch bool
	Enforcing        plug.Enforcing // of a first interface that is a branch, when it is plugged
	// NeedIPv6 turns IPv6 on before such a branch with an IPv6 address is plugged; nil: it is on.
	NeedIPv6 func(context.Context) error

	IgnoreUntold bool // pods whose annotations the runtime does not pass have the NICs of their PodNICs

	// Recorded reports whether a record of an attachment on the node has a port.
	Recorded func(port string) bool

	Clock   clock.Clock
	Logger  *slog.Logger
	Metrics Metrics // zero: of no registry
}

// Switch is the node's Open vSwitch. *ovsdb.Client is one.
type Switch interface {
	// Bridge looks a bridge up. Errors: plug.ErrNoBridge, plug.ErrUnreachable.
	Bridge(ctx context.Context, name string) (*ovsdb.Bridge, error)
	// Watch calls changed when other software changes plugs, until ctx ends.
	Watch(ctx context.Context, changed func([]ovsdb.Change))
}

// NICs are the node's ports of VPCs. They implement what the daemon's part for NICs needs. Make them with New.
type NICs struct {
	cfg     Config
	rules   rules
	api     *kubeapi.Client
	clock   clock.Clock
	log     *slog.Logger
	vswitch *vswitch // nil: the node has no Open vSwitch
	*plugs           // plug and unplug
	*drift           // changes of plugs by other software

	report retry.Signal // wakes the reporter
	news   retry.Signal // running pods may have to get other NICs

	mu       sync.Mutex // guards all below; memory only, no call is made under it
	observed *observed
	waiters  *waiters.Set
}

// New checks the configuration. It makes no request yet.
func New(cfg Config) (*NICs, error) {
	api, err := kubeapi.Open(cfg.Kubeconfig)
	if err != nil {
		return nil, err
	}
	return newNICs(cfg, api)
}

func newNICs(cfg Config, api *kubeapi.Client) (*NICs, error) {
	switch {
	case cfg.NodeName == "":
		return nil, errors.New("ports: NodeName: want the name of this node")
	case cfg.Plugger == nil:
		return nil, errors.New("ports: Plugger: want one")
	case cfg.Recorded == nil:
		return nil, errors.New("ports: Recorded: want the records of attachments")
	case cfg.FirstMayBeBranch && cfg.Enforcing != plug.Strict && cfg.Enforcing != plug.Standard:
		return nil, fmt.Errorf("ports: Enforcing: %q: want %s or %s", cfg.Enforcing, plug.Strict, plug.Standard)
	}
	cfg.Clock = cmp.Or[clock.Clock](cfg.Clock, clock.Real{})
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	cfg.Metrics = cmp.Or(cfg.Metrics, NewMetrics(prometheus.NewRegistry()))
	n := &NICs{
		cfg: cfg, rules: rules{firstIsPort: cfg.FirstIsPort, firstMayBeBranch: cfg.FirstMayBeBranch, enforcing: cfg.Enforcing, ignoreUntold: cfg.IgnoreUntold},
		api: api, clock: cfg.Clock, log: cfg.Logger, drift: newDrift(), report: retry.NewSignal(), news: retry.NewSignal(), observed: newObserved(),
	}
	n.waiters, n.plugs = waiters.New(&n.mu), newPlugs(cfg, n.outcome)
	if cfg.Switch != nil {
		n.vswitch = &vswitch{Switch: cfg.Switch, bridges: cfg.Bridges, clock: cfg.Clock, log: cfg.Logger, drift: n.drift}
	}
	return n, nil
}

// Annotations implements nicpart.NICs.
func (n *NICs) Annotations() []string {
	return []string{v1alpha1.AnnotationVPC, v1alpha1.AnnotationNICs}
}

// CheckOptions implements nicpart.NICs.
func (n *NICs) CheckOptions(req attachment.Request) error {
	n.mu.Lock()
	vpc, known := n.observed.namespaces[req.Pod.Namespace]
	n.mu.Unlock()
	_, err := n.rules.of(req, vpc, known)
	return err
}

// Run follows the API server and Open vSwitch, and reports what is plugged, until ctx ends.
func (n *NICs) Run(ctx context.Context) error {
	ctx = kubeapi.Quiet(ctx)
	var wg sync.WaitGroup
	mirror, reporter := n.mirror(), newReporter(n)
	wg.Go(func() { mirror.Run(ctx) })
	if n.vswitch != nil {
		wg.Go(func() { n.vswitch.watch(ctx) })
		wg.Go(func() { n.vswitch.check(ctx) })
	}
	reporter.Run(ctx)
	wg.Wait()
	return ctx.Err()
}

// change changes the observed state, and wakes the ADDs that wait and the reporter.
func (n *NICs) change(do func(o *observed)) {
	n.mu.Lock()
	do(n.observed)
	invalid := n.observed.invalid
	n.observed.invalid = nil
	n.waiters.Wake(nil)
	n.mu.Unlock()
	n.report.Set()
	for _, err := range invalid {
		n.log.Error("an invalid PodNIC is not plugged", "err", err)
	}
}

// Watched resources, in logs and in paths of the API.
const (
	podNICs    = "podnics"
	namespaces = "namespaces"
)

// mirror keeps what is observed up to date with the API server: the PodNICs of this node, and the VPCs of Namespaces.
func (n *NICs) mirror() *kubeapi.Mirror {
	o := n.observed
	m := &kubeapi.Mirror{API: n.api, Sync: o.sync, Log: n.log, Update: func(change func()) { n.change(func(*observed) { change() }) }}
	m.KeepMetadata(kubeapi.Namespaces, kubeapi.Store[*kubeapi.Metadata]{
		Names: func() (all []types.NamespacedName) {
			for name := range o.namespaces {
				all = append(all, types.NamespacedName{Name: name})
			}
			return all
		},
		Put:  func(ns *kubeapi.Metadata) { o.namespaces[ns.Name] = ns.Annotations[v1alpha1.AnnotationVPC] },
		Drop: func(name types.NamespacedName, _ types.UID) { delete(o.namespaces, name.Name) },
	}, v1alpha1.AnnotationVPC)
	kubeapi.Keep(m, podNICs, n.api.Objects(podNICs, kubeapi.FieldEquals("status.nodeName", n.cfg.NodeName), func() runtime.Object { return &v1alpha1.PodNICList{} }),
		kubeapi.Store[*v1alpha1.PodNIC]{
			Mine:  func(p *v1alpha1.PodNIC) bool { return p.Status.NodeName == n.cfg.NodeName }, // the API server was asked for these
			Names: func() []types.NamespacedName { return slices.Collect(maps.Keys(o.objects)) },
			Put:   func(p *v1alpha1.PodNIC) { o.put(read(p, n.cfg.Bridges, n.rules)) },
			Drop:  o.drop,
			After: n.news.Set,
		})
	return m
}
