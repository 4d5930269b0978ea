package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"

	"github.com/berthnet/berth/internal/listener"
)

// Listen creates the daemon's socket with mode 0600, replacing one that an earlier daemon left behind. The
// caller holds the Lock, so that no running daemon is cut off.
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
	// Because it is bound under another name and renamed, the socket never has a wider mode, and is never missing
	// while one daemon replaces another.
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

// temporaryName returns a name in the directory of path that is no longer than path, which may already have the
// maximum length of a socket path (unix(7)).
func temporaryName(path string) string {
	if stem, ok := strings.CutSuffix(path, "~"); ok {
		return stem + "+"
	}
	return path[:len(path)-1] + "~"
}

// The plugin's listener closes an idle connection to make room for a new one. Calls mark their
// connections as busy.

// knownConns are insecure credentials that give a call access to the connection of the listener.
type knownConns struct {
	credentials.TransportCredentials
}

func newKnownConns() credentials.TransportCredentials { return knownConns{insecure.NewCredentials()} }

// ServerHandshake implements credentials.TransportCredentials.
func (k knownConns) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	same, info, err := k.TransportCredentials.ServerHandshake(c)
	if limited, ok := c.(*listener.Conn); ok && err == nil {
		return same, &knownConn{AuthInfo: info, conn: limited}, nil
	}
	return same, info, err
}

type knownConn struct {
	credentials.AuthInfo
	conn *listener.Conn

	mu    sync.Mutex // guards calls
	calls int        // in flight
}

// atWork marks the connection of a call as busy until end is called.
func atWork(ctx context.Context) (end func()) {
	p, _ := peer.FromContext(ctx)
	if p == nil {
		return func() {}
	}
	k, ok := p.AuthInfo.(*knownConn)
	if !ok {
		return func() {}
	}
	k.count(1)
	return func() { k.count(-1) }
}

func (k *knownConn) count(n int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.calls += n
	k.conn.Working(k.calls > 0)
}
