package podevents

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"time"

	"golang.org/x/time/rate"

	"github.com/berthnet/berth/internal/retry"
)

// Rate limits of a node. The sum over nodes matters: when a subnet is full, every pod on every node of
// the zone causes an Event.
const (
	// burst is the number of requests without a delay: one for each pod that a kubelet runs
	// by default (maxPods, 110).
	burst = 110
	// each is the interval of further requests.
	each = 2 * time.Second
	// most bounds the number of series. That many notes of maximum length take half a MiB.
	most = 512
)

// Times of a series.
const (
	// repeatFirst and repeatLast bound the interval at which the count of a series is updated, which
	// is half its age.
	repeatFirst = time.Minute
	repeatLast  = 10 * time.Minute
	// stale is the age at which unwritten reports are dropped.
	stale = 2 * time.Minute
	// forget is the time without reports after which a series ends: API servers keep Events for an hour
	// by default (--event-ttl).
	forget = time.Hour
	// takenFirst and takenMost bound the backoff of a namespace in which a name was taken.
	takenFirst = time.Second
	takenMost  = time.Minute
	// crowded is the number of consecutive taken names that is logged.
	crowded = 5
)

// taken is the state of a namespace in which another Event had the last name.
type taken struct {
	pause retry.Backoff
	times int // consecutive
}

// line identifies a series. Notes of the same line may differ in details; the first one is written.
type line struct {
	subject
	kind  Kind
	cause string
}

// series is one Event and the reports about it.
type series struct {
	line
	note        string    // cleared once written
	first, last time.Time // of the first report
	count       int       // of the last report

	name    string    // name of the Event; empty until it is written
	told    int       // count as last written
	written time.Time // time of the last write
	writing bool      // a request is in flight
}

// request creates an Event or updates its count.
type request struct {
	line
	again bool // update the count
	Event
}

// queue decides which Event is written when. It does no I/O and reads no clock. It is not safe for
// concurrent use.
type queue struct {
	instance string // the node
	limit    *rate.Limiter
	series   map[line]*series
	of       map[subject]int   // number of series
	taken    map[string]*taken // by namespace
	named    int               // number in the last Event's name
}

func newQueue(node string) *queue {
	return &queue{
		instance: clip(node, maxInstance), limit: rate.NewLimiter(rate.Every(each), burst),
		series: map[line]*series{}, of: map[subject]int{}, taken: map[string]*taken{}, named: rand.IntN(slots), // Events from before a restart may exist
	}
}

// add accepts a report. kept means that it requires a write. dropped counts reports that were dropped for
// lack of room.
func (q *queue) add(n News, now time.Time) (kept bool, dropped int) {
	who := n.subject()
	if n.Kind == Attached || n.Kind == Restored {
		if q.of[who] == 0 {
			return false, 0 // no problem was reported, so there is nothing to resolve
		}
		since, told := q.resolve(who)
		if !told {
			return false, 0
		}
		return q.begin(line{who, n.Kind, ""}, resolvedNote(n, now.Sub(since)), now)
	}
	l := line{who, n.Kind, n.Cause}
	if s := q.series[l]; s != nil && now.Sub(s.last) < forget {
		s.last = now
		s.count++
		return true, 0
	}
	q.remove(l)
	return q.begin(l, troubleNote(n), now)
}

// resolve ends all series of a pod. since is the time of their first report; told means that an Event was written.
func (q *queue) resolve(who subject) (since time.Time, told bool) {
	for l, s := range q.series {
		if l.subject != who {
			continue
		}
		if forms[l.kind].warning && (since.IsZero() || s.first.Before(since)) {
			since = s.first
		}
		told = told || s.name != "" || s.writing
		q.remove(l)
	}
	return since, told
}

// begin starts a series if there is room.
func (q *queue) begin(l line, note string, now time.Time) (kept bool, dropped int) {
	if len(q.series) >= most && !q.makeRoom() {
		return false, 1
	}
	q.series[l] = &series{line: l, note: note, first: now, last: now, count: 1}
	q.of[l.subject]++
	return true, 0
}

// makeRoom removes the written series with the oldest last report, and reports whether there was one.
func (q *queue) makeRoom() bool {
	var oldest *series
	for _, s := range q.series {
		if s.name != "" && !s.writing && (oldest == nil || s.last.Before(oldest.last)) {
			oldest = s
		}
	}
	if oldest == nil {
		return false
	}
	q.remove(oldest.line)
	return true
}

