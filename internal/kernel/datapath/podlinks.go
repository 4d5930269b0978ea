package datapath

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
)

// podLinks tracks the states of pod links by name, and serializes calls about one link: AddPod may reuse an existing
// link, ReapLinks removes detached links, and Repair must not restore links that were detached, nor remove links that
// were added, after its caller listed the desired pods.
type podLinks struct {
	mu      sync.Mutex
	links   map[string]*podLink   // guarded by mu, as are the elements
	indexes map[int]string        // names of live links; guarded by mu
	addrs   map[netip.Addr]string // names of live links, by the addresses behind them; guarded by mu
}

type podLink struct {
	state linkState
	wired wiring        // valid while live
	turn  chan struct{} // not nil during a call; closed when it ends
}

// wiring identifies a live link and the addresses behind it.
type wiring struct {
	index int
	mac   string // octets of the pod's end; empty: unknown
	addrs []netip.Addr
}

func (p Pod) wiring(index int, mac net.HardwareAddr) wiring {
	return wiring{index, string(mac), p.Addrs()}
}

type linkState int

const (
	unknown  linkState = iota
	live               // added, or desired and found by Repair
	detached           // until AddPod succeeds, even if a concurrent Repair has the pod as desired
)

func newPodLinks() *podLinks {
	return &podLinks{links: map[string]*podLink{}, indexes: map[int]string{}, addrs: map[netip.Addr]string{}}
}

// acquire waits until no other call holds the link, and returns its state. The caller must release it.
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

// acquireAll acquires links in sorted order, which avoids deadlocks. It leaves out live links.
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

// set changes the state of a link that the caller acquired. w is the wiring of a live link.
func (c *podLinks) set(link string, state linkState, w wiring) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.links[link]
	delete(c.indexes, l.wired.index)
	for _, a := range l.wired.addrs {
		if c.addrs[a] == link { // otherwise a later pod has it
			delete(c.addrs, a)
		}
	}
	l.state, l.wired = state, w
	if state == live {
		c.indexes[w.index] = link
		for _, a := range w.addrs {
			c.addrs[a] = link
		}
	}
}

// outdated reports whether the live link has other addresses than p: the pod was removed and added again after p
// was read.
func (c *podLinks) outdated(p Pod) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.links[p.HostIfName]
	return l != nil && l.state == live && !slices.Equal(l.wired.addrs, p.Addrs())
}

// release ends the caller's hold on a link.
func (c *podLinks) release(link string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.links[link]
	close(l.turn)
	l.turn = nil
	if l.state == unknown {
		delete(c.links, link) // a waiting call adds it again
	}
}

// liveName returns the name of the live link with an index.
func (c *podLinks) liveName(index int) (string, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	name, ok := c.indexes[index]
	return name, ok
}

// wiringAt returns the wiring of the live link with an index.
func (c *podLinks) wiringAt(index int) (w wiring, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if l := c.links[c.indexes[index]]; l != nil {
		return l.wired, true
	}
	return w, false
}

// leadsTo returns the live link that an address is behind.
func (c *podLinks) leadsTo(addr netip.Addr) (name string, w wiring, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	name, ok = c.addrs[addr]
	if ok {
		w = c.links[name].wired
	}
	return name, w, ok
}

// detachedLinks lists the detached links, for forget.
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

// forget drops the states of detached links that are not desired.
func (c *podLinks) forget(links []string, desired map[string]bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range links {
		if l := c.links[name]; l != nil && l.state == detached && l.turn == nil && !desired[name] {
			delete(c.links, name)
		}
	}
}
