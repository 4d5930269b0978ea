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

// readyLine ends the progress output of a lab process.
const readyLine = "ready"

// Run is the main function of a lab process: it starts the lab, reports progress as lines that end with "ready", and
// serves the control socket until ctx ends or a request ends the lab.
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

// Serve serves the lab's control socket until ctx ends or a request ends the lab. It calls ready once it accepts
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
		slog.Warn("failed to report readiness", "err", err)
	}
	select {
	case err := <-ended:
		return fmt.Errorf("serve the control socket: %w", err)
	case <-ctx.Done():
	case <-s.down:
	}
	// Send the reply to the request that ended the lab before closing the socket.
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	return srv.Shutdown(stop)
}

// Lock makes this process the only lab of a directory. The kernel releases the lock when the process ends.
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

// Holder returns the PID of the process that runs the lab of a directory, or 0.
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
