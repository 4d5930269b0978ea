package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/lab/run/poll"
)

// labsAtOnce is the maximum number of concurrent labs in the tests of all packages. On two cores more of them only
// wait for each other: with ten in each of three packages the same tests took four times as long, and three times the
// processor time.
const labsAtOnce = 5

var errNoSlot = errors.New("all slots for labs are taken")

// slots are the slots held by tests of this process.
var slots = struct {
	sync.Mutex
	holders map[string]bool // test names
}{holders: map[string]bool{}}

// Slot waits until fewer than labsAtOnce labs of all packages run in the sandbox, and then counts as one until the
// test ends. A test that holds a slot, or whose parent does, gets no second one, so slots cannot deadlock. Raise
// calls Slot; tests that start labs differently must call it.
func Slot(t *testing.T) {
	t.Helper()
	name := t.Name()
	slots.Lock()
	held := holds(name)
	slots.Unlock()
	if held {
		return
	}
	var lock *os.File
	err := poll.Until(context.Background(), func() (err error) { // bounded by the test's time limit
		lock, err = freeSlot(slotDir())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slots.Lock()
	slots.holders[name] = true
	slots.Unlock()
	t.Cleanup(func() {
		slots.Lock()
		delete(slots.holders, name)
		slots.Unlock()
		if err := lock.Close(); err != nil {
			t.Error(err)
		}
	})
}

// holds reports whether a test or one of its parents holds a slot. slots must be locked.
func holds(name string) bool {
	for {
		if slots.holders[name] {
			return true
		}
		i := strings.LastIndexByte(name, '/')
		if i < 0 {
			return false
		}
		name = name[:i]
	}
}

// slotDir is the directory of the lock files, shared by all processes of a sandbox.
func slotDir() string {
	if BinDir != "" {
		return BinDir
	}
	return os.TempDir()
}

// freeSlot locks one of the labsAtOnce lock files, or returns errNoSlot. The kernel releases the lock when the file
// is closed, or the process ends.
func freeSlot(dir string) (*os.File, error) {
	for i := range labsAtOnce {
		f, err := os.OpenFile(filepath.Join(dir, fmt.Sprintf(".slot-%d", i)), os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return nil, fmt.Errorf("take a slot for a lab: %w", err)
		}
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return f, nil
		}
		_ = f.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("take a slot for a lab: %w", err)
		}
	}
	return nil, errNoSlot
}
