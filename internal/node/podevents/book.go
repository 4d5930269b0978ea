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

// What a node may write at most. The sum counts: when a subnet is full, every node
// of the zone has something to tell, and each pod of it.
const (
	// burst is how many requests may follow each other at once: each pod that a
	// kubelet runs at most by default (maxPods, 110) can tell its first news.
	burst = 110
	// each is how often there may be another after that.
	each = 2 * time.Second
	// most is how many series are kept. The longest notes of as many are half a MiB.
	most = 512
)

// The times of a series.
const (
	// repeatFirst and repeatLast bound how often a series is counted up: after half
	// the time that it has lasted.
	repeatFirst = time.Minute
	repeatLast  = 10 * time.Minute
	// stale is when news that could not be written is news no more.
	stale = 2 * time.Minute
	// forget is when a series is over: API servers keep Events for an hour by
	// default (--event-ttl), and what comes after that is new.
	forget = time.Hour
	// takenFirst and takenMost bound the pause of a namespace after a name that an Event there has already.
	takenFirst = time.Second
	takenMost  = time.Minute
	// crowded is how many such names in a row are more than bad luck.
	crowded = 5
)

// taken is how it goes in a namespace in which the last name that was tried is that of another Event.
type taken struct {
	pause retry.Backoff
	times int // in a row
}

// line is what the news of a series has in common. A note may tell new details of
// the same cause each time; the first is written.
type line struct {
	subject
	kind  Kind
	cause string
}

// series is one Event, and how often its news came.
type series struct {
	line
	note        string    // until it is written
	first, last time.Time // news came
	count       int       // how often

	name    string    // of the Event; empty until it is written
	told    int       // count as written
	written time.Time // count
	writing bool      // a request is on its way
}

// request is what is to be asked of the API server: to make an Event or, of one
// that is there, to count it up.
type request struct {
	line
	again bool // count up
	Event
}

// book decides what is written and when. It does no I/O and asks no clock. It is
// not safe for concurrent use.
type book struct {
	instance string // the node
	limit    *rate.Limiter
	series   map[line]*series
	of       map[subject]int   // how many series
	taken    map[string]*taken // by namespace
	named    int               // the number of the last Event's name
}

func newBook(node string) *book {
	return &book{
		instance: clip(node, maxInstance), limit: rate.NewLimiter(rate.Every(each), burst),
		series: map[line]*series{}, of: map[subject]int{}, taken: map[string]*taken{}, named: rand.IntN(slots), // those of before a restart are there still
	}
}

// hear takes news. kept is whether there is something to write of it, by and by, and
// dropped how much will not be told for want of room.
func (b *book) hear(n News, now time.Time) (kept bool, dropped int) {
	who := n.subject()
	if n.Kind == Attached || n.Kind == Restored {
		if b.of[who] == 0 {
			return false, 0 // nobody was told of trouble
		}
		since, told := b.resolve(who)
		if !told {
			return false, 0
		}
		return b.add(line{who, n.Kind, ""}, resolvedNote(n, now.Sub(since)), now)
	}
	l := line{who, n.Kind, n.Cause}
	if s := b.series[l]; s != nil && now.Sub(s.last) < forget {
		s.last = now
		s.count++
		return true, 0
	}
	b.remove(l)
	return b.add(l, troubleNote(n), now)
}

// resolve ends all series of a pod. since is when the first news of them came, told
// whether any was written.
func (b *book) resolve(who subject) (since time.Time, told bool) {
	for l, s := range b.series {
		if l.subject != who {
			continue
		}
		if forms[l.kind].warning && (since.IsZero() || s.first.Before(since)) {
			since = s.first
		}
		told = told || s.name != "" || s.writing
		b.remove(l)
	}
	return since, told
}

// add begins a series, if there is room.
func (b *book) add(l line, note string, now time.Time) (kept bool, dropped int) {
	if len(b.series) >= most && !b.makeRoom() {
		return false, 1
	}
	b.series[l] = &series{line: l, note: note, first: now, last: now, count: 1}
	b.of[l.subject]++
	return true, 0
}

// makeRoom removes the series of which there was no news for longest, of those that
// are written, and tells whether there was one.
func (b *book) makeRoom() bool {
	var oldest *series
	for _, s := range b.series {
		if s.name != "" && !s.writing && (oldest == nil || s.last.Before(oldest.last)) {
			oldest = s
		}
	}
	if oldest == nil {
		return false
	}
	b.remove(oldest.line)
	return true
}

