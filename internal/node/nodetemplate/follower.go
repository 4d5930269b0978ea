package nodetemplate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/kubeapi"
	"github.com/berthnet/berth/internal/nodenetwork/template"
	"github.com/berthnet/berth/internal/retry"
)

// Watched resources, in logs and in paths of the API.
const (
	templates = "nodenetworktemplates"
	nodes     = "nodes"
)

// errNotListed: the API server has not answered yet.
var errNotListed = errors.New("the API server has not listed NodeNetworkTemplates and the Node yet")

// Config is the configuration of a Follower.
type Config struct {
	NodeName   string // of the Node
	Kubeconfig string // empty: in the cluster
	InstanceID string // of this instance
	Dir        string // the state directory
	Clock      clock.Clock
	Logger     *slog.Logger
}

// Follower knows which NodeNetworkTemplate selects a node. Make it with New.
type Follower struct {
	cfg     Config
	api     *kubeapi.Client
	log     *slog.Logger
	applied *template.Choice // the last choice that could be applied before the start; nil: none
	sync    *kubeapi.Sync
	news    retry.Signal // wakes the goroutine that decides
	awaited retry.Signal // wakes Await

	mu        sync.Mutex // guards all below; memory only, no call is made under it
	templates map[types.NamespacedName]v1alpha1.NodeNetworkTemplate
	node      types.UID // of the node's Node; empty: there is none, or it was not listed yet
	labels    map[string]string
	known     bool             // there is a choice
	choice    *template.Choice // nil: no template selects the node
	changed   func(*template.Choice)
	due       bool // changed is to be called
}

// CheckAccess returns an error if no way to the Kubernetes API is configured.
func CheckAccess(kubeconfig string) error {
	_, err := kubeapi.Config(kubeconfig)
	return err
}

// New returns a follower with the last choice that a daemon of this instance stored, if any. It makes no request yet.
func New(cfg Config) (*Follower, error) {
	rc, err := kubeapi.Config(cfg.Kubeconfig)
	if err != nil {
		return nil, err
	}
	return newFollower(cfg, rc)
}

func newFollower(cfg Config, rc *rest.Config) (*Follower, error) {
	api, err := kubeapi.New(rc)
	if err != nil {
		return nil, err
	}
	cfg.Clock = cmp.Or[clock.Clock](cfg.Clock, clock.Real{})
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	f := &Follower{
		cfg: cfg, api: api, log: cfg.Logger, sync: kubeapi.NewSync(), news: retry.NewSignal(), awaited: retry.NewSignal(),
		templates: map[types.NamespacedName]v1alpha1.NodeNetworkTemplate{},
	}
	if f.choice, f.known, err = load(cfg.Dir, choiceFile, cfg.InstanceID); err != nil {
		f.log.Error("the stored choice of a NodeNetworkTemplate is not used", "err", err)
	}
	if f.applied, _, err = load(cfg.Dir, countsFile, cfg.InstanceID); err != nil {
		f.log.Error("the stored choice of a NodeNetworkTemplate that was applied last is not used", "err", err)
	}
	return f, nil
}

// Choice returns the newest choice, nil if no template selects the node. known: there is one.
func (f *Follower) Choice() (c *template.Choice, known bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.choice, f.known
}

// LastApplied returns the last choice that could be applied before the start; nil: none, or it is not known. It stays in force
// while the newest one is invalid.
func (f *Follower) LastApplied() *template.Choice { return f.applied }

// RecordApplied records for the next start that a choice could be applied.
func (f *Follower) RecordApplied(c *template.Choice) {
	if err := save(f.cfg.Dir, countsFile, f.cfg.InstanceID, c); err != nil {
		f.log.Warn("applied choice of a NodeNetworkTemplate not recorded; it is lost if berthd restarts while the newest one is invalid", "err", err)
	}
}

// OnChange has one goroutine call changed with every choice that follows after.
func (f *Follower) OnChange(after *template.Choice, changed func(*template.Choice)) {
	f.mu.Lock()
	f.changed, f.due = changed, f.known && !reflect.DeepEqual(f.choice, after)
	f.mu.Unlock()
	f.news.Set()
}

// Await returns once there is a choice. It returns an error that says why there is none as soon as a request fails, or
// after the timeout of a request.
func (f *Follower) Await(ctx context.Context) error {
	timeout := f.cfg.Clock.After(kubeapi.Timeout)
	for {
		f.mu.Lock()
		known, missing := f.known, f.missing()
		f.mu.Unlock()
		if known {
			return nil
		}
		if !errors.Is(missing, errNotListed) {
			return missing
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timeout:
			return missing
		case <-f.awaited:
		}
	}
}

