// Package reach asks pods of this node for a reply, from the node's own network namespace: a node reaches its own pods
// whatever network policies and security groups say. A pod answers an ICMP echo, which proves the routes in both
// directions. One that drops ICMP still answers ARP or neighbour discovery, which proves the link.
package reach

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/berthnet/berth/internal/kernel/rtnl"
	"github.com/berthnet/berth/internal/migrate"
)

// All pods are asked at once, so that the number of pods hardly matters: together they have rounds times patience for
// each way to ask.
const (
	rounds   = 3
	patience = time.Second
)

// target is an address to reach behind a link of the node.
type target struct {
	pod   *migrate.Pod
	addr  netip.Addr
	link  int    // index
	nonce []byte // of the echo
	by    string // how it was reached; empty: not yet
}

// Pods asks the running pods of a node, and sets how each of their addresses was reached. netns is the path of the
// node's network namespace, empty for the calling thread's. Problems name addresses that do not answer.
func Pods(ctx context.Context, netns string, pods []migrate.Pod) (problems []string, err error) {
	var targets []*target
	do := func() error {
		targets, problems = find(pods)
		return ask(ctx, targets)
	}
	node, err := rtnl.OpenNodeNetns(netns)
	if err != nil {
		return nil, err
	}
	defer func() { _ = node.Close() }()
	if err := rtnl.InNetns(node, do); err != nil {
		return nil, fmt.Errorf("ask the node's pods for a reply: %w", err)
	}
	for _, t := range targets {
		if t.by != "" {
			t.pod.Reached = append(t.pod.Reached, migrate.Reached{Address: t.addr, By: t.by})
			continue
		}
		link := migrate.ByARP
		if t.addr.Is6() {
			link = migrate.ByNDP
		}
		problems = append(problems, fmt.Sprintf("%s/%s: %s does not answer on link %s, neither to an %s nor by %s", t.pod.Namespace, t.pod.Name, t.addr, t.pod.HostLink, migrate.ByICMP, link))
	}
	return problems, nil
}

// find returns the addresses to reach.
func find(pods []migrate.Pod) (targets []*target, problems []string) {
	for i := range pods {
		p := &pods[i]
		p.Reached = nil
		if p.Fate != migrate.Adopt && p.Fate != migrate.Adopted && p.Fate != migrate.Berth || len(p.Addresses) == 0 {
			continue
		}
		link, err := net.InterfaceByName(p.HostLink)
		if err != nil {
			problems = append(problems, fmt.Sprintf("%s/%s: link %q: %v", p.Namespace, p.Name, p.HostLink, err))
			continue
		}
		for _, a := range p.Addresses {
			nonce := make([]byte, 16)
			_, _ = rand.Read(nonce) // never fails
			targets = append(targets, &target{pod: p, addr: a, link: link.Index, nonce: nonce})
		}
	}
	return targets, problems
}

// socket asks targets in one way, and reads their replies.
type socket interface {
	send(t *target) error
	// receive waits until a time for a reply, and returns its target, or nil for a packet of others.
	receive(until time.Time, targets []*target) (*target, error)
	close() error
}

// ask asks targets by ICMP, and those that are silent by ARP or neighbour discovery.
func ask(ctx context.Context, targets []*target) error {
	for _, way := range []struct {
		by   string
		of   func(netip.Addr) bool
		open func() (socket, error)
	}{
		{migrate.ByICMP, netip.Addr.Is4, func() (socket, error) { return openEcho(echo4) }},
		{migrate.ByICMP, netip.Addr.Is6, func() (socket, error) { return openEcho(echo6) }},
		{migrate.ByARP, netip.Addr.Is4, func() (socket, error) { return openLink(arp) }},
		{migrate.ByNDP, netip.Addr.Is6, func() (socket, error) { return openLink(ndp) }},
	} {
		silent := slices.DeleteFunc(slices.Clone(targets), func(t *target) bool { return t.by != "" || !way.of(t.addr) })
		if len(silent) == 0 {
			continue
		}
		s, err := way.open()
		if err != nil {
			return err
		}
		err = askBy(ctx, s, way.by, silent)
		if err = errors.Join(err, s.close()); err != nil {
			return fmt.Errorf("%s: %w", way.by, err)
		}
	}
	return nil
}

func askBy(ctx context.Context, s socket, by string, silent []*target) error {
	for range rounds {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		for _, t := range silent {
			_ = s.send(t) // such as to a link that is down or gone: no reply comes
		}
		until := time.Now().Add(patience)
		for len(silent) > 0 && time.Now().Before(until) {
			t, err := s.receive(until, silent)
			if err != nil {
				return err
			}
			if t != nil {
				t.by = by
				silent = slices.DeleteFunc(silent, func(of *target) bool { return of == t })
			}
		}
	}
	return nil
}