func (b *book) remove(l line) {
	if _, ok := b.series[l]; !ok {
		return
	}
	delete(b.series, l)
	if b.of[l.subject]--; b.of[l.subject] == 0 {
		delete(b.of, l.subject)
	}
}

// due is when a series is to be written; zero: not before there is news.
func (b *book) due(s *series) time.Time {
	switch {
	case s.writing || s.name != "" && s.count == s.told:
		return time.Time{}
	case s.name == "":
		if t := b.taken[s.pod.Namespace]; t != nil && t.pause.Until.After(s.first) {
			return t.pause.Until
		}
		return s.first
	}
	return s.written.Add(min(max(s.written.Sub(s.first)/2, repeatFirst), repeatLast))
}

// next returns what is to be written now, or how long there is nothing to write; 0:
// until there is news. dropped is what became too old to be told.
func (b *book) next(now time.Time) (r *request, wait time.Duration, dropped int) {
	dropped = b.expire(now)
	var first *series
	var later time.Time
	for _, s := range b.series {
		switch due := b.due(s); {
		case due.IsZero():
		case due.After(now):
			if later.IsZero() || due.Before(later) {
				later = due
			}
		case first == nil || b.before(s, first):
			first = s
		}
	}
	switch {
	case first == nil && later.IsZero():
		return nil, 0, dropped
	case first == nil:
		return nil, later.Sub(now), dropped
	case !b.limit.AllowN(now, 1):
		return nil, each, dropped
	}
	first.writing = true
	return b.request(first), 0, dropped
}

// before orders what is to be written: what nobody knows yet comes first, then what
// is due for longest.
func (b *book) before(x, y *series) bool {
	if (x.name == "") != (y.name == "") {
		return x.name == ""
	}
	return cmp.Or(b.due(x).Compare(b.due(y)), cmp.Compare(x.line.key(), y.line.key())) < 0
}

func (l line) key() string {
	return fmt.Sprint(l.pod.Namespace, "/", l.pod.Name, "/", l.pod.UID, "/", l.ifName, "/", l.kind, "/", l.cause)
}

func (b *book) request(s *series) *request {
	f := forms[s.kind]
	r := &request{line: s.line, again: s.name != "", Event: Event{
		Pod: s.pod, Name: s.name, Instance: b.instance, Warning: warns(s.kind, s.cause),
		Reason: f.reason, Action: f.action, Note: s.note, First: s.first, Last: s.last, Count: s.count,
	}}
	if !r.again {
		b.named++
		r.Name = eventName(b.instance, b.named)
	}
	return r
}

// done says what became of a request. What cannot be written now stays until it is
// stale. kept is whether it may be written later.
func (b *book) done(r *request, err error, now time.Time) (kept bool) {
	s := b.series[r.line]
	if s == nil || !s.writing {
		return false // over in the meantime
	}
	s.writing = false
	switch {
	case err == nil:
		s.name, s.note, s.told, s.written = r.Name, "", r.Count, now
		if !r.again {
			delete(b.taken, s.pod.Namespace)
		}
		if !forms[s.kind].warning {
			b.remove(s.line) // the end of the story
		}
		return false
	case isFinal(err):
		b.remove(s.line)
		return false
	case errors.Is(err, ErrTaken):
		t := b.taken[s.pod.Namespace]
		if t == nil {
			t = &taken{}
			b.taken[s.pod.Namespace] = t
		}
		t.pause.Fail(now, takenFirst, takenMost) // then the next name, until it is stale
		t.times++
		return false
	}
	s.written = now // counting up has time
	return true
}

// isCrowded tells, after a name was taken, whether so many were in a row: once.
func (b *book) isCrowded(namespace string) bool {
	t := b.taken[namespace]
	return t != nil && t.times == crowded
}

// expire removes what is over or stale. dropped is how many of the latter.
func (b *book) expire(now time.Time) (dropped int) {
	maps.DeleteFunc(b.taken, func(_ string, t *taken) bool { return now.Sub(t.pause.Until) > stale })
	for l, s := range b.series {
		switch {
		case s.writing:
		case s.name == "" && now.Sub(s.last) > stale:
			b.remove(l)
			dropped++
		case now.Sub(s.last) > forget:
			b.remove(l)
		}
	}
	return dropped
}