func (q *queue) remove(l line) {
	if _, ok := q.series[l]; !ok {
		return
	}
	delete(q.series, l)
	if q.of[l.subject]--; q.of[l.subject] == 0 {
		delete(q.of, l.subject)
	}
}

// due returns the time at which a series must be written; zero: not before the next report.
func (q *queue) due(s *series) time.Time {
	switch {
	case s.writing || s.name != "" && s.count == s.told:
		return time.Time{}
	case s.name == "":
		if t := q.taken[s.pod.Namespace]; t != nil && t.pause.Until.After(s.first) {
			return t.pause.Until
		}
		return s.first
	}
	return s.written.Add(min(max(s.written.Sub(s.first)/2, repeatFirst), repeatLast))
}

// next returns the request to make now, or the time to wait; 0: until the next report. dropped counts
// reports that became stale.
func (q *queue) next(now time.Time) (r *request, wait time.Duration, dropped int) {
	dropped = q.expire(now)
	var first *series
	var later time.Time
	for _, s := range q.series {
		switch due := q.due(s); {
		case due.IsZero():
		case due.After(now):
			if later.IsZero() || due.Before(later) {
				later = due
			}
		case first == nil || q.before(s, first):
			first = s
		}
	}
	switch {
	case first == nil && later.IsZero():
		return nil, 0, dropped
	case first == nil:
		return nil, later.Sub(now), dropped
	case !q.limit.AllowN(now, 1):
		return nil, each, dropped
	}
	first.writing = true
	return q.request(first), 0, dropped
}

// before orders writes: new Events first, then those that have been due longest.
func (q *queue) before(x, y *series) bool {
	if (x.name == "") != (y.name == "") {
		return x.name == ""
	}
	return cmp.Or(q.due(x).Compare(q.due(y)), cmp.Compare(x.line.key(), y.line.key())) < 0
}

func (l line) key() string {
	return fmt.Sprint(l.pod.Namespace, "/", l.pod.Name, "/", l.pod.UID, "/", l.ifName, "/", l.kind, "/", l.cause)
}

func (q *queue) request(s *series) *request {
	f := forms[s.kind]
	r := &request{line: s.line, again: s.name != "", Event: Event{
		Pod: s.pod, Name: s.name, Instance: q.instance, Warning: warns(s.kind, s.cause),
		Reason: f.reason, Action: f.action, Note: s.note, First: s.first, Last: s.last, Count: s.count,
	}}
	if !r.again {
		q.named++
		r.Name = eventName(q.instance, q.named)
	}
	return r
}

// done handles the outcome of a request. kept means that it may be retried later, until it is stale.
func (q *queue) done(r *request, err error, now time.Time) (kept bool) {
	s := q.series[r.line]
	if s == nil || !s.writing {
		return false // the series ended in the meantime
	}
	s.writing = false
	switch {
	case err == nil:
		s.name, s.note, s.told, s.written = r.Name, "", r.Count, now
		if !r.again {
			delete(q.taken, s.pod.Namespace)
		}
		if !forms[s.kind].warning {
			q.remove(s.line) // no further write will follow
		}
		return false
	case isFinal(err):
		q.remove(s.line)
		return false
	case errors.Is(err, ErrTaken):
		t := q.taken[s.pod.Namespace]
		if t == nil {
			t = &taken{}
			q.taken[s.pod.Namespace] = t
		}
		t.pause.Fail(now, takenFirst, takenMost) // retry with the next name
		t.times++
		return false
	}
	s.written = now // an update can wait
	return true
}

// isCrowded reports once when crowded consecutive names were taken.
func (q *queue) isCrowded(namespace string) bool {
	t := q.taken[namespace]
	return t != nil && t.times == crowded
}

// expire removes ended and stale series. dropped counts the stale ones.
func (q *queue) expire(now time.Time) (dropped int) {
	maps.DeleteFunc(q.taken, func(_ string, t *taken) bool { return now.Sub(t.pause.Until) > stale })
	for l, s := range q.series {
		switch {
		case s.writing:
		case s.name == "" && now.Sub(s.last) > stale:
			q.remove(l)
			dropped++
		case now.Sub(s.last) > forget:
			q.remove(l)
		}
	}
	return dropped
}
