package xtables

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// lockFile is locked by each program that changes tables of iptables-legacy, such as `iptables -w`. It is the node's, if
// /run is.
const lockFile = "/run/xtables.lock"

const (
	lockWait  = 30 * time.Second // as long as kube-proxy may take to restore large tables
	lockRetry = 20 * time.Millisecond
)

// lock takes the lock file, and waits at most lockWait for others. It is released when the process ends, too.
func lock(ctx context.Context) (release func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, lockWait)
	defer cancel()
	fd, err := unix.Open(lockFile, unix.O_RDONLY|unix.O_CREAT|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock of iptables-legacy, %s: %w", lockFile, err)
	}
	for {
		err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = unix.Close(fd) }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return nil, errors.Join(fmt.Errorf("take the lock of iptables-legacy, %s: %w", lockFile, err), unix.Close(fd))
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("another program holds the lock of iptables-legacy, %s (fuser shows which): repeat the command once it has ended: %w", lockFile, context.Cause(ctx)), unix.Close(fd))
		case <-time.After(lockRetry):
		}
	}
}
