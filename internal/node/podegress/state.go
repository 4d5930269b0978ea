package podegress

import (
	"errors"
	"net/netip"
	"reflect"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/kernel/tunnel"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/retry"
	"github.com/berthnet/berth/internal/source"
)

// watchDelay is how long the watch has to show what a report did before it is made again.
const watchDelay = 2 * time.Second

// saying is the last report of an EgressClient.
type saying struct {
	state *v1alpha1.EgressClientNode // that the watch has not shown yet; nil: it has, or the report failed
	busy  bool                       // a report is under way
	// overtaken is the resourceVersion of which a report was refused as there was a newer one:
	// when the watch shows that, it is made again at once.
	overtaken string
	retry     retry.Backoff // of a state: until when the watch has time; else until when no other report goes out
}

// note takes the outcome of a report.
func (s *saying) note(about statement, err error, now time.Time) {
	s.busy, s.overtaken = false, ""
	if apierrors.IsConflict(err) {
		s.overtaken = about.version
	}
	if err == nil {
		state := about.state
		s.state, s.retry = &state, retry.Backoff{Until: now.Add(watchDelay)}
		return
	}
	s.state = nil
	s.retry.Fail(now, retry.First, retry.Most)
}

// What status.node of an EgressClient may have at most, in bytes.
const (
	longestMessage   = 512
	longestContainer = 128
)

// The reasons of status.node.
const (
	reasonNoFoU  = "NoFoU"
	reasonFailed = "SetUpFailed"
)

// failure is why a pod's egress could not be set up.
type failure struct{ reason, message string }

func failureOf(err error) *failure {
	f := &failure{reason: reasonFailed, message: err.Error()}
	if errors.Is(err, tunnel.ErrNoFoU) {
		f.reason = reasonNoFoU
	}
	return f
}

// setUp takes that an attachment is set up as its record says.
func (b *book) setUp(rec attachment.Record) {
	b.local(rec.Pod).held[rec.Key] = held{rec: rec}
	b.unsaid[nameOf(rec.Pod)] = true
	if _, differ := b.wanted(rec); differ {
		b.news = true // since its ADD was told what to set up
	}
}

// fail takes that it could not be. What was set up before may be in force.
func (b *book) fail(rec attachment.Record, err error) {
	l := b.local(rec.Pod)
	h, had := l.held[rec.Key]
	before := h.before
	if had && h.failed == nil {
		before = references(h.rec.Egress)
	}
	l.held[rec.Key] = held{rec: rec, failed: failureOf(err), before: before}
	b.unsaid[nameOf(rec.Pod)] = true
}

// end takes that an attachment is no more.
func (b *book) end(rec attachment.Record) {
	name := nameOf(rec.Pod)
	l := b.pods[name]
	if l == nil {
		return
	}
	delete(l.held, rec.Key)
	if l.as != nil && l.as.key == rec.Key {
		l.as = nil
	}
	if len(l.held) == 0 {
		delete(b.pods, name)
	}
	b.unsaid[name] = true
}

// holder is what is set up for a pod: of several sandboxes, in the latest.
func (b *book) holder(m member) (h held, ok bool) {
	l := b.pods[m.name]
	if l == nil {
		return held{}, false
	}
	for _, one := range l.held {
		if is := one.rec.Pod.UID == "" || one.rec.Pod.UID == m.pod; is && (!ok || one.rec.Since.After(h.rec.Since)) {
			h, ok = one, true
		}
	}
	return h, ok
}

