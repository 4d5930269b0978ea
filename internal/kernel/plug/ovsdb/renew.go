package ovsdb

import (
	"context"
	"fmt"
	"time"

	lib "github.com/ovn-kubernetes/libovsdb/ovsdb"

	"github.com/berthnet/berth/internal/kernel/plug"
)

// Renew has Open vSwitch let go of a link of a port that is gone, before another of its name is
// made: it has opened the one that is gone, and does not see that there is another. It
// returns once that is so, or at once where nothing had been taken. Errors: plug.ErrUnreachable,
// plug.ErrNotReady.
func (c *Client) Renew(ctx context.Context, p Port) error {
	results, err := c.transact(ctx, selectIn("Interface", named(p.Link), "_uuid", "name", "external_ids", "ofport"))
	if err != nil {
		return fmt.Errorf("look up %s: %w", p.Link, err)
	}
	taken := false
	for _, r := range results {
		for _, row := range r.Rows {
			_, numbered := number(row["ofport"])
			taken = taken || numbered && p.mayHave(readInterface(row)) == nil
		}
	}
	if !taken {
		return nil
	}
	if err := c.Detach(ctx, p); err != nil {
		return err
	}
	if err := c.caughtUp(ctx); err != nil {
		return fmt.Errorf("have Open vSwitch let go of %s, which is gone: %w", p.Link, err)
	}
	return nil
}

// caughtUp waits until ovs-vswitchd has done all that the database said before (next_cfg and
// cur_cfg of ovs-vswitchd.conf.db(5), as ovs-vsctl(8) does without --no-wait).
func (c *Client) caughtUp(ctx context.Context) error {
	const table = "Open_vSwitch"
	ask := func(column string) lib.Operation {
		return lib.Operation{Op: lib.OperationSelect, Table: table, Where: []lib.Condition{}, Columns: []string{column}}
	}
	read := func(results []lib.OperationResult, column string) (n int, ok bool) {
		if len(results) == 0 || len(results[len(results)-1].Rows) == 0 {
			return 0, false
		}
		return number(results[len(results)-1].Rows[0][column])
	}
	results, err := c.transact(ctx, lib.Operation{
		Op: lib.OperationMutate, Table: table, Where: []lib.Condition{},
		Mutations: []lib.Mutation{*lib.NewMutation("next_cfg", lib.MutateOperationAdd, 1)},
	}, ask("next_cfg"))
	if err != nil {
		return err
	}
	want, ok := read(results, "next_cfg")
	for ok {
		if results, err = c.transact(ctx, ask("cur_cfg")); err != nil {
			return err
		}
		if now, ok := read(results, "cur_cfg"); ok && now >= want {
			return nil
		}
		look := time.NewTimer(lookAtConfig)
		select {
		case <-look.C:
		case <-ctx.Done():
			look.Stop()
			return fmt.Errorf("%w: it has not done yet what the database says (is ovs-vswitchd running?)", plug.ErrNotReady)
		}
	}
	return nil
}

// lookAtConfig is how often cur_cfg is looked at, which is rarely longer than that behind.
const lookAtConfig = 20 * time.Millisecond
