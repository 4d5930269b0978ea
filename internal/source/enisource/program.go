package enisource

import (
	"context"
	"time"

	"github.com/berthnet/berth/internal/retry"
)

// programmer brings the data path to what is published, whenever that changes, a link does, or, after a
// failure, some time has passed. It is one goroutine.
type programmer struct {
	s        *Source
	compared bool // links were compared since the last kick
	backoff  retry.Backoff
}

func (p *programmer) run(ctx context.Context) {
	for {
		done := p.pass(ctx)
		now := p.s.clock.Now()
		p.s.mu.Lock()
		next := p.s.addresses.enis.nextReport(now)
		p.s.mu.Unlock()
		if done {
			p.backoff = retry.Backoff{}
		} else {
			p.backoff.Fail(now, retry.First, retry.Most)
			next = retry.Earliest(now, next, p.backoff.Until)
		}
		var again <-chan time.Time
		if !next.IsZero() {
			again = p.s.clock.After(next.Sub(now))
		}
		select {
		case <-ctx.Done():
			return
		case <-p.s.kicked:
			p.compared = false
		case <-p.s.program:
		case <-again:
			p.s.mu.Lock()
			p.compared = p.compared && len(p.s.addresses.enis.absent) == 0
			p.s.mu.Unlock()
		}
	}
}

// pass reports whether the data path has everything. Removals come first: a new ENI may have the device
// index of one that left. It compares the links of ENIs, which lists all links of the node, unless that
// was done.
func (p *programmer) pass(ctx context.Context) bool {
	s := p.s
	p.compared = p.compared || p.compareLinks(ctx)
	defer s.cutOffs.review()
	s.mu.Lock()
	remove, set := s.addresses.differences()
	s.mu.Unlock()
	ok := p.compared
	for _, id := range remove {
		if err := s.opts.Datapath.RemoveENI(ctx, id); err != nil {
			s.log.Warn("data path of an ENI not removed", "eni", id, "err", err)
			ok = false
			continue
		}
		s.mu.Lock()
		s.addresses.enis.removed(id)
		s.mu.Unlock()
	}
	for _, e := range set {
		err := s.opts.Datapath.SetENI(ctx, e)
		s.mu.Lock()
		first := s.addresses.programmed(e, err, s.clock.Now())
		s.mu.Unlock()
		if err != nil {
			s.log.Debug("data path of an ENI not ready", "eni", e.ID, "err", err)
			ok = false
			continue
		}
		s.supply.Kick()
		if !first {
			continue
		}
		if err := s.file.save(func() {}); err != nil {
			s.log.Warn("inventory not recorded", "err", err)
		}
	}
	return ok
}

// compareLinks finds the links of ENIs that went or came since they were set up, and reports whether it
// could. From then on no address of such an ENI is handed out, until the data path has its link again.
func (p *programmer) compareLinks(ctx context.Context) bool {
	changed, err := p.s.opts.Datapath.ChangedLinks(ctx)
	if err != nil {
		p.s.log.Warn("links of ENIs not compared, will try again", "err", err)
		return false
	}
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	p.s.addresses.linksChanged(changed)
	return true
}
