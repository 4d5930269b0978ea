package nics

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/mac"
	"github.com/berthnet/berth/internal/node/attachment"
)

// plugs does the kernel's side of NICs, one NIC at a time. It never changes and needs no lock: what is plugged is in
// the kernel and in the records.
type plugs struct {
	plugger  plug.Plugger
	needIPv6 func(context.Context) error // see Config
	metrics  Metrics
	clock    clock.Clock
	log      *slog.Logger
	// outcome takes the error of a call, or nil. reason is that of errors without a reason of their own.
	outcome func(rec attachment.Record, nic attachment.NIC, reason string, err error)
}

func newPlugs(cfg Config, outcome func(rec attachment.Record, nic attachment.NIC, reason string, err error)) *plugs {
	return &plugs{plugger: cfg.Plugger, needIPv6: cfg.NeedIPv6, metrics: cfg.Metrics, clock: cfg.Clock, log: cfg.Logger, outcome: outcome}
}

// Plug implements nicpart.NICs.
func (p *plugs) Plug(ctx context.Context, rec attachment.Record, nic attachment.NIC) (attachment.NIC, error) {
	started, w := p.clock.Now(), want(rec, nic)
	var done plug.Done
	err := p.turnIPv6On(ctx, w)
	if err == nil {
		done, err = p.plugger.Plug(ctx, w)
	}
	p.metrics.Plugged(nic.Plug.Type, err, p.clock.Now().Sub(started))
	p.outcome(rec, nic, reasonPlug, err)
	if err == nil {
		nic.HostLink, nic.HostMAC, nic.MTU = done.HostIfName, mac.Addr(done.HostMAC), cmp.Or(done.MTU, nic.MTU)
	}
	return nic, err
}

// turnIPv6On turns IPv6 on where the node is to route it to a port.
func (p *plugs) turnIPv6On(ctx context.Context, w plug.Want) error {
	routes := w.Kind == plug.RoutedVLAN && slices.ContainsFunc(w.Interface.Addresses, func(a netip.Prefix) bool { return a.Addr().Is6() })
	if !routes || p.needIPv6 == nil {
		return nil
	}
	if err := p.needIPv6(ctx); err != nil {
		return fmt.Errorf("turn IPv6 on for port %s: %w", w.PortID, err)
	}
	return nil
}

// Unplug implements nicpart.NICs.
func (p *plugs) Unplug(ctx context.Context, rec attachment.Record, nic attachment.NIC) error {
	err := p.plugger.Unplug(ctx, ref(rec, nic))
	p.outcome(rec, nic, reasonUnplug, err)
	return err
}

// Check implements nicpart.NICs.
func (p *plugs) Check(ctx context.Context, rec attachment.Record, nic attachment.NIC) error {
	return p.plugger.Check(ctx, want(rec, nic))
}

// Sweep implements nicpart.NICs. If plugs of one kind cannot be listed, those of other kinds are swept.
func (p *plugs) Sweep(ctx context.Context, keep func(hostLink, port string) bool) error {
	found, err := p.plugger.List(ctx)
	errs := []error{err}
	for _, f := range found {
		if keep(f.Attachment, f.PortID) {
			continue
		}
		if err := failpoint.Hit("port.remove.before"); err != nil {
			return err
		}
		if err := p.plugger.Remove(ctx, f); err != nil {
			errs = append(errs, fmt.Errorf("remove port %s of %s: %w", cmp.Or(f.PortID, f.Link), cmp.Or(f.Attachment, "no attachment"), err))
			continue
		}
		p.log.Info("removed a plug without an attachment", "port", f.PortID, "attachment", f.Attachment, "link", f.Link, "kind", f.Kind)
	}
	return errors.Join(errs...)
}

// Plugs implements nicpart.NICs.
func (p *plugs) Plugs(ctx context.Context) ([]string, error) {
	found, err := p.plugger.List(ctx)
	var links []string
	for _, f := range found {
		if f.Attachment != "" && !slices.Contains(links, f.Attachment) {
			links = append(links, f.Attachment)
		}
	}
	return links, err
}
