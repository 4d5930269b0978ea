package feed

import "github.com/berthnet/berth/internal/policy"

// keptChanges is the minimum number of changes of a set that are kept for nodes that have not taken them yet.
const keptChanges = 256

// log contains the latest changes of a set, which nodes take when they are ready.
type log struct {
	next    uint64 // number of the next entry
	entries []entry
	whole   *policy.SetChange // the whole set at entry wholeAt; shared by nodes, and immutable
	wholeAt uint64
}

type entry struct {
	policy.Element
	came bool
}

// add adds a change of a set with a number of elements. Nodes that lag by more changes than that receive the whole set.
func (l *log) add(change *policy.SetChange, size int) {
	if change.Whole {
		l.next += uint64(len(l.entries)) + 1 // earlier entries are not available
		l.entries = nil
		return
	}
	for e, came := range change.Elements {
		l.entries = append(l.entries, entry{e, came})
		l.next++
	}
	if keep := max(keptChanges, size/2); len(l.entries) > 2*keep {
		l.entries = append([]entry(nil), l.entries[len(l.entries)-keep:]...)
	}
}

// since returns the changes from an entry on, or nil if they are no longer kept.
func (l *log) since(n uint64) *policy.SetChange {
	behind := l.next - n
	if behind > uint64(len(l.entries)) {
		return nil
	}
	change := &policy.SetChange{}
	for _, e := range l.entries[uint64(len(l.entries))-behind:] {
		change.Note(e.Element, e.came)
	}
	return change
}
