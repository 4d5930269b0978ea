package kubeapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

// owner stores objects: their names, and what happened, in order.
type owner struct {
	names  []types.NamespacedName
	events []string
	locked bool
}

func (o *owner) note(format string, args ...any) {
	o.events = append(o.events, fmt.Sprintf(format, args...))
	if !o.locked {
		o.events = append(o.events, "without the lock")
	}
}

func (o *owner) took(t *testing.T, what string, want ...string) {
	t.Helper()
	if !slices.Equal(o.events, want) {
		t.Errorf("%s: %q, want %q", what, o.events, want)
	}
	o.events = nil
}

func mirrored(o *owner) (*Mirror, Handler[*Metadata]) {
	m := &Mirror{Sync: NewSync(), Log: slog.New(slog.DiscardHandler), Update: func(change func()) {
		o.locked = true
		defer func() { o.locked = false }()
		change()
	}}
	return m, handler(m, "things", Store[*Metadata]{
		Mine:   func(n *Metadata) bool { return n.Name != "foreign" },
		Names:  func() []types.NamespacedName { return o.names },
		Put:    func(n *Metadata) { o.note("put %s", n.Name) },
		Drop:   func(name types.NamespacedName, uid types.UID) { o.note("drop %s %q", name.Name, uid) },
		After:  func() { o.note("after") },
		Listed: func(first bool) { o.note("listed %t", first) },
		Outage: func(begins bool) { o.note("outage %t", begins) },
	})
}

func thing(name string) *Metadata {
	m := &Metadata{}
	m.Name, m.UID = name, types.UID("uid-"+name)
	return m
}

func TestMirror(t *testing.T) {
	o := &owner{names: []types.NamespacedName{{Name: "old"}, {Name: "a"}}}
	m, h := mirrored(o)
	if m.Sync.Listed("things") {
		t.Error("listed before the first list")
	}
	h.All([]*Metadata{thing("a"), thing("foreign")})
	o.took(t, "the first list", `drop old ""`, "put a", "listed true", "after")
	h.All(nil)
	if o.events = slices.DeleteFunc(o.events, func(e string) bool { return e[:4] == "drop" }); !m.Sync.Listed("things") || m.Sync.Listed("things", "others") {
		t.Error("kinds that were listed are not distinguished")
	}
	o.took(t, "a later list", "listed false", "after")
	h.Put(thing("b"))
	h.Put(thing("foreign"))
	h.Gone(thing("b"))
	o.took(t, "changes", "put b", "after", `drop b "uid-b"`, "after")
}

// The owner hears when an outage of its objects begins and ends; the first error by name stands for all.
func TestOutage(t *testing.T) {
	o := &owner{}
	m, h := mirrored(o)
	m.Explain = func(_ string, err error) error { return fmt.Errorf("explained: %w", err) }
	away := errors.New("away")
	h.Outcome(nil)
	h.Outcome(context.Canceled)
	o.took(t, "without an outage")
	h.Outcome(away)
	h.Outcome(away)
	m.NoteOutcome("others", away)
	o.took(t, "an outage begins", "outage true")
	if r, err := m.Sync.Failing(); r != "others" || !errors.Is(err, away) || err.Error() != "explained: away" || m.Sync.Err("nothing") != nil {
		t.Errorf("failing is %s: %v", r, err)
	}
	h.Outcome(nil)
	o.took(t, "it ends", "outage false")
	if m.Sync.Err("things") != nil || m.Sync.Err("others", "things") == nil {
		t.Error("the other resource is still failing, and it alone")
	}
}
