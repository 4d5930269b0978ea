package ovsdb

import (
	"context"
	"fmt"
	"time"

	lib "github.com/ovn-kubernetes/libovsdb/ovsdb"

	"github.com/berthnet/berth/internal/kernel/plug"
)

// relook is the polling interval of a wait, in case the library misses a change.
const relook = time.Second

// Await waits until Open vSwitch has opened a link and, if ovn is set, until OVN's controller has installed its flows.
// Errors: plug.ErrNotReady, which says what was missing when ctx ended.
func (c *Client) Await(ctx context.Context, p Port, ovn bool) error {
	for missing := ""; ; {
		next := c.next(p.Link) // before the query, so that no change is missed
		results, err := c.transact(ctx, selectIn("Interface", named(p.Link), "external_ids", "ofport", "error"))
		switch {
		case err != nil && missing == "":
			return fmt.Errorf("look up %s: %w", p.Link, err)
		case err != nil:
			return fmt.Errorf("%w: port %s: %s; then %w", plug.ErrNotReady, p.PortID, missing, err)
		}
		if missing = lacks(results, p, ovn); missing == "" {
			return nil
		}
		look := time.NewTimer(relook)
		select {
		case <-next:
			look.Stop()
		case <-look.C:
		case <-ctx.Done():
			look.Stop()
			return fmt.Errorf("%w: port %s: %s", plug.ErrNotReady, p.PortID, missing)
		}
	}
}

// lacks returns what the port still needs to work, given its Interface; "" if it works.
func lacks(results []lib.OperationResult, p Port, ovn bool) string {
	if len(results) != 1 || len(results[0].Rows) == 0 {
		return fmt.Sprintf("Open vSwitch has no interface %s", p.Link)
	}
	row := results[0].Rows[0]
	ids := readInterface(row).IDs
	number, taken := number(row["ofport"])
	switch {
	case ids[IfaceID] != p.PortID || ids[AttachmentID] != p.Attachment:
		return fmt.Sprintf("interface %s of Open vSwitch belongs to another port", p.Link)
	case text(row["error"]) != "":
		return fmt.Sprintf("Open vSwitch cannot open %s: %s", p.Link, text(row["error"]))
	case !taken:
		return fmt.Sprintf("Open vSwitch has not opened %s yet (is ovs-vswitchd running?)", p.Link)
	case number < 0:
		return fmt.Sprintf("Open vSwitch cannot open %s", p.Link)
	case ovn && ids[OVNInstalled] != "true":
		return "OVN's controller has not installed the port's flows (ovn-installed)"
	}
	return ""
}

// number reads an optional integer.
func number(v any) (n int, ok bool) {
	if set, is := v.(lib.OvsSet); is {
		if len(set.GoSet) == 0 {
			return 0, false
		}
		v = set.GoSet[0]
	}
	f, ok := v.(float64)
	return int(f), ok
}
