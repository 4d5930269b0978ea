package nodenetworksupplier

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/nodenetwork"
	"github.com/berthnet/berth/internal/retry"
)

// Addresses are released by a handshake (docs/contribute/enis.md, "Releasing addresses"):
// the operator lists candidates in spec.ipam.releasing; the daemon withdraws those
// that no pod holds and that are not cooling, records that, and confirms them in
// status.ipam.released; only then are they unassigned. An address that leaves releasing
// while it is available stays with the node.
//
// Each side may act on an old state, be slow, or be down for a while. Therefore:
//
//   - A withheld address stays withheld until a report without it was
//     accepted that was conditional on the exact state of the object that removed it
//     from releasing. An operator that lists it again has then seen that report,
//     and a daemon that reads an old state cannot restore anything because of it.
//   - Every report is conditional on the state of the object that it answers. A
//     delayed request cannot confirm addresses that were restored since.

// handshake is the daemon's side of the handshake. It belongs to the supplier's loop.
type handshake struct {
	cfg       *Config
	allocator allocator
	observed  *observed
	reports   *reports

	withheld        []netip.Prefix // withheld from pods: releasing, released, or not yet known to be neither
	withdrawn       []netip.Prefix // withheld addresses recorded as not held by a pod
	offered         *eni.Inventory // the last inventory of the allocator
	offeredWithheld []netip.Prefix
	retry           retry.Backoff
}

// reconcile passes the object's addresses to the allocator, withdraws the ones to release, and reports. It
// returns the time of the next call; zero: when woken. o belongs to this instance.
func (h *handshake) reconcile(ctx context.Context, o *v1alpha1.NodeNetwork) time.Time {
	r := nodenetwork.Read(o)
	h.logBad(r.Bad)
	withhold := slices.Concat(r.Releasing, r.Released)
	for _, p := range h.withheld {
		if r.Available[p] {
			withhold = append(withhold, p)
		}
	}
	slices.SortFunc(withhold, netip.Prefix.Compare)
	withhold = slices.Compact(withhold)
	if err := h.offer(r, withhold); err != nil {
		h.cfg.Logger.Error("inventory not recorded, will try again; nothing new is confirmed meanwhile", "err", err)
		h.retry.Fail(h.cfg.Clock.Now(), time.Second, 10*time.Second)
		// Earlier confirmations stay valid, because they are still in the file.
		if at := h.reports.send(ctx, o, intersect(r.Released, r.Releasing), nil); !at.IsZero() && at.Before(h.retry.Until) {
			return at
		}
		return h.retry.Until
	}
	h.retry = retry.Backoff{}
	// An address is confirmed if it is both requested and withdrawn. Other withheld addresses have
	// left releasing and are restored after this report.
	confirmed := intersect(h.withdrawn, r.Releasing)
	if len(withhold) == len(r.Releasing) {
		return h.reports.send(ctx, o, confirmed, nil)
	}
	return h.reports.send(ctx, o, confirmed, func() {
		h.withheld = r.Releasing
		if err := failpoint.Hit("nodenetwork.restore.confirmed"); err != nil {
			h.cfg.Logger.Warn("before addresses are restored", "err", err)
		}
		h.observed.changed.Set() // offer the restored addresses
	})
}

// offer passes an inventory to the allocator if it differs from the last one, if other addresses must
// be withheld, or if pods may have released some of these since.
func (h *handshake) offer(r nodenetwork.Reading, withhold []netip.Prefix) error {
	same := h.offered != nil && sameInventory(*h.offered, r.Inventory) && slices.Equal(h.offeredWithheld, withhold)
	if same && len(h.withdrawn) == len(withhold) {
		return nil
	}
	point := "nodenetwork.withdraw.recorded"
	if len(withhold) < len(h.offeredWithheld) {
		point = "nodenetwork.restore.after"
	}
	h.withheld, h.withdrawn, h.offered = withhold, nil, nil
	if err := failpoint.Hit("nodenetwork.withdraw.before"); err != nil {
		return err
	}
	inv := r.Inventory
	inv.At = h.cfg.Clock.Now()
	withdrawn, err := h.allocator.Offer(inv, withhold)
	if err != nil {
		return err
	}
	h.withdrawn, h.offered, h.offeredWithheld = withdrawn, &inv, withhold
	return failpoint.Hit(point)
}

func sameInventory(x, y eni.Inventory) bool {
	return x.InstanceType == y.InstanceType && x.Families == y.Families && x.Limits == y.Limits && slices.EqualFunc(x.ENIs, y.ENIs, eni.ENI.Equal)
}

// intersect returns the elements of list that are also in others, in the order of list.
func intersect(list, others []netip.Prefix) (out []netip.Prefix) {
	for _, p := range list {
		if slices.Contains(others, p) {
			out = append(out, p)
		}
	}
	return out
}

// logBad logs invalid entries whenever they change.
func (h *handshake) logBad(bad []string) {
	changed := false
	h.observed.update(func(o *observed) {
		changed = !slices.Equal(o.bad, bad)
		o.bad = bad
	})
	if changed && len(bad) > 0 {
		h.cfg.Logger.Warn("invalid entries of the object are ignored", "entries", bad)
	}
}
