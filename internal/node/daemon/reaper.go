package daemon

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/retry"
)

// Removing a link takes the kernel about 20 ms, and links removed together share that time. Therefore links
// are batched and removed after the reply.
const (
	reapGather  = 50 * time.Millisecond // batching delay when no call waits for a link
	reapBatch   = 256
	reapTimeout = 30 * time.Second
	reapRetry   = 100 * time.Millisecond // doubles up to reapMax, with jitter
	reapMax     = 5 * time.Second
)

// reaper removes links whose attachments are already gone.
type reaper struct {
	remove func(ctx context.Context, links []string) error
	clock  clock.Clock
	log    *slog.Logger
	wake   retry.Signal // set when links are queued
	hurry  retry.Signal // set when a call waits for a link

	mu      sync.Mutex // guards pending
	pending map[string]*reaping
}

// reaping is one link that is being removed.
type reaping struct {
	link  string
	netns attachment.Netns
	since time.Time
	done  chan struct{} // closed when the link is gone
	err   error         // error of the last attempt
}

func newReaper(remove func(context.Context, []string) error, clk clock.Clock, log *slog.Logger) *reaper {
	return &reaper{
		remove: remove, clock: clk, log: log,
		wake: retry.NewSignal(), hurry: retry.NewSignal(),
		pending: map[string]*reaping{},
	}
}

// add queues a link unless it is already queued.
func (r *reaper) add(link string, ns attachment.Netns) {
	r.mu.Lock()
	if r.pending[link] == nil {
		r.pending[link] = &reaping{link: link, netns: ns, since: r.clock.Now(), done: make(chan struct{})}
	}
	r.mu.Unlock()
	r.wake.Set()
}

// await returns once no queued link has this name or an end in this
// namespace, or when ctx ends.
func (r *reaper) await(ctx context.Context, link string, ns attachment.Netns) error {
	for {
		p := r.find(link, ns)
		if p == nil {
			return nil
		}
		r.hurry.Set()
		select {
		case <-p.done:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (r *reaper) find(link string, ns attachment.Netns) *reaping {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p := r.pending[link]; p != nil {
		return p
	}
	for _, p := range r.pending {
		if ns.Same(p.netns) {
			return p
		}
	}
	return nil
}

// list returns the queued links, oldest first, and the last error of each.
func (r *reaper) list() []reaping {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]reaping, 0, len(r.pending))
	for _, p := range r.pending {
		out = append(out, *p)
	}
	slices.SortFunc(out, func(a, b reaping) int { return a.since.Compare(b.since) })
	return out
}

func (r *reaper) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.pending)
}

// run removes links until ctx ends. The next start finds remaining ones in the kernel.
func (r *reaper) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.wake:
		}
		select {
		case <-ctx.Done():
			return
		case <-r.hurry:
		case <-r.clock.After(reapGather):
		}
		r.drain(ctx)
	}
}

// drain removes batches until no link is left.
func (r *reaper) drain(ctx context.Context) {
	var backoff retry.Backoff
	for {
		batch := r.batch()
		if len(batch) == 0 {
			return
		}
		err := r.reap(ctx, batch)
		r.reaped(batch, err)
		if err == nil {
			backoff = retry.Backoff{}
			continue
		}
		now := r.clock.Now()
		backoff.Fail(now, reapRetry, reapMax)
		wait := backoff.Until.Sub(now)
		r.log.Warn("removing pod links failed, will try again", "links", len(batch), "in", wait, "err", err)
		select {
		case <-ctx.Done():
			return
		case <-r.clock.After(wait):
		}
	}
}

func (r *reaper) reap(ctx context.Context, links []string) error {
	ctx, cancel := context.WithTimeout(ctx, reapTimeout)
	defer cancel()
	return r.remove(ctx, links)
}

// batch returns the oldest queued links.
func (r *reaper) batch() []string {
	var links []string
	for _, p := range r.list() {
		if links = append(links, p.link); len(links) == reapBatch {
			break
		}
	}
	return links
}

// reaped ends the waits for removed links, and stores the error of the others.
func (r *reaper) reaped(links []string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, link := range links {
		p := r.pending[link]
		if p.err = err; err == nil {
			delete(r.pending, link)
			close(p.done)
		}
	}
}
