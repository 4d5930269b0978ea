package nodetemplate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/kubeapi"
	"github.com/berthnet/berth/internal/nodenetwork/template"
	"github.com/berthnet/berth/internal/retry"
)

// What is watched, in logs and in paths of the API.
const (
	templates = "nodenetworktemplates"
	nodes     = "nodes"
)

// errNotTold: the API server has not answered yet.
var errNotTold = errors.New("the API server has not told yet which NodeNetworkTemplates there are, and the Node's labels")

// Config says of whom the follower is.
type Config struct {
	NodeName   string // of the Node
	Kubeconfig string // empty: in the cluster
	InstanceID string // of this instance
	Dir        string // the state directory
	Clock      clock.Clock
	Logger     *slog.Logger
}

// Follower knows the choice for a node. Make it with New.
type Follower struct {
	cfg     Config
	api     *kubeapi.Client
	log     *slog.Logger
	counted *template.Choice // the last that counted before the start; nil: none did
	news    retry.Signal     // wakes the goroutine that decides
	told    retry.Signal     // something changed for who awaits a choice

	mu      sync.Mutex // guards all below; memory only, no call is made under it
	book    book
	known   bool             // there is a choice
	choice  *template.Choice // nil: no template selects the node
	changed func(*template.Choice)
	due     bool // changed is to be called
}

// CheckAccess tells why the Kubernetes API cannot be asked at all.
func CheckAccess(kubeconfig string) error {
	_, err := kubeapi.Config(kubeconfig)
	return err
}

// New returns a follower with the last choice, if a daemon of this instance kept one. It
// makes no request yet.
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
	if cfg.Clock == nil {
		cfg.Clock = clock.Real{}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	f := &Follower{cfg: cfg, api: api, log: cfg.Logger, news: retry.NewSignal(), told: retry.NewSignal(), book: newBook()}
	if f.choice, f.known, err = load(cfg.Dir, choiceFile, cfg.InstanceID); err != nil {
		f.log.Error("the stored choice of a NodeNetworkTemplate is not used", "error", err)
	}
	if f.counted, _, err = load(cfg.Dir, countsFile, cfg.InstanceID); err != nil {
		f.log.Error("the stored choice of a NodeNetworkTemplate that counted last is not used", "error", err)
	}
	return f, nil
}

// Choice is the newest one, nil where no template selects the node. It tells whether
// there is one.
func (f *Follower) Choice() (c *template.Choice, known bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.choice, f.known
}

// Counted is the last choice that could be had before the start, nil: none, or that is not
// known. It goes on while the newest makes no sense.
func (f *Follower) Counted() *template.Choice { return f.counted }

// Counts notes that a choice could be had, for the next start.
func (f *Follower) Counts(c *template.Choice) {
	if err := save(f.cfg.Dir, countsFile, f.cfg.InstanceID, c); err != nil {
		f.log.Warn("choice of a NodeNetworkTemplate that counts not recorded; a start while the newest makes no sense would not know it", "error", err)
	}
}

// Tell has changed called with every choice after one, by one goroutine.
func (f *Follower) Tell(after *template.Choice, changed func(*template.Choice)) {
	f.mu.Lock()
	f.changed, f.due = changed, f.known && !reflect.DeepEqual(f.choice, after)
	f.mu.Unlock()
	f.news.Set()
}

// Await returns once there is a choice. The error says why there is none yet, and is
// returned as soon as something stands in the way, or once a request would have been
// given up.
func (f *Follower) Await(ctx context.Context) error {
	patience := f.cfg.Clock.After(kubeapi.Timeout)
	for {
		f.mu.Lock()
		known, missing := f.known, f.book.missing(f.cfg.NodeName)
		f.mu.Unlock()
		if known {
			return nil
		}
		if !errors.Is(missing, errNotTold) {
			return missing
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-patience:
			return missing
		case <-f.told:
		}
	}
}

