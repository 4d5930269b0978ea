package nodeenis

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// A node may delete its object and create it again as often as it likes, and each new one costs
// calls to EC2. The work for the first one that replaces another begins at once, as after a
// person deleted it. Further ones wait, twice as long each time. The count starts over once an
// object has stayed for a while.
const (
	firstPause = 2 * time.Second
	lastPause  = time.Minute
	// steady is how long after the last recreation the count starts over.
	steady = 5 * time.Minute
)

// recreation is how often the object of one name was recreated lately.
type recreation struct {
	uid   types.UID // of the last one
	again int       // how often it replaced another
	at    time.Time // when it was seen first
	from  time.Time // when the work for it begins
}

// next counts an object that exists at now.
func (r recreation) next(uid types.UID, now time.Time) recreation {
	if r.uid == uid {
		return r
	}
	n := recreation{uid: uid, at: now, from: now}
	if r.uid == "" || now.Sub(r.at) >= steady {
		return n
	}
	n.again = r.again + 1
	if n.again > 1 {
		n.from = now.Add(min(lastPause, firstPause<<min(n.again-2, 10)))
	}
	return n
}

// recreations are those of all names, also of objects that went lately.
type recreations struct {
	mu  sync.Mutex // guards all
	all map[string]recreation
}

func newRecreations() *recreations { return &recreations{all: map[string]recreation{}} }

// observe takes that an object of a name exists, and returns when the work for it may begin.
func (r *recreations) observe(name string, uid types.UID, now time.Time) (from time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all[name] = r.all[name].next(uid, now)
	return r.all[name].from
}

// forget drops a name whose object is gone, once its next object would start over. Else it
// returns how long that takes.
func (r *recreations) forget(name string, now time.Time) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	last, ok := r.all[name]
	if wait := last.at.Add(steady).Sub(now); ok && wait > 0 {
		return wait
	}
	delete(r.all, name)
	return 0
}

// heldForRecreation tells whether the work for a node's object has to wait, as its name was
// recreated too often lately.
func (c *Controller) heldForRecreation(n *node) bool {
	now := c.now()
	from := c.recreations.observe(n.name, n.uid, now)
	held := from.After(now)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.state.eligibility.heldUntil = time.Time{}
	if held {
		n.state.eligibility.heldUntil = from
	}
	return held
}
