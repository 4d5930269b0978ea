package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/retry"
)

// Removing a link takes the kernel about 20 ms, and links removed together share that time. Therefore links
// are batched and removed after the reply. So is the state of parts that lingers (part.Kernel).
const (
	reapGather  = 50 * time.Millisecond // batching delay when no call waits for a link
	reapBatch   = 256
	reapTimeout = 30 * time.Second
	reapRetry   = 100 * time.Millisecond // doubles up to reapMax, with jitter
	reapMax     = 5 * time.Second
	reapAtOnce  = 8 // concurrent removals of parts' state
)

// reaper removes links whose attachments are already gone, and finishes the removal of attachments whose parts linger.
type reaper struct {
	remove func(ctx context.Context, links []string) error
	clock  clock.Clock
	log    *slog.Logger
	wake   retry.Signal // set when links are queued
	hurry  retry.Signal // set when a call waits for a link

	mu      sync.Mutex // guards pending
	pending map[string]*reaping
}

// reaping is one attachment of which something is being removed.
type reaping struct {
	link   string // name of its host link
	netns  attachment.Netns
	since  time.Time
	finish func(context.Context) error // removes lingering parts and the record, before the link; nil: nothing but the link is left
	done   chan struct{}               // closed when the link is gone
	err    error                       // error of the last attempt
}

func newReaper(remove func(context.Context, []string) error, clk clock.Clock, log *slog.Logger) *reaper {
	return &reaper{
		remove: remove, clock: clk, log: log,
		wake: retry.NewSignal(), hurry: retry.NewSignal(),
		pending: map[string]*reaping{},
	}
}

// add queues a link unless it is already queued.
func (r *reaper) add(link string, ns attachment.Netns) { r.addFinish(link, ns, nil) }

// addFinish is add for an attachment whose removal is not complete: finish completes it, and is repeated until it
// succeeds. The attachment's record exists until then.
func (r *reaper) addFinish(link string, ns attachment.Netns, finish func(context.Context) error) {
	r.mu.Lock()
	if r.pending[link] == nil {
		r.pending[link] = &reaping{link: link, netns: ns, since: r.clock.Now(), finish: finish, done: make(chan struct{})}
	}
	r.mu.Unlock()
	r.wake.Set()
}

// has reports whether a link is queued.
func (r *reaper) has(link string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pending[link] != nil
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
			return errors.Join(context.Cause(ctx), r.failure(link, ns))
		}
	}
}

// failure returns the last error of the removal that await waits for.
func (r *reaper) failure(link string, ns attachment.Netns) error {
	p := r.find(link, ns)
	if p == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return p.err
}

func (r *reaper) find(link string, ns attachment.Netns) *reaping {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p := r.pending[link]; p != nil {
		return p
	}
	for _, p := range r.pending {
		if ns.Same(p.netns) && (p.finish == nil || ns.Path == p.netns.Path) { // the kernel uses inode numbers again
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
		if err == nil {
			backoff = retry.Backoff{}
			continue
		}
		now := r.clock.Now()
		backoff.Fail(now, reapRetry, reapMax)
		wait := backoff.Until.Sub(now)
		r.log.Warn("removing pods failed, will try again", "pods", len(batch), "in", wait, "err", err)
		select {
		case <-ctx.Done():
			return
		case <-r.hurry: // a call waits, perhaps for a pod whose removal did not fail
		case <-r.clock.After(wait):
		}
	}
}

// reap removes the links of attachments that need nothing else, finishes the others, and removes the links of those for which
// that succeeded.
func (r *reaper) reap(ctx context.Context, batch []reaping) error {
	ctx, cancel := context.WithTimeout(ctx, reapTimeout)
	defer cancel()
	var plain []string
	var rest []reaping
	for _, p := range batch {
		if p.finish == nil {
			plain = append(plain, p.link)
		} else {
			rest = append(rest, p)
		}
	}
	err := r.removeLinks(ctx, plain)
	errs := make([]error, len(rest))
	var each sync.WaitGroup
	turns := make(chan struct{}, reapAtOnce)
	for i, p := range rest {
		turns <- struct{}{}
		each.Go(func() {
			defer func() { <-turns }()
			errs[i] = finished(ctx, p)
		})
	}
	each.Wait()
	var links []string
	for i, p := range rest {
		if errs[i] == nil {
			links = append(links, p.link)
		} else {
			r.reaped([]string{p.link}, errs[i])
		}
	}
	return errors.Join(err, errors.Join(errs...), r.removeLinks(ctx, links))
}

// finished finishes an attachment, and returns a panic as an error.
func finished(ctx context.Context, p reaping) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("finish the removal of %s: panic: %v\n%s", p.link, v, debug.Stack())
		}
	}()
	if err := ctx.Err(); err != nil {
		return err
	}
	return p.finish(ctx)
}

// removeLinks removes links, of which there may be none.
func (r *reaper) removeLinks(ctx context.Context, links []string) error {
	if len(links) == 0 {
		return nil
	}
	err := r.remove(ctx, links)
	r.reaped(links, err)
	return err
}

// batch returns the oldest queued attachments.
func (r *reaper) batch() []reaping {
	list := r.list()
	return list[:min(len(list), reapBatch)]
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
