package pool

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/kubeapi"
	"github.com/berthnet/berth/internal/retry"
)

// committer brings the file and the data path to what the holdings want. Its field have belongs to the goroutine of
// run.
type committer struct {
	state    *guarded
	nodeName string
	dir      string // of the file; empty: none is kept
	datapath Datapath
	log      *slog.Logger
	have     inPlace
}

// inPlace is what the file and the data path have; nil where that is not known.
type inPlace struct{ saved, programmed []blockFacts }

// run commits whenever something changes, until ctx ends: first the file, then the data path. A block's addresses are
// handed out after both have it, and its finalizer is removed after neither has.
func (c *committer) run(ctx context.Context) {
	var backoff retry.Backoff
	for {
		var again <-chan time.Time
		if want, withdrawn, trusted := c.desired(); trusted {
			err := c.put(ctx, want)
			c.committed(want, withdrawn, err)
			switch {
			case err == nil:
				backoff = retry.Backoff{}
			case !kubeapi.Cancelled(err):
				c.log.Warn("blocks not put in place, will try again", "err", err)
				backoff.Fail(c.state.clock.Now(), retry.First, retry.Most)
				again = c.state.clock.After(backoff.Until.Sub(c.state.clock.Now()))
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-c.state.commit:
		case <-again:
		}
	}
}

// desired lists what is to be in place and what is to go. Nothing is touched before the blocks are known: what the
// kernel has carries pods.
func (c *committer) desired() (want, withdrawn []blockFacts, trusted bool) {
	c.state.with(func(n *holdings, _ time.Time) {
		if trusted = !n.unconfirmed && (n.sync.Listed(blocksResource) || n.filed); trusted {
			want, withdrawn = n.blocks.desired(), n.blocks.withdrawn()
		}
	})
	return want, withdrawn, trusted
}

// lacks reports whether a block is not marked as programmed, such as one that is back after it was gone.
func (c *committer) lacks(want []blockFacts) (lacks bool) {
	c.state.with(func(n *holdings, _ time.Time) {
		n.each(want, func(h *heldBlock) { lacks = lacks || !h.programmed })
	})
	return lacks
}

// put writes the file and sets the routes, as far as they differ.
func (c *committer) put(ctx context.Context, want []blockFacts) error {
	have := &c.have
	if have.saved == nil || !slices.EqualFunc(want, have.saved, sameOnFile) {
		if err := c.save(want); err != nil {
			return err
		}
		have.saved = want
	}
	if have.programmed != nil && slices.EqualFunc(want, have.programmed, blockFacts.same) && !c.lacks(want) {
		return nil
	}
	have.programmed = nil
	err := c.program(ctx, want)
	if err == nil {
		have.programmed = want
	}
	return err
}

// program sets the routes.
func (c *committer) program(ctx context.Context, want []blockFacts) error {
	blocks := make([]datapath.Block, len(want))
	for i, b := range want {
		blocks[i] = datapath.Block{Name: b.name, Prefixes: b.prefixes()}
	}
	return failpoint.Around("pool.program", func() error {
		if err := c.datapath.SetBlocks(ctx, blocks); err != nil {
			return fmt.Errorf("routes of the node's blocks: %w", err)
		}
		return nil
	})
}

// committed notes the result: addresses of blocks that are in place may be handed out, and blocks that were removed may be
// returned. A block that cannot be routed does not delay others.
func (c *committer) committed(want, withdrawn []blockFacts, err error) {
	partly, ok := errors.AsType[*datapath.BlocksError](err)
	if ok = ok || err == nil; partly == nil {
		partly = &datapath.BlocksError{}
	}
	c.state.change(func(n *holdings, _ time.Time) {
		if !ok {
			n.each(want, func(h *heldBlock) { h.failed(err.Error(), false) })
			return
		}
		n.each(want, func(h *heldBlock) {
			if no := partly.Failed[h.name]; no != nil {
				h.failed(no.Error(), true)
				return
			}
			h.program()
		})
		if partly.Left == nil {
			n.each(withdrawn, (*heldBlock).clear)
		}
	})
}

// save replaces the file.
func (c *committer) save(want []blockFacts) error {
	if c.dir == "" {
		return nil
	}
	return failpoint.Around("pool.save", func() error { return file{c.dir}.save(c.nodeName, want) })
}

// load takes over the blocks of the file, to serve from while the API server cannot be reached.
func (c *committer) load() {
	if c.dir == "" {
		return
	}
	node, blocks, ok, err := (file{c.dir}).load()
	switch {
	case err != nil:
		c.log.Warn("stored blocks not used", "err", err)
		return
	case !ok:
		return
	case node != c.nodeName:
		c.log.Warn("stored blocks are of another node", "node", node)
		return
	}
	c.state.with(func(n *holdings, now time.Time) {
		for _, b := range blocks {
			n.setBlock(b, false, now)
		}
		n.filed, n.unconfirmed = true, true
	})
}
