package networkpolicy

import (
	"errors"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/kernel/policytable"
	"github.com/berthnet/berth/internal/policy"
)

// Denials are refused packets. *policytable.Log implements it.
type Denials interface {
	Receive() ([]policytable.Denied, error) // os.ErrClosed after Close
	Close() error
}

// denialLog logs denied connections.
type denialLog struct {
	of    *Enforcer
	limit *denialLimit
	// attachment has the log in its pod's network namespace; empty: it is the node's. A program in the pod with CAP_NET_ADMIN can write
	// anything to it, so what is not about the pod is not logged, and it is read at a bounded rate.
	attachment string
}

// inside returns the log of a pod's own table.
func (l denialLog) inside(attachment string) denialLog {
	return denialLog{l.of, newDenialLimit(l.of.Clock, insideRate, insideMemory), attachment}
}

// run logs denied connections until from is closed.
func (l denialLog) run(from Denials) {
	for {
		list, err := from.Receive()
		if errors.Is(err, os.ErrClosed) {
			return
		}
		if err != nil {
			l.of.Log.Warn("denied connections are not logged any more", "err", err)
			return
		}
		for _, d := range list {
			if l.attachment != "" && l.judged(d) == nil {
				continue
			}
			if dropped, logs := l.limit.allow(d); logs {
				l.write(d, dropped)
			}
		}
		if l.attachment != "" {
			<-l.of.Clock.After(insidePause)
		}
	}
}

// judged returns the pod whose policies denied a packet, or nil.
func (l denialLog) judged(d policytable.Denied) *Pod {
	own := d.Destination
	if d.Direction == policy.Egress {
		own = d.Source
	}
	l.of.mu.Lock()
	defer l.of.mu.Unlock()
	if l.attachment == "" {
		return podAt(l.of.pods, own)
	}
	if p, there := l.of.pods[l.attachment]; there && slices.Contains(p.allAddrs(), own) {
		return &p
	}
	return nil
}

// write writes the line about a denied connection. dropped is how many connections got none since the last line.
func (l denialLog) write(d policytable.Denied, dropped int) {
	own := l.judged(d)
	l.of.mu.Lock()
	ends := map[policy.Direction]*Pod{policy.Ingress: podAt(l.of.pods, d.Destination), policy.Egress: podAt(l.of.pods, d.Source)}
	ends[d.Direction] = own
	var policies []string
	if own != nil {
		policies = because(l.of.state, &l.of.holding, *own, d)
	}
	l.of.mu.Unlock()
	args := []any{
		"direction", d.Direction, "source", d.Source, "destination", d.Destination, "protocol", protocolName(d.Protocol),
	}
	if d.Port != 0 {
		args = append(args, "port", d.Port, "sourcePort", d.SourcePort)
	}
	if p := ends[policy.Egress]; p != nil {
		args = append(args, "sourcePod", p.Namespace+"/"+p.Name)
	}
	if p := ends[policy.Ingress]; p != nil {
		args = append(args, "destinationPod", p.Namespace+"/"+p.Name)
	}
	if len(policies) > 0 {
		args = append(args, "policies", policies)
	}
	if d.Tunnelled {
		args = append(args, "egressTunnel", true)
	}
	if dropped > 0 {
		args = append(args, "notLogged", dropped)
	}
	l.of.Log.Info("network policies denied a connection", args...)
}

// podAt returns the pod that has an address, or nil. Pods in networks of their own may have the same one.
func podAt(pods map[string]Pod, a netip.Addr) (found *Pod) {
	for _, p := range pods {
		if slices.Contains(p.allAddrs(), a) && (found == nil || p.Inside == nil) {
			found = &p
		}
	}
	return found
}

// because names the policies that deny a connection of a pod: the one whose rule does, with the rule, or those none of which
// accepts it. It names none if the policies have changed since.
func because(state *policy.State, h *holding, p Pod, d policytable.Denied) (names []string) {
	list, known := state.Of(p.PodName, p.UID)
	switch {
	case !known:
		list = []*policy.Policy{closed(p.PodName, unknownPod)}
	case p.byNode() && h.of(list) != nil:
		list = []*policy.Policy{closed(p.PodName, refusedByKernel)}
	}
	switch decision := policy.Decide(list, d.Direction, d.Flow, state); {
	case decision.Allowed:
	case decision.Policy != nil:
		rule := decision.Policy.Rules[d.Direction][decision.Rule].Name
		if rule == "" {
			rule = strconv.Itoa(decision.Rule)
		}
		names = append(names, decision.Policy.Ref.String()+" rule "+rule)
	case decision.Isolated:
		for _, p := range list {
			if p.Isolates[d.Direction] {
				names = append(names, p.Ref.String())
			}
		}
	}
	return names
}

func protocolName(p uint8) string {
	switch p {
	case unix.IPPROTO_TCP:
		return "TCP"
	case unix.IPPROTO_UDP:
		return "UDP"
	case unix.IPPROTO_SCTP:
		return "SCTP"
	case unix.IPPROTO_ICMP:
		return "ICMP"
	case unix.IPPROTO_ICMPV6:
		return "ICMPv6"
	}
	return strconv.Itoa(int(p))
}

// denialLimit decides which denied connections are logged: each once a minute, as its packets are sent again, and at most
// a number of them a second.
type denialLimit struct {
	clock   clock.Clock
	memory  int // connections
	mu      sync.Mutex
	rate    *rate.Limiter
	logged  map[policytable.Denied]bool
	since   time.Time // when logged was empty
	dropped int
}

const (
	denialRate   = 10   // a second, of the node; a burst may have as many
	denialMemory = 4096 // connections
	denialRepeat = time.Minute
	insideRate   = 1 // of each pod with a table of its own
	insideMemory = 256
	insidePause  = 100 * time.Millisecond // between packets, or several that the kernel sends at once
)

func newDenialLimit(c clock.Clock, each rate.Limit, memory int) *denialLimit {
	return &denialLimit{clock: c, memory: memory, rate: rate.NewLimiter(each, denialRate), logged: map[policytable.Denied]bool{}, since: c.Now()}
}

// allow tells whether a connection is logged, and how many were not because of the rate since the last one that was.
func (l *denialLimit) allow(d policytable.Denied) (dropped int, logs bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.clock.Now()
	if now.Sub(l.since) >= denialRepeat || len(l.logged) >= l.memory {
		clear(l.logged)
		l.since = now
	}
	if l.logged[d] {
		return 0, false
	}
	l.logged[d] = true
	if !l.rate.AllowN(now, 1) {
		l.dropped++
		return 0, false
	}
	dropped, l.dropped = l.dropped, 0
	return dropped, true
}
