package nodenetwork

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

// life is how often the object of one name was made anew lately.
type life struct {
	uid   types.UID // of the last one
	again int       // how often it followed another
	at    time.Time // when it came
	from  time.Time // when it is worked for
}

// next is the life of an object that is there at now.
func (l life) next(uid types.UID, now time.Time) life {
	if l.uid == uid {
		return l
	}
	n := life{uid: uid, at: now, from: now}
	if l.uid == "" || now.Sub(l.at) >= steady {
		return n
	}
	n.again = l.again + 1
	if n.again > 1 {
		n.from = now.Add(min(lastPause, firstPause<<min(n.again-2, 10)))
	}
	return n
}

// paced tells whether a node's object waits, as too many were made under its
// name lately, and has it looked at when that is over.
func (c *Controller) paced(n *node) bool {
	now := c.now()
	c.mu.Lock()
	l := c.lives[n.name].next(n.uid, now)
	c.lives[n.name] = l
	c.mu.Unlock()
	wait := l.from.Sub(now)
	n.mu.Lock()
	n.eligibility.pacedUntil = time.Time{}
	if wait > 0 {
		n.eligibility.pacedUntil = l.from
	}
	n.mu.Unlock()
	if wait > 0 {
		c.later(n.name, wait)
	}
	return wait > 0
}

// bury forgets the life of a name whose object is gone, once it would start
// over, and has it looked at then.
func (c *Controller) bury(name string) {
	now := c.now()
	c.mu.Lock()
	l, ok := c.lives[name]
	wait := l.at.Add(steady).Sub(now)
	if ok && wait <= 0 {
		delete(c.lives, name)
	}
	c.mu.Unlock()
	if ok && wait > 0 {
		c.later(name, wait)
	}
}
