package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/berthnet/berth/internal/clock"
)

// Lock is the right to serve a node: no two daemons of one state directory
// have it. The kernel takes it back when the process ends, however it ends.
type Lock struct{ file *os.File }

const lockFile = "berthd.lock"

// AcquireLock takes the lock of a state directory, which it makes when missing.
// A daemon that is just being replaced gets until ctx ends to leave; the error
// then names its process.
func AcquireLock(ctx context.Context, stateDir string, clk clock.Clock, log *slog.Logger) (*Lock, error) {
	if err := os.MkdirAll(stateDir, 0o700); err != nil {
		return nil, fmt.Errorf("creating the state directory: %w", err)
	}
	path := filepath.Join(stateDir, lockFile)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the lock file: %w", err)
	}
	for waited := false; ; waited = true {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			break
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			return nil, errors.Join(fmt.Errorf("locking %s: %w", path, err), f.Close())
		}
		if !waited {
			log.Info("waiting for another berthd to end", "process", holder(f), "state", stateDir)
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("another berthd (process %s) serves %s", holder(f), stateDir), f.Close())
		case <-clk.After(100 * time.Millisecond):
		}
	}
	if err := errors.Join(f.Truncate(0), writePID(f)); err != nil {
		return nil, errors.Join(fmt.Errorf("writing %s: %w", path, err), f.Close())
	}
	return &Lock{f}, nil
}

// Release gives the right up.
func (l *Lock) Release() error { return l.file.Close() }

func writePID(f *os.File) error {
	_, err := f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return err
}

func holder(f *os.File) string {
	buf := make([]byte, 32)
	n, _ := f.ReadAt(buf, 0)
	if pid := strings.TrimSpace(string(buf[:n])); pid != "" {
		return pid
	}
	return "unknown"
}

// Listen makes the daemon's socket, mode 0600, in place of one that a dead
// daemon left. The caller holds the Lock, so a living one cannot be cut off.
func Listen(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("creating the socket's directory: %w", err)
	}
	switch info, err := os.Lstat(path); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("looking at %s: %w", path, err)
	case info.Mode()&fs.ModeSocket == 0:
		return nil, fmt.Errorf("%s exists and is not a socket; remove it or choose another with --socket", path)
	}
	// Bound under another name and renamed, the socket is never there with a
	// wider mode, and never missing while one daemon replaces another.
	tmp := temporaryName(path)
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("removing a stale socket: %w", err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: tmp, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listening: %w", err)
	}
	l.SetUnlinkOnClose(false)
	if err := errors.Join(os.Chmod(tmp, 0o600), os.Rename(tmp, path)); err != nil {
		return nil, errors.Join(fmt.Errorf("putting the socket in place: %w", err), l.Close(), os.Remove(tmp))
	}
	return l, nil
}

// temporaryName is a name beside path that is no longer: a socket's path may
// already have all the bytes that the kernel allows (unix(7)).
func temporaryName(path string) string {
	if stem, ok := strings.CutSuffix(path, "~"); ok {
		return stem + "+"
	}
	return path[:len(path)-1] + "~"
}
