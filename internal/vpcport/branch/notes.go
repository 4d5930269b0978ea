package branch

import (
	"context"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/retry"
)

const (
	// noteTimeout is the timeout of one attempt to write the tag.
	noteTimeout = 2 * time.Minute
	// noteWait is the longest time that a tag waits while ports are being created. Until the tag is written, recall can find the ID.
	noteWait = 30 * time.Second
	// noteAgain is the longest backoff.
	noteAgain = 10 * time.Minute
)

// notes writes the IDs of associations to the tags of branches, in the background.
type notes struct {
	s      Settings
	memory *memory

	mu    sync.Mutex // guards the fields below
	all   map[string]*writing
	busy  int           // ports being created
	quiet chan struct{} // closed while busy is 0
}

// writing is one tag that is being written in the background.
type writing struct {
	cancel context.CancelFunc
	done   chan struct{} // closed when done
}

func newNotes(s Settings, m *memory) *notes {
	n := &notes{s: s, memory: m, all: map[string]*writing{}, quiet: make(chan struct{})}
	close(n.quiet)
	return n
}

// during delays tags while do creates a port.
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

// calm returns a channel that is closed when no port is being created.
func (n *notes) calm() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.quiet
}

// note tags a branch with the ID of its association, so that another operator can end the association at any later time. No pod waits
// for the tag: calls for which a pod waits and calls that create ports go first.
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
			n.s.Logger.Warn("tagging a branch with its association failed, will try again", "eni", a.BranchID, "trunk", a.TrunkID, "vlan", a.VLAN, "association", a.ID, "err", err)
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

// stop cancels the tag of a branch's last association and waits until its call has ended.
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
