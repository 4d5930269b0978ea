package clientplan

import (
	"cmp"
	"maps"
	"slices"

	"github.com/berthnet/berth/api/v1alpha1"
)

// Slices distributes the clients of an Egress over EgressClientSlices. A client stays in its slice, so
// a change of one client changes only one slice. It is not safe for concurrent use.
type Slices struct {
	clients  map[string]v1alpha1.ServedClient // by UID
	place    map[string]string                // slice name by UID
	unplaced map[string]bool                  // UIDs of clients in no slice
	slices   map[string]*slice                // by name
}

// slice is the desired content of one slice.
type slice struct {
	members map[string]bool
	version int // counts changes of the desired content
	written int // the version last written to the API server
}

// NewSlices returns Slices without clients.
func NewSlices() *Slices {
	return &Slices{clients: map[string]v1alpha1.ServedClient{}, place: map[string]string{}, unplaced: map[string]bool{}, slices: map[string]*slice{}}
}

// Len returns the number of clients.
func (l *Slices) Len() int { return len(l.clients) }

// SliceCount returns the number of slices.
func (l *Slices) SliceCount() int { return len(l.slices) }

// Has reports whether a client is served.
func (l *Slices) Has(uid string) bool {
	_, has := l.clients[uid]
	return has
}

// Observe records a slice as read from the API server. The slice is due if it differs from the desired
// content. A client that is in no slice yet stays in this one.
func (l *Slices) Observe(name string, has []v1alpha1.ServedClient) {
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

// Gone records that a slice does not exist at the API server.
func (l *Slices) Gone(name string) {
	if s := l.slices[name]; s != nil {
		s.version++
		l.drop(name)
	}
}

// Set adds or changes a client, and reports whether anything changed.
func (l *Slices) Set(c v1alpha1.ServedClient) bool {
	if before, has := l.clients[c.UID]; has && equal(before, c) {
		return false
	}
	l.clients[c.UID] = c
	if at := l.place[c.UID]; at != "" {
		l.slices[at].version++
	} else {
		l.unplaced[c.UID] = true
	}
	return true
}

// Remove removes a client, and reports whether it was served.
func (l *Slices) Remove(uid string) bool {
	if !l.Has(uid) {
		return false
	}
	delete(l.clients, uid)
	delete(l.unplaced, uid)
	if at := l.place[uid]; at != "" {
		delete(l.place, uid)
		s := l.slices[at]
		delete(s.members, uid)
		s.version++
	}
	return true
}

// Place puts each client that is in no slice into the fullest slice with room, or into a new one
// named by fresh.
func (l *Slices) Place(fresh func(taken func(string) bool) string) {
	if len(l.unplaced) == 0 {
		return
	}
	best := "" // remains the fullest until it has no more room
	for _, uid := range slices.Sorted(maps.Keys(l.unplaced)) {
		if best == "" || len(l.slices[best].members) >= v1alpha1.SliceClients {
			best = l.fullest()
		}
		if best == "" {
			best = fresh(func(name string) bool { return l.slices[name] != nil })
			l.slices[best] = &slice{members: map[string]bool{}}
		}
		l.put(uid, best)
		l.slices[best].version++
	}
}

// fullest returns the fullest slice with room, the first by name of several, or "".
func (l *Slices) fullest() (best string) {
	most := -1
	for name, s := range l.slices {
		n := len(s.members)
		if n < v1alpha1.SliceClients && (n > most || n == most && name < best) {
			best, most = name, n
		}
	}
	return best
}

// mergeTo is the most clients that a slice may have after Merge moved others into it. It leaves room, so
// that slices are not merged and created again as clients come and go.
const mergeTo = v1alpha1.SliceClients * 3 / 4

// Merge empties slices with few clients, smallest first, into the fullest slice with room for all of
// their clients. That costs one deletion per emptied slice, and one write per slice that takes clients.
func (l *Slices) Merge() {
	names := slices.SortedFunc(maps.Keys(l.slices), func(a, b string) int {
		return cmp.Or(cmp.Compare(len(l.slices[a].members), len(l.slices[b].members)), cmp.Compare(a, b))
	})
	sizes := make([]int, len(names))
	for i, name := range names {
		sizes[i] = len(l.slices[name].members)
	}
	for i, from := range names {
		if i+1 < len(names) && sizes[i]+sizes[i+1] > mergeTo {
			return // and all following ones are larger
		}
		for _, to := range slices.Backward(names[i+1:]) {
			if l.merge(from, to) {
				break
			}
		}
	}
}

// merge moves all clients of a slice to another one, and reports whether it did.
func (l *Slices) merge(from, to string) bool {
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

func (l *Slices) put(uid, name string) {
	l.place[uid] = name
	delete(l.unplaced, uid)
	l.slices[name].members[uid] = true
}

// Write is a slice to be written.
type Write struct {
	Name    string
	Clients []v1alpha1.ServedClient // ordered by UID; empty if the slice is to be deleted
	version int
}

// IsDue reports whether slices differ from the desired content.
func (l *Slices) IsDue() bool {
	for _, s := range l.slices {
		if s.isDue() {
			return true
		}
	}
	return false
}

func (s *slice) isDue() bool { return s.version != s.written || len(s.members) == 0 }

// Due returns the slices that differ from the desired content, ordered by name, with those to delete
// last. They must be written in this order, and none deleted before all others are written, so that a
// client that moves to another slice is in at least one at any time.
func (l *Slices) Due() (due []Write) {
	for _, name := range slices.Sorted(maps.Keys(l.slices)) {
		s := l.slices[name]
		if !s.isDue() {
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

// Written records that a slice was written, or deleted if it has no clients.
func (l *Slices) Written(w Write) {
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

// drop forgets a slice without members.
func (l *Slices) drop(name string) {
	if len(l.slices[name].members) == 0 {
		delete(l.slices, name)
	}
}

func equal(a, b v1alpha1.ServedClient) bool {
	return a.UID == b.UID && a.Pod == b.Pod && slices.Equal(a.Addresses, b.Addresses)
}
