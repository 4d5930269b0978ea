package egressclient

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/google/nftables"

	"github.com/berthnet/berth/internal/kernel/tunnel"
)

// kernel is a pod's network namespace.
type kernel struct {
	at  *tunnel.Namespace
	nft *nftables.Conn
	// before is called before each change with its description, sometimes concurrently. If it returns an error, the change
	// fails with it. Tests inject failures.
	before func(what string) error
}

func open(path string) (*kernel, error) {
	at, err := tunnel.Open(path)
	if err != nil {
		return nil, err
	}
	conn, err := at.NFTables(nftables.AsLasting())
	if err != nil {
		at.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &kernel{at: at, nft: conn, before: func(string) error { return nil }}, nil
}

func (k *kernel) close() {
	_ = k.nft.CloseLasting()
	k.at.Close()
}

// do makes one change.
func (k *kernel) do(what string, change func() error) error {
	err := k.before(what)
	if err == nil {
		err = change()
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// Supported returns ErrNoFoU if the kernel cannot receive Foo over UDP.
func Supported() error { return tunnel.Supported() }

// supported caches a positive result of Supported.
var supported atomic.Bool

// Apply makes the pod's namespace at a path match s. It writes only differences, completes what an earlier Apply left
// unfinished, and removes all other state of Berth's egress: everything, if s has no Egresses, and then an adopted pod has
// the tunnels of Coil again. Connections continue unless their gateway changes. Errors: ErrNoFoU, and then a namespace without egress is unchanged; ErrNoNetns;
// rtnl.ErrNotNetns; those of Validate.
func Apply(ctx context.Context, netnsPath string, s Setup) error {
	return apply(ctx, netnsPath, s, nil)
}

func apply(ctx context.Context, netnsPath string, s Setup, before func(string) error) error {
	if err := errors.Join(s.Validate(), ctx.Err()); err != nil {
		return fmt.Errorf("set up egress in %s: %w", netnsPath, err)
	}
	if len(s.Egresses) > 0 && !supported.Load() {
		if err := Supported(); err != nil {
			return fmt.Errorf("set up egress in %s: %w", netnsPath, err)
		}
		supported.Store(true)
	}
	k, err := open(netnsPath)
	if err != nil {
		return fmt.Errorf("set up egress: %w", err)
	}
	defer func() { go k.close() }() // closing a socket of nftables waits for what its transactions removed
	if before != nil {
		k.before = before
	}
	if err := k.apply(ctx, s); err != nil {
		return fmt.Errorf("set up egress in %s: %w", netnsPath, err)
	}
	return nil
}

// apply orders changes so that no packet to a destination bypasses the gateways, and nftables never selects the
// routing table of a missing gateway. The nftables table is made first and removed last: while it exists, there may
// be state to remove.
func (k *kernel) apply(ctx context.Context, s Setup) error {
	coil, err := readFormer(k, s)
	if err != nil {
		return err
	}
	if len(s.Egresses) == 0 {
		return coil.release(k, s.Port)
	}
	was, err := k.look()
	if err != nil {
		return err
	}
	link, further, err := k.links(s)
	if err != nil {
		return err
	}
	if err := s.checkMTU(link.mtu); err != nil {
		return err
	}
	loose, err := k.loosen(s, link, was)
	if err != nil {
		return err
	}
	want, err := newFilter(s, loose)
	if err != nil {
		return err
	}
	p := newPlan(s, link.mtu, further)
	if was.fresh() {
		if err := k.setFilter(want); err != nil {
			return err
		}
	}
	devices, err := k.setTunnels(was, p)
	if errors.Is(err, ErrNoFoU) && was.fresh() {
		return errors.Join(err, k.clear(s.Port, coil.any()))
	}
	if err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	steps := []func() error{
		func() error { return k.setRoutes(was, p, devices, true) },
		func() error { return k.addRules(was, p) },
		coil.keep,
		func() error { return k.setRoutes(was, p, devices, false) },
		coil.leave,
		func() error { return k.revert(was.loosened, loose) },
		func() error {
			if was.fresh() || was.filter == want.summary() {
				return nil
			}
			return k.setFilter(want)
		},
		func() error { return k.setLoose(loose) },
		func() error { return k.removeRules(was, p) },
		func() error { return k.removeRoutes(was, p) },
		func() error { return k.removeTunnels(was, p) },
		func() error { return k.removePorts(was.port, p) },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}
