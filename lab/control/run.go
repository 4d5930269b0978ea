package control

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/lab"
)

// readyLine ends the progress that a lab process reports to who started it.
const readyLine = "ready"

// Run is the lab process: it raises the lab, reports progress as lines that end with "ready", and serves the control
// socket until ctx ends or a request ends the lab.
func Run(ctx context.Context, o lab.Options, report io.WriteCloser) error {
	defer report.Close()
	o.Progress = func(s string) { fmt.Fprintln(report, s) }
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return fmt.Errorf("lab directory: %w", err)
	}
	release, err := Lock(o.Dir)
	if err != nil {
		return err
	}
	defer release()
	l, err := lab.Start(ctx, o)
	if err != nil {
		return err
	}
	return errors.Join(Serve(ctx, l, func() error { return ReportEnd(report, nil) }), l.Close())
}

// Serve answers on the lab's control socket until ctx ends or a request ends the lab. It calls ready once it accepts
// requests.
func Serve(ctx context.Context, l *lab.Lab, ready func() error) error {
	s := newServer(l)
	ln, err := listen(l.Dir)
	if err != nil {
		return err
	}
	srv := &http.Server{Handler: s.handler(), ReadHeaderTimeout: time.Minute, BaseContext: func(net.Listener) context.Context { return ctx }}
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(ln) }()
	if err := ready(); err != nil {
		slog.Warn("ready not reported to the starter", "err", err)
	}
	select {
	case err := <-ended:
		return fmt.Errorf("serve the control socket: %w", err)
	case <-ctx.Done():
	case <-s.down:
	}
	// The answer to the request that ended the lab goes out first.
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	return srv.Shutdown(stop)
}

// Lock makes this process the only lab of a directory. The kernel releases the lock with the process.
func Lock(dir string) (release func(), err error) {
	f, err := os.OpenFile(lockPath(dir), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lab lock: %w", err)
	}
	if err := unix.FcntlFlock(f.Fd(), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}); err != nil {
		f.Close()
		return nil, fmt.Errorf("a lab is running in %s already (process %d): end it with vpclab down", dir, Holder(dir))
	}
	return func() { f.Close() }, nil
}

// Holder is the process that runs the lab of a directory, 0 when none does.
func Holder(dir string) int {
	f, err := os.OpenFile(lockPath(dir), os.O_RDWR, 0)
	if err != nil {
		return 0
	}
	defer f.Close()
	l := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(f.Fd(), unix.F_GETLK, &l); err != nil || l.Type == unix.F_UNLCK {
		return 0
	}
	return int(l.Pid)
}
