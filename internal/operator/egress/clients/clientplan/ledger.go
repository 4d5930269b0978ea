package clientplan

import (
	"cmp"
	"maps"
	"slices"

	"github.com/berthnet/berth/api/v1alpha1"
)

// Ledger is which clients of an Egress are in which of its slices. A client stays in its
// slice, so that a change of one is a change of one slice. It must not be used by several
// goroutines at once.
type Ledger struct {
	clients  map[string]v1alpha1.ServedClient // by UID
	place    map[string]string                // slice, by UID
	homeless map[string]bool                  // UIDs of those that have no place
	slices   map[string]*slice                // by name
}

// slice is one, with the UIDs that are to be in it.
type slice struct {
	members map[string]bool
	version int // counts changes of what is to be in it
	written int // the version that is at the API server
}

// NewLedger is one without clients.
func NewLedger() *Ledger {
	return &Ledger{clients: map[string]v1alpha1.ServedClient{}, place: map[string]string{}, homeless: map[string]bool{}, slices: map[string]*slice{}}
}

// Len is how many clients there are.
func (l *Ledger) Len() int { return len(l.clients) }

// Slices is how many slices they take.
func (l *Ledger) Slices() int { return len(l.slices) }

// Has tells whether a client is in it.
func (l *Ledger) Has(uid string) bool {
	_, has := l.clients[uid]
	return has
}

// Found takes in what a slice has at the API server. What it has of no client, of
// one in another slice, or otherwise than it is to be, makes the slice one to be written; a client
// that is in no slice yet is in this one from now on.
func (l *Ledger) Found(name string, has []v1alpha1.ServedClient) {
	s := l.slices[name]
	if s == nil {
		s = &slice{members: map[string]bool{}}
		l.slices[name] = s
	}
	same, there := true, 0
	for _, c := range has {
		want, known := l.clients[c.UID]
		if known && l.place[c.UID] == "" {
			l.put(c.UID, name)
		}
		if s.members[c.UID] {
			there++
		}
		same = same && known && l.place[c.UID] == name && equal(c, want)
	}
	s.version++
	if same && there == len(s.members) {
		s.written = s.version
	}
}

// Lost takes in that a slice is not at the API server.
func (l *Ledger) Lost(name string) {
	if s := l.slices[name]; s != nil {
		s.version++
		l.drop(name)
	}
}

// Set has a client be served with what it says, and tells whether it was not so before.
func (l *Ledger) Set(c v1alpha1.ServedClient) bool {
	if before, has := l.clients[c.UID]; has && equal(before, c) {
		return false
	}
	l.clients[c.UID] = c
	if at := l.place[c.UID]; at != "" {
		l.slices[at].version++
	} else {
		l.homeless[c.UID] = true
	}
	return true
}

// Remove has a client be served no more, and tells whether it was.
func (l *Ledger) Remove(uid string) bool {
	if !l.Has(uid) {
		return false
	}
	delete(l.clients, uid)
	delete(l.homeless, uid)
	if at := l.place[uid]; at != "" {
		delete(l.place, uid)
		s := l.slices[at]
		delete(s.members, uid)
		s.version++
	}
	return true
}

// Place gives each client that is in no slice a place in one: in the fullest that has room,
// or in a new one, whose name fresh makes of those that are taken.
func (l *Ledger) Place(fresh func(taken func(string) bool) string) {
	if len(l.homeless) == 0 {
		return
	}
	homeless := slices.Sorted(maps.Keys(l.homeless))
	names := slices.Sorted(maps.Keys(l.slices))
	for _, uid := range homeless {
		best := ""
		for _, name := range names {
			if n := len(l.slices[name].members); n < v1alpha1.SliceClients && (best == "" || n > len(l.slices[best].members)) {
				best = name
			}
		}
		if best == "" {
			best = fresh(func(name string) bool { return l.slices[name] != nil })
			l.slices[best] = &slice{members: map[string]bool{}}
			names = append(names, best)
		}
		l.put(uid, best)
		l.slices[best].version++
	}
}

// mergeTo is how many clients a slice has at most after Merge put those of another into it. It leaves
// room, so that clients that come and go do not have slices merged and made again.
const mergeTo = v1alpha1.SliceClients * 3 / 4

// Merge puts the clients of slices that lost many into others, the smallest first, into the
// fullest that takes them all. Each slice that is emptied so costs its deletion, and the one that
// takes its clients a write, of which that one has no more for all that it takes.
func (l *Ledger) Merge() {
	names := slices.SortedFunc(maps.Keys(l.slices), func(a, b string) int {
		return cmp.Or(cmp.Compare(len(l.slices[a].members), len(l.slices[b].members)), cmp.Compare(a, b))
	})
	for i, from := range names {
		for _, to := range slices.Backward(names[i+1:]) {
			if l.merge(from, to) {
				break
			}
		}
	}
}

// merge moves all clients of a slice to another, and tells whether it did.
func (l *Ledger) merge(from, to string) bool {
	source, target := l.slices[from], l.slices[to]
	if len(source.members) == 0 || len(source.members)+len(target.members) > mergeTo {
		return false
	}
	for uid := range source.members {
		l.put(uid, to)
	}
	clear(source.members)
	source.version++
	target.version++
	return true
}

func (l *Ledger) put(uid, name string) {
	l.place[uid] = name
	delete(l.homeless, uid)
	l.slices[name].members[uid] = true
}

// Write is a slice that is to be written.
type Write struct {
	Name    string
	Clients []v1alpha1.ServedClient // ordered by UID; none: the slice is to go
	version int
}

// Due are the slices that are not written as they are to be, ordered by name, those that are to go
// behind all others. They are to be written in this order, and none is to go before all others are
// written: a client that moved to another slice is in one at any time.
func (l *Ledger) Due() (due []Write) {
	for _, name := range slices.Sorted(maps.Keys(l.slices)) {
		s := l.slices[name]
		if s.version == s.written && len(s.members) > 0 {
			continue
		}
		w := Write{Name: name, version: s.version}
		for _, uid := range slices.Sorted(maps.Keys(s.members)) {
			w.Clients = append(w.Clients, l.clients[uid])
		}
		due = append(due, w)
	}
	slices.SortStableFunc(due, func(a, b Write) int { return cmp.Compare(min(1, len(b.Clients)), min(1, len(a.Clients))) })
	return due
}

// Written takes in that a slice was written, or is gone where it has no clients.
func (l *Ledger) Written(w Write) {
	s := l.slices[w.Name]
	if s == nil {
		return
	}
	s.written = max(s.written, w.version)
	if len(w.Clients) == 0 {
		s.written = 0
		l.drop(w.Name)
	}
}

// drop forgets a slice that nobody is to be in.
func (l *Ledger) drop(name string) {
	if len(l.slices[name].members) == 0 {
		delete(l.slices, name)
	}
}

func equal(a, b v1alpha1.ServedClient) bool {
	return a.UID == b.UID && a.Pod == b.Pod && slices.Equal(a.Addresses, b.Addresses)
}
