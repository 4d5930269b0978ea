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
	// attachment is the one whose pod's network namespace has the log; empty for the node's log. A program in the pod with
	// CAP_NET_ADMIN can write anything to it, so entries about other pods are ignored, and it is read at a bounded rate.
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
			l.of.Log.Warn("denied connections are no longer logged", "err", err)
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

// write logs a denied connection. dropped is the number of connections that were not logged since the last line.
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

// podAt returns the pod with an address, or nil. Pods in separate networks may have the same address; pods of the node's
// own network take precedence.
func podAt(pods map[string]Pod, a netip.Addr) (found *Pod) {
	for _, p := range pods {
		if slices.Contains(p.allAddrs(), a) && (found == nil || p.Inside == nil) {
			found = &p
		}
	}
	return found
}

// because names the policies that deny a connection of a pod: the policy whose rule denies it, with the rule, or all
// policies that isolate the pod and do not accept it. It names none if the policies have changed since.
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

// denialLimit decides which denied connections are logged: each at most once a minute, because clients retransmit, and
// a limited number per second.
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
	denialRate   = 10   // per second and node; also the burst
	denialMemory = 4096 // connections
	denialRepeat = time.Minute
	insideRate   = 1 // per second, for each pod with its own table
	insideMemory = 256
	insidePause  = 100 * time.Millisecond // between reads of the kernel's messages
)

func newDenialLimit(c clock.Clock, each rate.Limit, memory int) *denialLimit {
	return &denialLimit{clock: c, memory: memory, rate: rate.NewLimiter(each, denialRate), logged: map[policytable.Denied]bool{}, since: c.Now()}
}

// allow reports whether to log a connection, and how many connections the rate limit has suppressed since the last one.
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
