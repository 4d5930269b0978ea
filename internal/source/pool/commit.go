package pool

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/kubeapi"
	"github.com/berthnet/berth/internal/retry"
)

// commitBlocks brings the file and the data path to what the ledger wants, in
// this order, whenever that changes, until ctx ends. A block's addresses are
// handed out after both have it, and its finalizer goes after neither has.
func (s *Source) commitBlocks(ctx context.Context) {
	var have inPlace
	var backoff retry.Backoff
	for {
		var again <-chan time.Time
		if want, withdrawn, trusted := s.toCommit(); trusted {
			err := s.put(ctx, want, &have)
			s.committed(want, withdrawn, err)
			switch {
			case err == nil:
				backoff = retry.Backoff{}
			case !kubeapi.Ended(err):
				s.log.Warn("blocks not put in place, will try again", "error", err)
				backoff.Fail(s.clock.Now(), retry.First, retry.Most)
				again = s.clock.After(backoff.Until.Sub(s.clock.Now()))
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-s.commit:
		case <-again:
		}
	}
}

// toCommit lists what is to be there and what is to go. Nothing is touched before
// the blocks are known: what the kernel has carries pods.
func (s *Source) toCommit() (want, withdrawn []blockFacts, trusted bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.ledger
	if l.unconfirmed || !l.synced.blocks && !l.filed {
		return nil, nil, false
	}
	return l.wanted(), l.withdrawnNow(), true
}

// lacks tells whether a block is not marked as programmed, such as one that
// went and came back.
func (s *Source) lacks(want []blockFacts) (lacks bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ledger.each(want, func(h *heldBlock) { lacks = lacks || !h.programmed })
	return lacks
}

// inPlace is what the file and the data path have; nil where that is not known.
type inPlace struct{ saved, programmed []blockFacts }

// put writes the file and sets the routes, as far as they differ.
func (s *Source) put(ctx context.Context, want []blockFacts, have *inPlace) error {
	if have.saved == nil || !slices.EqualFunc(want, have.saved, sameOnFile) {
		if err := s.save(want); err != nil {
			return err
		}
		have.saved = want
	}
	if have.programmed != nil && slices.EqualFunc(want, have.programmed, blockFacts.same) && !s.lacks(want) {
		return nil
	}
	have.programmed = nil
	err := s.program(ctx, want)
	if err == nil {
		have.programmed = want
	}
	return err
}

// program sets the routes.
func (s *Source) program(ctx context.Context, want []blockFacts) error {
	blocks := make([]datapath.Block, len(want))
	for i, b := range want {
		blocks[i] = datapath.Block{Name: b.name, Prefixes: b.prefixes()}
	}
	return failpoint.Around("pool.program", func() error {
		if err := s.cfg.Datapath.SetBlocks(ctx, blocks); err != nil {
			return fmt.Errorf("routes of the node's blocks: %w", err)
		}
		return nil
	})
}

// committed takes the result: what was put in place may be handed out, and what
// was taken away may be given back. A block that cannot be routed holds up no
// other.
func (s *Source) committed(want, withdrawn []blockFacts, err error) {
	partly, ok := errors.AsType[*datapath.BlocksError](err)
	if ok = ok || err == nil; partly == nil {
		partly = &datapath.BlocksError{}
	}
	s.change(func(l *ledger, _ time.Time) {
		if !ok {
			l.each(want, func(h *heldBlock) { h.down = err.Error() })
			return
		}
		l.each(want, func(h *heldBlock) {
			if no := partly.Failed[h.name]; no != nil {
				h.down, h.unroutable = no.Error(), true
				return
			}
			h.programmed, h.down, h.unroutable = true, "", false
		})
		if partly.Left == nil {
			l.each(withdrawn, func(h *heldBlock) { h.release = max(h.release, cleared) })
		}
	})
}

// save replaces the file.
func (s *Source) save(want []blockFacts) error {
	if s.cfg.StateDir == "" {
		return nil
	}
	return failpoint.Around("pool.save", func() error { return file{s.cfg.StateDir}.save(s.cfg.NodeName, want) })
}

// load takes over the blocks of the file, to serve from if the API server is
// away.
func (s *Source) load() {
	if s.cfg.StateDir == "" {
		return
	}
	node, blocks, ok, err := (file{s.cfg.StateDir}).load()
	switch {
	case err != nil:
		s.log.Warn("stored blocks not used", "error", err)
		return
	case !ok:
		return
	case node != s.cfg.NodeName:
		s.log.Warn("stored blocks are of another node", "node", node)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	l, now := s.ledger, s.clock.Now()
	for _, b := range blocks {
		l.setBlock(b, false, now)
	}
	l.filed, l.unconfirmed = true, true
}
