package branch

import (
	"context"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/retry"
)

const (
	// noteTimeout bounds one attempt to write the tag.
	noteTimeout = 2 * time.Minute
	// noteWait is how long a tag waits at most while ports are being made. Until it is written, the ID
	// can be found by recall.
	noteWait = 30 * time.Second
	// noteAgain is the longest backoff.
	noteAgain = 10 * time.Minute
)

// notes tag branches with the IDs of their associations, in the background.
type notes struct {
	s      Settings
	memory *memory

	mu    sync.Mutex // guards all below
	all   map[string]*writing
	busy  int           // ports being made
	quiet chan struct{} // closed while busy is 0
}

// writing is one tag in the background.
type writing struct {
	cancel context.CancelFunc
	done   chan struct{} // closed at its end
}

func newNotes(s Settings, m *memory) *notes {
	n := &notes{s: s, memory: m, all: map[string]*writing{}, quiet: make(chan struct{})}
	close(n.quiet)
	return n
}

// during delays tags while do makes a port.
func (n *notes) during(do func()) {
	n.mu.Lock()
	if n.busy++; n.busy == 1 {
		n.quiet = make(chan struct{})
	}
	n.mu.Unlock()
	defer func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.busy--; n.busy == 0 {
			close(n.quiet)
		}
	}()
	do()
}

// calm is closed when no port is being made.
func (n *notes) calm() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.quiet
}

// note tags a branch with the ID of its association, by which another operator can take it off the
// trunk, however much later. No pod waits for it: calls that a pod waits for go first, and those that
// make ports.
func (n *notes) note(ctx context.Context, a cloud.Association) {
	ctx, cancel := context.WithCancel(cloud.WithPriority(context.WithoutCancel(ctx), cloud.Ahead))
	w := &writing{cancel, make(chan struct{})}
	n.stop(a.BranchID)
	n.mu.Lock()
	n.all[a.BranchID] = w
	n.mu.Unlock()
	go func() {
		defer close(w.done)
		defer n.over(a.BranchID, w)
		defer cancel()
		calm := n.calm()
		for try, ended := 0, false; ; try++ {
			select {
			case <-ctx.Done():
				return
			case <-n.s.Ended:
				ended = true // the last attempt
			case <-calm:
			case <-n.s.Clock.After(retry.Delay(noteWait, noteAgain, try)):
			}
			calm = nil
			err := n.write(ctx, a)
			if err == nil || ended || ctx.Err() != nil || cloud.ClassOf(err) == cloud.Gone {
				return
			}
			n.s.Logger.Warn("a branch could not be tagged with its association, will try again", "eni", a.BranchID, "trunk", a.TrunkID, "vlan", a.VLAN, "association", a.ID, "err", err)
		}
	}()
}

// write tags a branch once.
func (n *notes) write(ctx context.Context, a cloud.Association) error {
	ctx, cancel := context.WithTimeout(ctx, noteTimeout)
	defer cancel()
	tags := map[string]string{TagAssociation: a.ID}
	if err := n.s.Cloud.Tag(ctx, a.BranchID, tags); err != nil {
		return err
	}
	n.memory.tagged(a.BranchID, tags)
	return nil
}

// stop cancels the tag of a branch's last association and waits for the end of its call.
func (n *notes) stop(branch string) {
	n.mu.Lock()
	w := n.all[branch]
	n.mu.Unlock()
	if w != nil {
		w.cancel()
		<-w.done
	}
}

func (n *notes) over(branch string, w *writing) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.all[branch] == w {
		delete(n.all, branch)
	}
}
