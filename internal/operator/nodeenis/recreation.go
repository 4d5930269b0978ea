package nodeenis

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// A node may delete its object and make it again as often as it likes, and each
// new one costs calls to EC2. The first that follows another is worked for at
// once, as after a person deleted it; those after it wait, twice as long each
// time. An object that stays for a while starts over.
const (
	firstPause = 2 * time.Second
	lastPause  = time.Minute
	// steady is how long after an object was last made anew the next is the
	// first again.
	steady = 5 * time.Minute
)

// recreation is how often the object of one name was made anew lately.
type recreation struct {
	uid   types.UID // of the last one
	again int       // how often it followed another
	at    time.Time // when it came
	from  time.Time // when it is worked for
}

// next counts an object that is there at now.
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

// heldForRecreation tells whether a node's object waits, as too many were made under its
// name lately, and notes for how long.
func (c *Controller) heldForRecreation(n *node) bool {
	now := c.now()
	c.mu.Lock()
	r := c.recreations[n.name].next(n.uid, now)
	c.recreations[n.name] = r
	c.mu.Unlock()
	wait := r.from.Sub(now)
	n.mu.Lock()
	n.eligibility.heldUntil = time.Time{}
	if wait > 0 {
		n.eligibility.heldUntil = r.from
	}
	n.mu.Unlock()
	return wait > 0
}

// forgetRecreation forgets a name whose object is gone, once it would start
// over, and tells how long that takes; zero: it is forgotten.
func (c *Controller) forgetRecreation(name string) time.Duration {
	now := c.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	r, ok := c.recreations[name]
	if wait := r.at.Add(steady).Sub(now); ok && wait > 0 {
		return wait
	}
	delete(c.recreations, name)
	return 0
}
