package plan

import (
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

// Due are the slices that are not written as they are to be, ordered by name.
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
