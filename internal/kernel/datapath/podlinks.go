package datapath

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
)

// podLinks is what a Node remembers of pod links by name, and what makes calls
// about one link take turns: AddPod, which may take up a link that is there
// already, DetachPod, ReapLinks, which removes what was detached, and Repair,
// which must neither bring back what was detached since its caller looked nor
// remove what was added since.
type podLinks struct {
	mu      sync.Mutex
	links   map[string]*podLink // guarded by mu, with what it points to
	indexes map[int]string      // guarded by mu: of live links
}

type podLink struct {
	state linkState
	wired wiring        // while live
	turn  chan struct{} // not nil while a call is at work; closed when it ends
}

// wiring is what a live link is and leads to.
type wiring struct {
	index int
	mac   string // of the pod's end, in octets; empty: not known
	addrs []netip.Addr
}

func (p Pod) wiring(index int, mac net.HardwareAddr) wiring {
	return wiring{index, string(mac), p.Addrs()}
}

type linkState int

const (
	unknown  linkState = iota
	live               // added, or wanted and found by Repair
	detached           // stays so until AddPod succeeds, whatever a late Repair is told
)

func newPodLinks() *podLinks {
	return &podLinks{links: map[string]*podLink{}, indexes: map[int]string{}}
}

// acquire waits for the turn of a link and tells its state. Each acquire is
// followed by one release.
func (c *podLinks) acquire(ctx context.Context, link string) (linkState, error) {
	for {
		c.mu.Lock()
		l := c.links[link]
		if l == nil {
			l = &podLink{}
			c.links[link] = l
		}
		busy := l.turn
		if busy == nil {
			l.turn = make(chan struct{})
			c.mu.Unlock()
			return l.state, nil
		}
		c.mu.Unlock()
		select {
		case <-busy:
		case <-ctx.Done():
			return unknown, fmt.Errorf("wait for another call about %s: %w", link, ctx.Err())
		}
	}
}

// acquireAll takes the turns of many, in one order for all callers so that no
// two of them wait for each other. It leaves out those that are live.
func (c *podLinks) acquireAll(ctx context.Context, links []string) ([]string, error) {
	var mine []string
	for _, link := range slices.Compact(slices.Sorted(slices.Values(links))) {
		state, err := c.acquire(ctx, link)
		if err != nil {
			for _, l := range mine {
				c.release(l)
			}
			return nil, err
		}
		if state == live {
			c.release(link)
			continue
		}
		mine = append(mine, link)
	}
	return mine, nil
}

// set changes the state of a link whose turn the caller has; the wiring is of one that
// is live.
func (c *podLinks) set(link string, state linkState, w wiring) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.links[link]
	delete(c.indexes, l.wired.index)
	l.state, l.wired = state, w
	if state == live {
		c.indexes[w.index] = link
	}
}

// outdated tells whether a pod is what its live link was made for before: the pod
// was removed since and added again, with other addresses.
func (c *podLinks) outdated(p Pod) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.links[p.HostIfName]
	return l != nil && l.state == live && !slices.Equal(l.wired.addrs, p.Addrs())
}

// release ends a turn.
func (c *podLinks) release(link string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.links[link]
	close(l.turn)
	l.turn = nil
	if l.state == unknown {
		delete(c.links, link) // who waits makes it anew
	}
}

// liveName names the live link with an index.
func (c *podLinks) liveName(index int) (string, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	name, ok := c.indexes[index]
	return name, ok
}

// wiringAt returns what the live link with an index leads to.
func (c *podLinks) wiringAt(index int) (w wiring, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if l := c.links[c.indexes[index]]; l != nil {
		return l.wired, true
	}
	return w, false
}

// leadsTo finds the live link that an address is behind.
func (c *podLinks) leadsTo(addr netip.Addr) (name string, w wiring, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, l := range c.links {
		if l.state == live && slices.Contains(l.wired.addrs, addr) {
			return name, l.wired, true
		}
	}
	return "", wiring{}, false
}

// detachedLinks lists what forget may be told later.
func (c *podLinks) detachedLinks() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var list []string
	for name, l := range c.links {
		if l.state == detached {
			list = append(list, name)
		}
	}
	return list
}

// forget drops the memory of detached links that nobody wants any more.
func (c *podLinks) forget(links []string, wanted map[string]bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range links {
		if l := c.links[name]; l != nil && l.state == detached && l.turn == nil && !wanted[name] {
			delete(c.links, name)
		}
	}
}
