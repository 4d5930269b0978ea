package lanes

import (
	"context"
	"errors"
	"time"

	"github.com/berthnet/berth/internal/vpcport"
)

// The calls, as an Observer is told of them.
const (
	OpNetwork = "Network"
	OpPorts   = "Ports"
	OpGet     = "Get"
	OpCreate  = "Create"
	OpUpdate  = "Update"
	OpDelete  = "Delete"
	OpProject = "Project"
)

// Observer is told of every call of a provider that was sent, before its caller knows
// what came of it. Its methods must be quick; several run at once.
type Observer interface {
	// Called is told what a call was, what came of it, how long it waited for its turn,
	// and how long it took then.
	Called(op string, err error, waited, took time.Duration)
}

// Provider is p with all its calls through the lanes. Several providers may share them.
// Told may be nil.
func (l *Lanes) Provider(p vpcport.Provider, told Observer) vpcport.Provider {
	return &provider{l, p, told}
}

type provider struct {
	lanes *Lanes
	in    vpcport.Provider
	told  Observer
}

// through makes a call that has an answer.
func through[T any](ctx context.Context, p *provider, op string, u urgency, call func() (T, error)) (out T, err error) {
	err = p.lanes.do(ctx, op, u, p.told, func() error {
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

// Resolve implements vpcport.Resolver, of providers that are one (vpcport.Traits.Warm). It takes no turn: a
// provider asks for what it does not know already, which is little.
func (p *provider) Resolve(ctx context.Context, n vpcport.NewPort) (vpcport.Resolved, error) {
	in, ok := p.in.(vpcport.Resolver)
	if !ok {
		return vpcport.Resolved{}, &vpcport.Error{Class: vpcport.Bug, Op: "Resolve", Message: "the provider tells nothing of ports beforehand"}
	}
	return in.Resolve(ctx, n)
}

// Traits implements vpcport.Provider.
func (p *provider) Traits() vpcport.Traits { return p.in.Traits() }

// retryAfter is how long the provider asked to wait; 0 when it did not.
func retryAfter(err error) time.Duration {
	if e, ok := errors.AsType[*vpcport.Error](err); ok {
		return e.RetryAfter
	}
	return 0
}
