package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/berthnet/berth/internal/clock"
)

// Lock is the exclusive right to serve a node: only one daemon of a state directory has it. The kernel releases
// it when the process exits.
type Lock struct{ file *os.File }

const (
	lockFile = "berthd.lock" // has the process ID, followed by lockEnding at shutdown

	// lockEnding marks a holder that is shutting down.
	lockEnding = "ending"

	// A holder that shuts down releases the lock within its drain time plus some kernel time. Any
	// other holder keeps it, unless it is being stopped or killed at this moment: supervisors start the
	// successor immediately.
	endingWait = 30 * time.Second
	otherWait  = time.Second
	lockRetry  = 100 * time.Millisecond
)

// AcquireLock takes the lock of a state directory, which it creates if missing. It waits until ctx ends for a
// daemon that is shutting down, but not for one that serves. The error names the process that
// holds the lock.
func AcquireLock(ctx context.Context, stateDir string, clk clock.Clock, log *slog.Logger) (*Lock, error) {
	if err := os.MkdirAll(stateDir, 0o700); err != nil {
		return nil, fmt.Errorf("creating the state directory: %w", err)
	}
	path := filepath.Join(stateDir, lockFile)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the lock file: %w", err)
	}
	begun, told := clk.Now(), false
	for {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			break
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			return nil, errors.Join(fmt.Errorf("locking %s: %w", path, err), f.Close())
		}
		process, ending := holder(f)
		wait := otherWait
		if ending {
			wait = endingWait
			if !told {
				log.Info("waiting for another berthd to end", "process", process, "state", stateDir)
				told = true
			}
		}
		taken := fmt.Errorf("another berthd (process %s) serves %s", process, stateDir)
		if clk.Now().Sub(begun) >= wait {
			return nil, errors.Join(taken, f.Close())
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(taken, f.Close())
		case <-clk.After(lockRetry):
		}
	}
	l := &Lock{f}
	if err := l.write(""); err != nil { // for example on a full disk; the lock itself is held in the kernel
		log.Warn("writing the process ID to the lock file failed", "file", path, "err", err)
	}
	return l, nil
}

// Ending announces to a waiting successor that the lock will soon be free.
func (l *Lock) Ending() error { return l.write(lockEnding) }

// Release releases the lock.
func (l *Lock) Release() error { return l.file.Close() }

func (l *Lock) write(what string) error {
	text := strings.TrimSpace(strconv.Itoa(os.Getpid())+" "+what) + "\n"
	_, err := l.file.WriteAt([]byte(text), 0)
	return errors.Join(err, l.file.Truncate(int64(len(text))))
}

// holder reads the process that holds the lock from the lock file.
func holder(f *os.File) (process string, ending bool) {
	buf := make([]byte, 64)
	n, _ := f.ReadAt(buf, 0)
	words := strings.Fields(string(buf[:n]))
	if len(words) == 0 {
		return "unknown", false
	}
	return words[0], len(words) > 1 && words[1] == lockEnding
}

// BootID returns the kernel's ID of this boot (random(4)).
func BootID() (string, error) {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("reading the boot ID: %w", err)
	}
	return strings.TrimSpace(string(data)), nil
}

// keyLocks has one lock per key, which exists only while it is held or waited for.
type keyLocks struct {
	mu    sync.Mutex // guards locks and their counts; never held during I/O
	locks map[string]*keyLock
}

type keyLock struct {
	sem  chan struct{} // holds one token while locked
	uses int           // holders and waiters
}

func newKeyLocks() *keyLocks { return &keyLocks{locks: map[string]*keyLock{}} }

// lock waits for the key's lock. If ctx ends first it returns the cause. unlock must be called once.
func (k *keyLocks) lock(ctx context.Context, key string) (unlock func(), err error) {
	k.mu.Lock()
	l := k.locks[key]
	if l == nil {
		l = &keyLock{sem: make(chan struct{}, 1)}
		k.locks[key] = l
	}
	l.uses++
	k.mu.Unlock()

	select {
	case l.sem <- struct{}{}:
		return func() {
			<-l.sem
			k.drop(key, l)
		}, nil
	case <-ctx.Done():
		k.drop(key, l)
		return nil, context.Cause(ctx)
	}
}

// try takes the key's lock if it is free. If ok, unlock must be called once.
func (k *keyLocks) try(key string) (unlock func(), ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.locks[key] != nil {
		return nil, false
	}
	l := &keyLock{sem: make(chan struct{}, 1), uses: 1}
	l.sem <- struct{}{}
	k.locks[key] = l
	return func() {
		<-l.sem
		k.drop(key, l)
	}, true
}

func (k *keyLocks) drop(key string, l *keyLock) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if l.uses--; l.uses == 0 {
		delete(k.locks, key)
	}
}
