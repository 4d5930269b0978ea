package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
)

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