// Run follows until ctx ends.
func (f *Follower) Run(ctx context.Context) {
	ctx = kubeapi.Quiet(ctx)
	var wg sync.WaitGroup
	cluster := kubeapi.NewCluster(f.api)
	cluster.Follow(kubeapi.LabelledNode(f.cfg.NodeName), f.ofNode())
	wg.Go(func() { cluster.Run(ctx) })
	wg.Go(func() {
		kubeapi.Follow(ctx, templates, f.api.Objects(templates, "",
			func() runtime.Object { return &v1alpha1.NodeNetworkTemplateList{} }), f.ofTemplates())
	})
	f.decide(ctx)
	wg.Wait()
}

func (f *Follower) ofTemplates() kubeapi.Handler[*v1alpha1.NodeNetworkTemplate] {
	return kubeapi.Handler[*v1alpha1.NodeNetworkTemplate]{
		Heard: f.heard(templates),
		Put:   func(t *v1alpha1.NodeNetworkTemplate) { f.change(func(b *book) { b.templates[t.UID] = *t }) },
		Gone:  func(t *v1alpha1.NodeNetworkTemplate) { f.change(func(b *book) { delete(b.templates, t.UID) }) },
		All:   func(list []*v1alpha1.NodeNetworkTemplate) { f.change(func(b *book) { b.setTemplates(list) }) },
	}
}

func (f *Follower) ofNode() kubeapi.Handler[*kubeapi.Metadata] {
	put := func(n *kubeapi.Metadata) {
		if n.Name == f.cfg.NodeName { // the API server was asked for this one
			f.change(func(b *book) { b.setNode(n.UID, n.Labels) })
		}
	}
	return kubeapi.Handler[*kubeapi.Metadata]{
		Heard: f.heard(nodes),
		Put:   put,
		Gone:  func(*kubeapi.Metadata) {}, // see setNode
		All: func(list []*kubeapi.Metadata) {
			f.change(func(b *book) { b.asked = true })
			for _, n := range list {
				put(n)
			}
		},
	}
}

// change changes what is known, and wakes who goes by it.
func (f *Follower) change(do func(*book)) {
	f.mu.Lock()
	do(&f.book)
	f.mu.Unlock()
	f.news.Set()
	f.told.Set()
}

// heard notes whether something can be followed, and logs when an outage begins or is over.
func (f *Follower) heard(what string) func(error) {
	return func(err error) {
		if kubeapi.Ended(err) {
			return
		}
		f.mu.Lock()
		before := f.book.trouble[what]
		delete(f.book.trouble, what)
		if err != nil {
			f.book.trouble[what] = err
		}
		f.mu.Unlock()
		f.told.Set()
		switch {
		case err != nil && before == nil:
			f.log.Warn("NodeNetworkTemplates cannot be followed; the last choice stays", "what", what, "error", explain(what, err))
		case err == nil && before != nil:
			f.log.Info("NodeNetworkTemplates can be followed again", "what", what)
		}
	}
}

// explain adds what to do about an API server's answer.
func explain(what string, err error) error {
	switch {
	case apierrors.IsNotFound(err) && what == templates:
		return fmt.Errorf("the kind is not served, install its CustomResourceDefinition (the chart does with nodeNetworkTemplates.enabled): %w", err)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("berthd needs the right to list and watch %s (the chart's roles give it with nodeNetworkTemplates.enabled): %w", what, err)
	}
	return err
}

// decide makes the choice whenever something changed, until ctx ends. It is in the file
// before anybody goes by it.
func (f *Follower) decide(ctx context.Context) {
	var complained string
	confirmed := false // the API server has told, and the file has it
	for {
		f.mu.Lock()
		c, ok, senseless := f.book.choice()
		same := f.known && reflect.DeepEqual(c, f.choice)
		f.mu.Unlock()
		if senseless != nil && senseless.Error() != complained {
			f.log.Error("NodeNetworkTemplates that make no sense select nothing", "error", senseless)
		}
		complained = fmt.Sprint(senseless)
		if ok && (!same || !confirmed) {
			if err := save(f.cfg.Dir, choiceFile, f.cfg.InstanceID, c); err != nil {
				f.log.Warn("choice of a NodeNetworkTemplate not recorded; a start without the API server would not know it", "error", err)
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
	f.log.Info("which NodeNetworkTemplate selects this node, or what it says, changed", "template", name)
	f.mu.Lock()
	f.choice, f.known, f.due = c, true, true
	f.mu.Unlock()
	f.told.Set()
}

// deliver tells the choice, if that is due.
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
