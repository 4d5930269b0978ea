// Package heartbeat tells a daemon that is restarting from one that is gone.
//
// The plugin holds no state, and a STATUS that fails because berthd is being
// restarted would make the node NotReady and get its pods evicted. So berthd
// leaves a file beside its socket, and renews it for as long as its own STATUS
// is good; the plugin looks how old it is when nobody answers.
//
// Age is measured by the boot clock, which nobody sets. The file is on the
// tmpfs of the socket, so that a reboot ends it.
package heartbeat

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/statefile"
)

// Interval is how often the daemon renews its heartbeat.
const Interval = 5 * time.Second

// Grace is how long after the last heartbeat a silent daemon counts as
// restarting (docs/architecture.md, "The life of a pod": STATUS does not fail then).
const Grace = time.Minute

// Path is the file that belongs to a socket.
func Path(socket string) string { return filepath.Join(filepath.Dir(socket), "heartbeat") }

// Beat renews the heartbeat of a socket's daemon. boot is the time now, since
// the machine booted.
func Beat(socket string, boot time.Duration) error {
	path := Path(socket)
	tmp := path + ".new"
	data := []byte(strconv.FormatInt(int64(boot), 10) + "\n")
	err := statefile.Create(tmp, data, 0o644)
	if errors.Is(err, syscall.ENOSPC) {
		_ = os.Remove(tmp) // it may not even be there
		return overwrite(path, data)
	}
	if err != nil {
		return fmt.Errorf("writing the heartbeat: %w", err)
	}
	if err := os.Rename(tmp, path); err != nil {
		return fmt.Errorf("putting the heartbeat in place: %w", err)
	}
	return nil
}

// overwrite renews a heartbeat that is there, on a file system without space for
// another: a few bytes, of which whoever reads them at this moment sees the old
// ones or the new ones, of two moments that are seconds apart.
func overwrite(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("writing the heartbeat, for which there is no space: %w", err)
	}
	_, err = f.WriteAt(data, 0)
	return errors.Join(err, f.Truncate(int64(len(data))), f.Close())
}

// Stop removes the heartbeat: from now on the daemon is not restarting but
// not ready. A heartbeat that is not there is no error.
func Stop(socket string) error {
	if err := os.Remove(Path(socket)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing the heartbeat: %w", err)
	}
	return nil
}

// Recent tells whether the last heartbeat is younger than Grace. A missing or
// unreadable one is not, nor is one from a future that this boot has not seen.
func Recent(socket string, boot time.Duration) bool {
	data, err := statefile.Read(Path(socket))
	if err != nil {
		return false
	}
	last, err := strconv.ParseInt(strings.TrimSuffix(string(data), "\n"), 10, 64)
	if err != nil {
		return false
	}
	age := boot - time.Duration(last)
	return age >= 0 && age < Grace
}

// retry is how often a daemon that is not good yet looks whether it is: one
// that is killed soon after has left a heartbeat too.
const retry = 100 * time.Millisecond

// Run is the daemon's side: it renews the heartbeat of a socket while good
// says so, removes it while not, and reports to failed what goes wrong, once until
// it works again. It returns when ctx ends and then leaves the heartbeat, for a successor to take
// over.
func Run(ctx context.Context, socket string, clk clock.Clock, good func() bool, failed func(error)) {
	failing := false
	for {
		var err error
		next := retry
		if good() {
			err = Beat(socket, clk.Boot())
			next = Interval
		} else {
			err = Stop(socket)
		}
		if err != nil && !failing {
			failed(err)
		}
		failing = err != nil
		select {
		case <-ctx.Done():
			return
		case <-clk.After(next):
		}
	}
}
