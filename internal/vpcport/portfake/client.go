package portfake

import (
	"context"

	"github.com/berthnet/berth/internal/vpcport"
)

// Client makes calls to a Provider, each of them by do, which may refuse it or end its context.
type Client struct {
	provider *Provider
	do       func(ctx context.Context, call func(context.Context) error) error
}

var _ vpcport.Provider = (*Client)(nil)

// Client returns a client of the provider for one program.
func (p *Provider) Client(do func(ctx context.Context, call func(context.Context) error) error) *Client {
	return &Client{p, do}
}

// get makes a call that returns a value.
func get[T any](ctx context.Context, c *Client, op string, call func(context.Context) (T, error)) (out T, err error) {
	err = c.do(ctx, func(ctx context.Context) (err error) {
		out, err = call(ctx)
		return err
	})
	if err != nil {
		err = wrapped(op, err)
	}
	return out, err
}

// Traits implements vpcport.Provider.
func (c *Client) Traits() vpcport.Traits { return c.provider.Traits() }

// Project implements vpcport.Provider.
func (c *Client) Project(ctx context.Context) (string, error) {
	return get(ctx, c, "Project", c.provider.Project)
}

// Network implements vpcport.Provider.
func (c *Client) Network(ctx context.Context, idOrName string) (vpcport.Network, error) {
	return get(ctx, c, "Network", func(ctx context.Context) (vpcport.Network, error) { return c.provider.Network(ctx, idOrName) })
}

// Ports implements vpcport.Provider.
func (c *Client) Ports(ctx context.Context, f vpcport.Filter) ([]vpcport.Port, error) {
	return get(ctx, c, "Ports", func(ctx context.Context) ([]vpcport.Port, error) { return c.provider.Ports(ctx, f) })
}

// Get implements vpcport.Provider.
func (c *Client) Get(ctx context.Context, id string) (vpcport.Port, error) {
	return get(ctx, c, "Get", func(ctx context.Context) (vpcport.Port, error) { return c.provider.Get(ctx, id) })
}

// Create implements vpcport.Provider.
func (c *Client) Create(ctx context.Context, ports []vpcport.NewPort) ([]vpcport.Port, error) {
	return get(ctx, c, "Create", func(ctx context.Context) ([]vpcport.Port, error) { return c.provider.Create(ctx, ports) })
}

// Update implements vpcport.Provider.
func (c *Client) Update(ctx context.Context, id string, revision int, change vpcport.Change) (vpcport.Port, error) {
	return get(ctx, c, "Update", func(ctx context.Context) (vpcport.Port, error) {
		return c.provider.Update(ctx, id, revision, change)
	})
}

// Delete implements vpcport.Provider.
func (c *Client) Delete(ctx context.Context, id string) error {
	_, err := get(ctx, c, "Delete", func(ctx context.Context) (struct{}, error) { return struct{}{}, c.provider.Delete(ctx, id) })
	return err
}