// state is what status.node of an EgressClient should say; nil: as it is.
//
// A pod without an attachment here of which the object says that it has one ended with a
// DEL, or while no daemon ran: its addresses may be another's.
func (b *book) state(m member) *v1alpha1.EgressClientNode {
	var want v1alpha1.EgressClientNode
	node := m.node
	if said := b.said[m.uid].state; said != nil {
		node = said
	}
	h, ok := b.holder(m)
	switch e := h.rec.Egress; {
	case !ok && (node == nil || node.State == v1alpha1.EgressClientGone):
		return nil
	case !ok:
		want = v1alpha1.EgressClientNode{State: v1alpha1.EgressClientGone, ContainerID: node.ContainerID}
	case h.failed == nil && e != nil && e.State != attachment.EgressSetUp:
		return nil // it is being changed, and told of then
	default:
		want = v1alpha1.EgressClientNode{
			State: v1alpha1.EgressClientSetUp, ContainerID: source.ASCII(h.rec.Key.ContainerID, longestContainer),
			Addresses: texts(ownAddresses(h.rec)), Egresses: references(e),
		}
		if h.failed != nil {
			want.State, want.Egresses = v1alpha1.EgressClientFailed, h.before
			want.Reason, want.Message = h.failed.reason, source.ASCII(h.failed.message, longestMessage)
		}
		if node == nil && h.failed == nil && len(want.Egresses) == 0 {
			return nil // it is nobody's client, and never was
		}
	}
	if node != nil && sameNode(*node, want) {
		return nil
	}
	return &want
}

// sameNode compares; an empty list and none are the same.
func sameNode(a, b v1alpha1.EgressClientNode) bool {
	for _, n := range []*v1alpha1.EgressClientNode{&a, &b} {
		if len(n.Addresses) == 0 {
			n.Addresses = nil
		}
		if len(n.Egresses) == 0 {
			n.Egresses = nil
		}
	}
	return reflect.DeepEqual(a, b)
}

// ownAddresses are those from which the pod's tunnels begin: of its own interface, the first
// of each family.
func ownAddresses(rec attachment.Record) (out []netip.Addr) {
	for _, four := range []bool{true, false} {
		for _, a := range rec.OwnAddrs() {
			if a.Is4() == four && a.IsGlobalUnicast() {
				out = append(out, a)
				break
			}
		}
	}
	return out
}

func texts(addrs []netip.Addr) (out []string) {
	for _, a := range addrs {
		out = append(out, a.String())
	}
	return out
}

// references name the Egresses of an attachment.
func references(e *attachment.Egress) (out []v1alpha1.EgressReference) {
	if e == nil {
		return nil
	}
	for _, u := range e.Egresses {
		out = append(out, useOf(u).ref())
	}
	return out
}

// due are the reports that may go out, which are noted to be under way, as many as there may
// be at most. next is when there are others; zero: none wait for a moment.
func (b *book) due(now time.Time, most int) (list []statement, next time.Time) {
	for name := range b.unsaid {
		m, ok := b.members[name]
		if !ok {
			delete(b.unsaid, name)
			continue
		}
		said := b.said[m.uid]
		if said.state != nil && !said.retry.Until.After(now) {
			said.state = nil // the watch had its time
			b.said[m.uid] = said
		}
		state, later := b.state(m), said.retry.Until.After(now) && (said.overtaken == "" || said.overtaken == m.version)
		switch {
		case said.busy:
		case later && (state == nil) == (said.state != nil):
			next = retry.Earliest(now, next, said.retry.Until)
		case state == nil:
			delete(b.unsaid, name)
		case len(list) < most:
			said.busy = true
			b.said[m.uid] = said
			list = append(list, statement{m.name, m.uid, m.version, *state})
		}
	}
	return list, next
}

// statement is a report that is due.
type statement struct {
	name    types.NamespacedName
	uid     types.UID
	version string
	state   v1alpha1.EgressClientNode
}

// noted takes the outcome of a report, and tells whether it is the first of this EgressClient
// that failed.
func (b *book) noted(s statement, err error, now time.Time) (first bool) {
	m, ok := b.members[s.name]
	if !ok || m.uid != s.uid {
		return false
	}
	said := b.said[s.uid]
	first = err != nil && said.retry == retry.Backoff{}
	said.note(s, err, now)
	b.said[s.uid] = said
	b.unsaid[s.name] = true
	return first
}
