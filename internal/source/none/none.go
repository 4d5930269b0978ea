// Package none is the address source of a node without addresses for pods: all interfaces of pods are NICs.
package none

import (
	"context"
	"net/netip"
	"time"

	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/source"
)

// Source assigns no addresses.
type Source struct{}

var _ source.Source = Source{}

// Annotations implements source.Source.
func (Source) Annotations() []string { return nil }

// CheckOptions implements source.Source.
func (Source) CheckOptions(source.PodOptions) error { return nil }

// Restore implements source.Source. It ignores leases from an earlier source of the node.
func (Source) Restore(source.Request, source.Lease) error { return nil }

// RestoreCooling implements source.Source.
func (Source) RestoreCooling(netip.Addr, time.Time) {}

// Withhold implements source.Source.
func (Source) Withhold([]netip.Addr) []netip.Addr { return nil }

// NodeAddresses implements source.Source.
func (Source) NodeAddresses() []netip.Addr { return nil }

// Run implements source.Source.
func (Source) Run(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// Kick implements source.Source.
func (Source) Kick() {}

// Acquire implements source.Source. The lease has no address.
func (Source) Acquire(context.Context, source.Request) (source.Lease, error) {
	return source.Lease{}, nil
}

// Why implements source.Source.
func (Source) Why(attachment.Key) *source.Exhausted { return nil }

// Release implements source.Source.
func (Source) Release(attachment.Key) {}

// Cancel implements source.Source.
func (Source) Cancel(attachment.Key) {}

// CoolingPeriod implements source.Source.
func (Source) CoolingPeriod() time.Duration { return 0 }

// Ready implements source.Source. Nothing can be missing.
func (Source) Ready() error { return nil }

// Snapshot implements source.Source.
func (Source) Snapshot() source.Snapshot { return source.Snapshot{Count: source.Count(nil)} }
