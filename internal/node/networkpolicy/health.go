package networkpolicy

import (
	"fmt"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/source"
)

// ConditionReady is the type of the condition about network policies.
const ConditionReady = "NetworkPoliciesReady"

// awayFor is how long the operator may be away until the condition says so: a new leader takes less.
const awayFor = time.Minute

// health is whether policies are in force, and whether the operator tells about them.
type health struct {
	clock clock.Clock

	mu       sync.Mutex // guards all below
	link     link
	last     attempt
	repaired time.Time // the last repair that was logged
}

// link is the connection to the operator.
type link struct {
	connected bool
	since     time.Time // it is connected or not, the latter from the start
	err       error     // why it is not connected; nil: connected, or not tried yet
	ever      bool      // it was connected since the start
	told      bool      // the log says that it is not connected
}

// attempt is how the last change of the kernel went.
type attempt struct {
	err   error
	since time.Time // of the first of the failures in a row
}

func (h *health) connection() link {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.link
}

// connected notes that the operator speaks, and tells whether people have to hear of it.
func (h *health) connected() (news bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.link.connected {
		return false
	}
	news = h.link.told || !h.link.ever
	h.link = link{connected: true, since: h.clock.Now(), ever: true}
	return news
}

// disconnected notes that a call has ended, and tells whether people have to hear of it: not of the end of one that worked, as
// operators end calls from time to time.
func (h *health) disconnected(err error) (news bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.link.connected {
		h.link.connected, h.link.since, h.link.err = false, h.clock.Now(), err
		return false
	}
	news = !h.link.told || h.link.err.Error() != err.Error()
	h.link.err, h.link.told = err, true
	return news
}

// applied notes how a change of the kernel went, and tells whether that is another result than the last.
func (h *health) applied(err error) (news bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	before := h.last.err
	switch {
	case err == nil:
		h.last = attempt{}
	case before == nil:
		h.last = attempt{err, h.clock.Now()}
	default:
		h.last.err = err
	}
	return (before == nil) != (err == nil) || err != nil && before.Error() != err.Error()
}

// condition is the condition ConditionReady. known: it is known which policies the node's pods have.
func (h *health) condition(known bool) source.Condition {
	h.mu.Lock()
	defer h.mu.Unlock()
	away := h.clock.Now().Sub(h.link.since) >= awayFor && !h.link.connected
	said := ""
	if h.link.err != nil {
		said = ": " + h.link.err.Error()
	}
	unwell := func(reason, format string, args ...any) source.Condition {
		return source.Condition{Type: ConditionReady, Reason: reason, Message: fmt.Sprintf(format, args...)}
	}
	switch {
	case h.last.err != nil:
		return unwell("NotInForce", "the kernel has rejected changes of network policies since %s: %s", h.last.since.UTC().Format(time.RFC3339), h.last.err)
	case !known && !h.link.ever && h.link.err == nil:
		return unwell("Starting", "berthd has not reached berth-operator yet")
	case !known:
		return unwell("Unknown", "berth-operator has not told this node yet which network policies its pods have%s", said)
	case away:
		return unwell("OperatorAway", "network policies are in force as they were at %s; later changes are not known here%s", h.link.since.UTC().Format(time.RFC3339), said)
	}
	return source.Condition{Type: ConditionReady, Healthy: true, Reason: "InForce"}
}
