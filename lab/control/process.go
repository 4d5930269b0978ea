package control

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/network/fabric"
	"github.com/berthnet/berth/lab/run/proc"
)

// ReportFD is the descriptor on which a spawned lab process reports progress.
const ReportFD = 3

// failedPrefix begins the last line of a process that stays up after a failure.
const failedPrefix = "failed: "

// ReportEnd ends the progress of a spawned process that stays up: all is
// ready, or something failed.
func ReportEnd(w io.WriteCloser, err error) error {
	line := readyLine
	if err != nil {
		line = failedPrefix + strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	_, werr := fmt.Fprintln(w, line)
	return errors.Join(werr, w.Close())
}

// Spawn starts this program with args in the background, passes its progress on to show, and waits until the lab is
// ready. If the lab fails, or ctx ends, the process is ended, and the error holds the end of its log.
func Spawn(ctx context.Context, dir string, args []string, show func(string)) (pid int, err error) {
	exe, err := os.Executable()
	if err != nil {
		return 0, fmt.Errorf("find this program: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return 0, fmt.Errorf("lab directory: %w", err)
	}
	log, err := os.OpenFile(LogPath(dir), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644)
	if err != nil {
		return 0, fmt.Errorf("lab log: %w", err)
	}
	defer log.Close()
	in, out, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer in.Close()
	cmd := exec.Command(exe, args...)
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = log, log, []*os.File{out}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	out.Close()
	if err != nil {
		return 0, fmt.Errorf("start the lab process: %w", err)
	}
	unwatch := context.AfterFunc(ctx, func() { _ = cmd.Process.Signal(syscall.SIGTERM) })
	defer unwatch()
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		if lines.Text() == readyLine {
			pid := cmd.Process.Pid
			return pid, cmd.Process.Release()
		}
		why, failed := strings.CutPrefix(lines.Text(), failedPrefix)
		switch {
		case !failed:
			show(lines.Text())
		case ctx.Err() == nil:
			return cmd.Process.Pid, errors.New(why)
		}
	}
	err = cmd.Wait()
	if errors.Is(ctx.Err(), context.Canceled) {
		return 0, fmt.Errorf("%w: the lab was removed, its logs are in %s", context.Cause(ctx), dir)
	}
	return 0, fmt.Errorf("the lab did not come up: %w\n%s", errors.Join(ctx.Err(), err), proc.Tail(LogPath(dir), 20))
}

// Down removes the lab in dir, whether it runs, hangs or died, and returns what was removed.
func Down(ctx context.Context, dir string) ([]string, error) {
	id := lab.IDOf(dir)
	var removed []string
	ask, cancel := context.WithTimeout(ctx, endPatience) // one that hangs does not answer
	r, err := Dial(dir).end(ask)
	cancel()
	switch {
	case err == nil:
		removed = r.Removed
	case !errors.Is(err, ErrNotRunning) && ctx.Err() == nil:
		// It answers, but failed: its leftovers are swept below.
		removed = append(removed, "a lab that could not end by itself: "+err.Error())
	}
	if pid := Holder(dir); pid != 0 {
		if err != nil { // it is on its way up, or it is a demo: both clean up when they are terminated
			_ = syscall.Kill(pid, syscall.SIGTERM)
		}
		if err := endProcess(ctx, dir, pid); err != nil {
			return removed, err
		}
		removed = append(removed, fmt.Sprintf("lab process %d", pid))
	}
	swept, err := lab.Sweep(dir, id)
	for _, s := range swept {
		if !slices.Contains(removed, s) {
			removed = append(removed, s)
		}
	}
	if err != nil {
		return removed, err
	}
	if _, err := os.Stat(dir); err == nil {
		if err := os.RemoveAll(dir); err != nil {
			return removed, fmt.Errorf("remove the lab's directory: %w", err)
		}
		removed = append(removed, dir)
	}
	left, err := ns.List(fabric.Prefix(id))
	if err == nil && len(left) > 0 {
		err = fmt.Errorf("these network namespaces are still there: %v", left)
	}
	return removed, err
}

// endPatience is how long a lab process may take to end by itself.
const endPatience = time.Minute

// endProcess waits for a lab process to end, and kills it when it does not
// within endPatience.
func endProcess(ctx context.Context, dir string, pid int) error {
	patience := time.Now().Add(endPatience)
	for Holder(dir) == pid {
		if time.Now().After(patience) {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
				return fmt.Errorf("kill lab process %d: %w", pid, err)
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("lab process %d does not end: %w", pid, ctx.Err())
		case <-time.After(10 * time.Millisecond): // a foreign process's edge
		}
	}
	return nil
}
