package branch

import (
	"context"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/retry"
)

const (
	// noteTimeout bounds a try to write an association's ID down.
	noteTimeout = 2 * time.Minute
	// noteWait is how long that waits at most for ports that are being made. Meanwhile EC2 tells the
	// ID to whoever repeats the request (recall).
	noteWait = 30 * time.Second
	// noteAgain is between two tries at most.
	noteAgain = 10 * time.Minute
)

// notes are the IDs of associations that are being written down as tags of their branches.
type notes struct {
	mu    sync.Mutex // guards all below
	all   map[string]*writing
	busy  int           // ports that are being made
	quiet chan struct{} // closed while there are none
}

// writing is one of them.
type writing struct {
	cancel context.CancelFunc
	done   chan struct{} // closed once no call is under way
}

func newNotes() *notes {
	n := &notes{all: map[string]*writing{}, quiet: make(chan struct{})}
	close(n.quiet)
	return n
}

// during has notes wait while do makes a port.
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

// calm is closed once no port is being made.
func (n *notes) calm() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.quiet
}

// note has the ID of an association be written down, by which another operator can take the
// branch off the trunk again, as long as it likes. No pod waits for it: calls that one waits for
// go first, and those that make ports.
func (p *Provider) note(ctx context.Context, a cloud.Association) {
	ctx, cancel := context.WithCancel(cloud.WithPriority(context.WithoutCancel(ctx), cloud.Ahead))
	w := &writing{cancel, make(chan struct{})}
	p.notes.stop(a.BranchID)
	p.notes.mu.Lock()
	p.notes.all[a.BranchID] = w
	p.notes.mu.Unlock()
	go func() {
		defer close(w.done)
		defer p.notes.over(a.BranchID, w)
		defer cancel()
		calm := p.notes.calm()
		for try, ended := 0, false; ; try++ {
			select {
			case <-ctx.Done():
				return
			case <-p.s.Ended:
				ended = true // now or never
			case <-calm:
			case <-p.s.Clock.After(retry.Delay(noteWait, noteAgain, try)):
			}
			calm = nil
			err := p.write(ctx, a)
			if err == nil || ended || ctx.Err() != nil || cloud.ClassOf(err) == cloud.Gone {
				return
			}
			p.s.Logger.Warn("a branch could not be tagged with its association, will try again", "eni", a.BranchID, "trunk", a.TrunkID, "vlan", a.VLAN, "association", a.ID, "error", err)
		}
	}()
}

// write writes the ID of an association down.
func (p *Provider) write(ctx context.Context, a cloud.Association) error {
	ctx, cancel := context.WithTimeout(ctx, noteTimeout)
	defer cancel()
	tags := map[string]string{TagAssociation: a.ID}
	if err := p.s.Cloud.Tag(ctx, a.BranchID, tags); err != nil {
		return err
	}
	p.memory.tagged(a.BranchID, tags)
	return nil
}

// stop has nothing be written any more about a branch's last association, and returns once
// nothing is.
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
