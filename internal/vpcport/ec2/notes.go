package ec2

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/cloud"
)

// noteTimeout bounds how long it is tried to write an association's ID down.
const noteTimeout = 2 * time.Minute

// notes are the IDs of associations that are being written down as tags of their branches.
type notes struct {
	mu  sync.Mutex // guards all
	all map[string]*writing
}

// writing is one of them.
type writing struct {
	cancel context.CancelFunc
	done   chan struct{} // closed once no call is under way
}

func newNotes() *notes { return &notes{all: map[string]*writing{}} }

// note has the ID of an association be written down, by which another operator can take the
// branch off the trunk again, as long as it likes. No pod waits for it: calls that one waits for
// go first.
func (p *Provider) note(ctx context.Context, a cloud.Association) {
	ctx, cancel := context.WithTimeout(cloud.WithPriority(context.WithoutCancel(ctx), cloud.Ahead), noteTimeout)
	w := &writing{cancel, make(chan struct{})}
	p.notes.stop(a.BranchID)
	p.notes.mu.Lock()
	p.notes.all[a.BranchID] = w
	p.notes.mu.Unlock()
	go func() {
		defer close(w.done)
		defer cancel()
		tags := map[string]string{TagAssociation: a.ID}
		err := p.s.Cloud.Tag(ctx, a.BranchID, tags)
		switch {
		case err == nil:
			p.memory.tagged(a.BranchID, tags)
		case !errors.Is(ctx.Err(), context.Canceled):
			p.s.Logger.Warn("a branch could not be tagged with its association", "eni", a.BranchID, "trunk", a.TrunkID, "vlan", a.VLAN, "association", a.ID, "error", err)
		}
		p.notes.over(a.BranchID, w)
	}()
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
