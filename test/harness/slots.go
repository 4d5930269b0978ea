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

// labsAtOnce is how many labs the tests of all packages have at a time. On two cores more of them only
// wait for each other: with ten in each of three packages the same tests took four times as long, and
// three times the processor time.
const labsAtOnce = 5

var errNoSlot = errors.New("all slots for labs are taken")

// slots are the slots that tests of this process hold.
var slots = struct {
	sync.Mutex
	holders map[string]bool // by the test's name
}{holders: map[string]bool{}}

// Slot waits until fewer than labsAtOnce labs of all packages run in the sandbox, and counts as one
// until the test has ended. A test that holds a slot, or whose parent does, gets no second one, so
// slots cannot deadlock. Raise calls it; tests that start labs in another way call it themselves.
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
	err := poll.Until(context.Background(), func() (err error) { // the test's own time limit ends it
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

// holds reports whether a test or one of its parents holds a slot. The caller has locked slots.
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

// slotDir is the folder of the lock files, which all processes of a sandbox share.
func slotDir() string {
	if BinDir != "" {
		return BinDir
	}
	return os.TempDir()
}

// freeSlot locks one of the labsAtOnce lock files, or returns errNoSlot. The kernel
// releases the lock when the file is closed, also by the end of the process.
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
