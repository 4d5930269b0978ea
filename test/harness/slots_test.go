package harness

import (
	"errors"
	"testing"
)

func TestSlots(t *testing.T) {
	dir := t.TempDir()
	for range labsAtOnce - 1 {
		f, err := freeSlot(dir)
		OK(t, err)
		t.Cleanup(func() { _ = f.Close() })
	}
	last, err := freeSlot(dir)
	OK(t, err)
	if f, err := freeSlot(dir); !errors.Is(err, errNoSlot) {
		t.Fatalf("one lab too many: got %v, %v", f, err)
	}
	OK(t, last.Close())
	again, err := freeSlot(dir)
	OK(t, err)
	OK(t, again.Close())
}

// TestSlotsOfSubtests has a subtest share its parent's slot: it would wait for ever if it
// took one of its own while others waited for theirs.
func TestSlotsOfSubtests(t *testing.T) {
	former := BinDir
	BinDir = t.TempDir()
	t.Cleanup(func() { BinDir = former })
	taken := func() (n int) {
		for {
			f, err := freeSlot(BinDir)
			if err != nil {
				return labsAtOnce - n
			}
			defer f.Close()
			n++
		}
	}
	t.Run("parent", func(t *testing.T) {
		Slot(t)
		t.Run("child", func(t *testing.T) {
			Slot(t)
			if got := taken(); got != 1 {
				t.Errorf("parent and child hold %d slots, want 1", got)
			}
		})
	})
	if got := taken(); got != 0 {
		t.Errorf("%d slots are held after the tests, want none", got)
	}
}
