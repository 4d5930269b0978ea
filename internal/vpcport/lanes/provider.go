package lanes

import (
	"context"
	"errors"
	"time"

	"github.com/berthnet/berth/internal/vpcport"
)

// The operations reported to an Observer.
const (
	OpNetwork = "Network"
	OpPorts   = "Ports"
	OpGet     = "Get"
	OpCreate  = "Create"
	OpUpdate  = "Update"
	OpDelete  = "Delete"
	OpProject = "Project"
)

// Observer observes each sent call before its caller gets the result. Its methods must be quick and may be called concurrently.
type Observer interface {
	// Called reports the operation of a call, its error, how long it waited, and how long it took.
	Called(op string, err error, waited, took time.Duration)
}

// Provider returns p with all its calls limited. Several providers may share the limit. The observer may be nil.
func (l *Limiter) Provider(p vpcport.Provider, o Observer) vpcport.Provider {
	return &provider{l, p, o}
}

type provider struct {
	lanes    *Limiter
	in       vpcport.Provider
	observer Observer
}

// through makes a call with a result.
func through[T any](ctx context.Context, p *provider, op string, u urgency, call func() (T, error)) (out T, err error) {
	err = p.lanes.do(ctx, op, u, p.observer, func() error {
		out, err = call()
		return err
	})
	return out, err
}

// Network implements vpcport.Provider.
func (p *provider) Network(ctx context.Context, idOrName string) (vpcport.Network, error) {
	return through(ctx, p, OpNetwork, second, func() (vpcport.Network, error) { return p.in.Network(ctx, idOrName) })
}

// Ports implements vpcport.Provider.
func (p *provider) Ports(ctx context.Context, f vpcport.Filter) ([]vpcport.Port, error) {
	return through(ctx, p, OpPorts, second, func() ([]vpcport.Port, error) { return p.in.Ports(ctx, f) })
}

// Get implements vpcport.Provider.
func (p *provider) Get(ctx context.Context, id string) (vpcport.Port, error) {
	return through(ctx, p, OpGet, second, func() (vpcport.Port, error) { return p.in.Get(ctx, id) })
}

// Create implements vpcport.Provider.
func (p *provider) Create(ctx context.Context, ports []vpcport.NewPort) ([]vpcport.Port, error) {
	return through(ctx, p, OpCreate, third, func() ([]vpcport.Port, error) { return p.in.Create(ctx, ports) })
}

// Update implements vpcport.Provider.
func (p *provider) Update(ctx context.Context, id string, revision int, c vpcport.Change) (vpcport.Port, error) {
	return through(ctx, p, OpUpdate, first, func() (vpcport.Port, error) { return p.in.Update(ctx, id, revision, c) })
}

// Delete implements vpcport.Provider.
func (p *provider) Delete(ctx context.Context, id string) error {
	_, err := through(ctx, p, OpDelete, first, func() (struct{}, error) { return struct{}{}, p.in.Delete(ctx, id) })
	return err
}

// Project implements vpcport.Provider.
func (p *provider) Project(ctx context.Context) (string, error) {
	return through(ctx, p, OpProject, second, func() (string, error) { return p.in.Project(ctx) })
}

// Resolve implements vpcport.Resolver for providers that do so (vpcport.Traits.Warm). It is not limited, as providers answer mostly from
// their caches.
func (p *provider) Resolve(ctx context.Context, n vpcport.NewPort) (vpcport.Resolved, error) {
	in, ok := p.in.(vpcport.Resolver)
	if !ok {
		return vpcport.Resolved{}, &vpcport.Error{Class: vpcport.Bug, Op: "Resolve", Message: "the provider is not a Resolver"}
	}
	return in.Resolve(ctx, n)
}

// Traits implements vpcport.Provider.
func (p *provider) Traits() vpcport.Traits { return p.in.Traits() }

// retryAfter returns how long the provider asked the client to wait; 0: it did not ask.
func retryAfter(err error) time.Duration {
	if e, ok := errors.AsType[*vpcport.Error](err); ok {
		return e.RetryAfter
	}
	return 0
}
