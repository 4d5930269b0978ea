package ovsdb

import (
	"context"
	"fmt"
	"time"

	lib "github.com/ovn-kubernetes/libovsdb/ovsdb"

	"github.com/berthnet/berth/internal/kernel/plug"
)

// Renew makes Open vSwitch release a removed link, before a new link with the same name is created: Open vSwitch would
// keep the old one open and miss the new one. It waits for the release, and returns immediately if Open vSwitch had not
// opened the link. Errors: plug.ErrUnreachable, plug.ErrNotReady.
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
		return fmt.Errorf("wait until Open vSwitch releases %s, which is gone: %w", p.Link, err)
	}
	return nil
}

// caughtUp waits until ovs-vswitchd has applied the current content of the database (next_cfg and
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
			return fmt.Errorf("%w: it has not applied the database's content yet (is ovs-vswitchd running?)", plug.ErrNotReady)
		}
	}
	return nil
}

// lookAtConfig is the polling interval for cur_cfg, which rarely lags longer.
const lookAtConfig = 20 * time.Millisecond