// missing returns why there is no choice. f.mu is held.
func (f *Follower) missing() error {
	if what, err := f.sync.Failing(); err != nil {
		return fmt.Errorf("following %s: %w", what, err)
	}
	if f.sync.Listed(nodes) && f.node == "" {
		return fmt.Errorf("there is no Node %s, whose labels NodeNetworkTemplates select by", f.cfg.NodeName)
	}
	return errNotListed
}

// Run follows templates and the Node until ctx ends.
func (f *Follower) Run(ctx context.Context) {
	ctx = kubeapi.Quiet(ctx)
	m := &kubeapi.Mirror{API: f.api, Sync: f.sync, Log: f.log, Update: f.update, Explain: explain}
	m.KeepMetadata(kubeapi.LabelledNode(f.cfg.NodeName), kubeapi.Store[*kubeapi.Metadata]{
		Mine:  func(n *kubeapi.Metadata) bool { return n.Name == f.cfg.NodeName }, // the API server was asked for this one
		Names: func() []types.NamespacedName { return nil },
		Put:   func(n *kubeapi.Metadata) { f.node, f.labels = n.UID, maps.Clone(n.Labels) },
		// The labels of a Node that is gone stay: its kubelet creates it again, or the machine goes too.
		Drop: func(types.NamespacedName, types.UID) {},
	})
	kubeapi.Keep(m, templates, f.api.Objects(templates, "", func() runtime.Object { return &v1alpha1.NodeNetworkTemplateList{} }),
		kubeapi.Store[*v1alpha1.NodeNetworkTemplate]{
			Names: func() []types.NamespacedName { return slices.Collect(maps.Keys(f.templates)) },
			Put:   func(t *v1alpha1.NodeNetworkTemplate) { f.templates[kubeapi.NameOf(t)] = *t },
			Drop: func(name types.NamespacedName, uid types.UID) {
				if uid == "" || f.templates[name].UID == uid {
					delete(f.templates, name)
				}
			},
		})
	var wg sync.WaitGroup
	wg.Go(func() { m.Run(ctx) })
	f.decide(ctx)
	wg.Wait()
}

// update changes what is known, and wakes who depends on it.
func (f *Follower) update(change func()) {
	f.mu.Lock()
	change()
	f.mu.Unlock()
	f.news.Set()
	f.awaited.Set()
}

// chosen returns the choice, and the error of template.Choose. There is none (ok) before both kinds were listed.
// f.mu is held.
func (f *Follower) chosen() (c *template.Choice, ok bool, invalid error) {
	if !f.sync.Listed(templates) || f.node == "" {
		return nil, false, nil
	}
	c, invalid = template.Choose(f.labels, slices.Collect(maps.Values(f.templates)))
	return c, true, invalid
}

// explain adds what to do about an error of the API server.
func explain(what string, err error) error {
	switch {
	case apierrors.IsNotFound(err) && what == templates:
		return fmt.Errorf("the kind is not served, install its CustomResourceDefinition (the chart does with nodeNetworkTemplates.enabled): %w", err)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("berthd needs the right to list and watch %s (the chart's roles give it with nodeNetworkTemplates.enabled): %w", what, err)
	}
	return err
}

// decide makes the choice whenever something changes, until ctx ends. The choice is in the file before it is used.
func (f *Follower) decide(ctx context.Context) {
	var logged string
	confirmed := false // the API server has listed all, and the file has the choice
	for {
		f.mu.Lock()
		c, ok, invalid := f.chosen()
		same := f.known && reflect.DeepEqual(c, f.choice)
		f.mu.Unlock()
		if invalid != nil && invalid.Error() != logged {
			f.log.Error("invalid NodeNetworkTemplates are ignored", "err", invalid)
		}
		logged = fmt.Sprint(invalid)
		if ok && (!same || !confirmed) {
			if err := save(f.cfg.Dir, choiceFile, f.cfg.InstanceID, c); err != nil {
				f.log.Warn("choice of a NodeNetworkTemplate not recorded; it is lost if berthd restarts without the API server", "err", err)
			}
			confirmed = true
		}
		if ok && !same {
			f.choose(c)
		}
		f.deliver()
		select {
		case <-ctx.Done():
			return
		case <-f.news:
		}
	}
}

func (f *Follower) choose(c *template.Choice) {
	name := "none"
	if c != nil {
		name = c.Name
	}
	f.log.Info("NodeNetworkTemplate of this node changed", "template", name)
	f.mu.Lock()
	f.choice, f.known, f.due = c, true, true
	f.mu.Unlock()
	f.awaited.Set()
}

// deliver calls changed if that is due.
func (f *Follower) deliver() {
	f.mu.Lock()
	c, changed := f.choice, f.changed
	if !f.due || changed == nil {
		f.mu.Unlock()
		return
	}
	f.due = false
	f.mu.Unlock()
	changed(c)
}
