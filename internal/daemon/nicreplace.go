package daemon

import (
	"context"
	"slices"

	"github.com/berthnet/berth/internal/attachment"
	"github.com/berthnet/berth/internal/failpoint"
)

var _ = failpoint.Register("daemon.nics.replaced")

// replace plugs the ports that an attachment is to have now in place of those that it
// has: somebody deleted a port, and the operator had another made. The old ones go
// first, as interfaces have their names, and the record says between what is to be
// plugged: whoever starts after a crash goes on from there. The container's lock is held.
func (d *Daemon) replace(ctx context.Context, rec attachment.Record, now []attachment.NIC) error {
	for i, old := range slices.Backward(rec.NICs) {
		if old.Port == now[i].Port && old.UID == now[i].UID {
			continue
		}
		if err := d.NICs.Unplug(ctx, rec, old); err != nil {
			return nicFailure("unplugging "+nicName(old)+", in whose place is port "+now[i].Port, err)
		}
	}
	rec.NICs = now
	if err := d.Store.Put(rec); err != nil {
		return recordFailure(err)
	}
	if err := failpoint.Hit("daemon.nics.replaced"); err != nil {
		return err
	}
	rec, err := d.again(ctx, rec, d.plug)
	if err != nil {
		return err
	}
	d.tellPlugged(rec)
	return nil
}
