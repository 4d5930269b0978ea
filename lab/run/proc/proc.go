// Package proc runs the programs under test as processes of the lab: each in a
// network namespace, with its output in a log, started and ended as often as
// one likes, and ended by the kernel when the lab dies.
package proc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/lab/run/poll"
)

// Command is how a program is run.
type Command struct {
	Path  string // of the program
	Args  []string
	Env   []string // name=value, in addition to what Environment passes on
	Dir   string   // that it runs in; the lab's own when empty
	Netns string   // the file of its network namespace; the lab's own when empty

	// Mounts is the file of its mount namespace, where Path is looked up then; the
	// lab's own when empty.
	Mounts string
	// Cgroups are the directories of cgroups that it is born in, besides those
	// that the lab is in.
	Cgroups []string
	// Capabilities are those that it may have at most, such as net_admin; all of the
	// lab's when empty.
	Capabilities []string
}

// joinCgroups is a shell's script that enters cgroups and becomes a program: what is
// moved after it was started may have children already, which stay.
const joinCgroups = `while [ "$1" != -- ]; do echo $$ >"$1/cgroup.procs" || exit 1; shift; done; shift; exec "$@"`

// argv is what is executed for the command, with further arguments.
func (c Command) argv(more []string) []string {
	argv := slices.Concat([]string{c.Path}, c.Args, more)
	if len(c.Capabilities) > 0 {
		argv = slices.Concat([]string{"setpriv", "--bounding-set", "-all,+" + strings.Join(c.Capabilities, ",+"), "--"}, argv)
	}
	if len(c.Cgroups) == 0 {
		return argv
	}
	return slices.Concat([]string{"/bin/sh", "-c", joinCgroups, "sh"}, c.Cgroups, []string{"--"}, argv)
}

// Process is a program that runs now and then. Its methods may be called
// concurrently.
type Process struct {
	what    string // to people, such as "berthd of node-1"
	log     string // the file to which every start appends
	command func() Command

	starting sync.Mutex // held while the process is started or ended, so that two never run

	mu     sync.Mutex // guards all below; never held across I/O
	run    *run       // nil before the first start
	starts int
}

// New makes a process that does not run. People know it as what, such as
// "berthd of node-1"; every start appends to the file log, and asks command.
func New(what, log string, command func() Command) *Process {
	return &Process{what: what, log: log, command: command}
}

// String describes the process.
func (p *Process) String() string { return p.what }

// run is one life of a process.
type run struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has exited
	err  error         // how it ended; set before done is closed

	stopping atomic.Bool // it was asked to exit
}

// Start starts the process, this time with further arguments. One that runs
// already is an error.
func (p *Process) Start(more ...string) error {
	p.starting.Lock()
	defer p.starting.Unlock()
	if p.Running() {
		return fmt.Errorf("%s runs already", p.what)
	}
	c := p.command()
	if _, err := os.Stat(c.Path); err != nil && c.Mounts == "" {
		return fmt.Errorf("%s: %w (build the programs first, or say where they are with --bin-dir)", p.what, err)
	}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644) //nolint:gosec // the lab names its own logs
	if err != nil {
		return fmt.Errorf("%s: open its log: %w", p.what, err)
	}
	defer log.Close()
	argv := c.argv(more)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env, cmd.Dir = append(Environment(), c.Env...), c.Dir
	cmd.Stdout, cmd.Stderr = log, log
	r := &run{cmd: cmd, done: make(chan struct{})}
	if err := r.start(c.Netns, c.Mounts); err != nil {
		return fmt.Errorf("start %s: %w", p.what, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.run = r
	p.starts++
	return nil
}

// start starts the process on a thread inside the namespaces. The thread stays until the process ends, so that the
// kernel ends the process with the lab (prctl(2), PR_SET_PDEATHSIG follows threads).
func (r *run) start(netns, mounts string) error {
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for good where the thread enters another namespace
		if netns == "" && mounts == "" {
			defer runtime.UnlockOSThread()
		}
		if err := enter(netns, mounts); err != nil {
			started <- err
			return
		}
		r.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
		if err := r.cmd.Start(); err != nil {
			started <- err
			return
		}
		started <- nil
		r.err = r.cmd.Wait()
		close(r.done)
	}()
	return <-started
}

// enter moves the calling thread to the namespaces that are not empty.
func enter(netns, mounts string) error {
	if netns != "" {
		if err := ns.Enter(netns); err != nil {
			return err
		}
	}
	if mounts == "" {
		return nil
	}
	return ns.EnterMounts(mounts)
}

// Environment is what any program needs. It configures neither programs under test nor an AWS SDK.
func Environment() []string {
	var env []string
	for _, name := range []string{"PATH", "HOME", "TMPDIR", "GOCOVERDIR", "GOGC", "GORACE"} {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return env
}

func (p *Process) current() *run {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.run
}

// Running reports whether the process exists.
func (p *Process) Running() bool {
	r := p.current()
	return r != nil && !r.gone()
}

func (r *run) gone() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

// PID is the process's, 0 when it does not run.
func (p *Process) PID() int {
	if r := p.current(); r != nil && !r.gone() {
		return r.cmd.Process.Pid
	}
	return 0
}

// Starts is how often the process was started.
func (p *Process) Starts() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.starts
}

// Exited is closed when the current process has exited; nil before the first start.
func (p *Process) Exited() <-chan struct{} {
	if r := p.current(); r != nil {
		return r.done
	}
	return nil
}

// ExitCode is the exit status of the last process, -1 while it runs or when a
// signal ended it.
func (p *Process) ExitCode() int {
	if r := p.current(); r != nil && r.gone() {
		return r.cmd.ProcessState.ExitCode()
	}
	return -1
}

// EndedByItself reports whether the process has exited, and neither Kill
// nor Stop was why.
func (p *Process) EndedByItself() bool { return p.Failed() != nil }

// Failed is the error of a process that ended by itself, with the end of its log.
func (p *Process) Failed() error {
	if r := p.current(); r != nil && r.gone() && !r.stopping.Load() {
		return p.ended(r)
	}
	return nil
}

func (p *Process) ended(r *run) error {
	err := r.err
	if err == nil {
		err = errors.New("exit status 0")
	}
	return fmt.Errorf("%s ended: %w\n%s", p.what, err, p.LogTail(tailLines))
}

// tailLines are as many as errors show of a log.
const tailLines = 20

// Kill ends the process with SIGKILL and returns when it has exited. One that does
// not run is no error.
func (p *Process) Kill() error { return p.end(syscall.SIGKILL, 5*time.Minute) }

// Stop terminates the process and waits until it has exited. After the grace period it is killed, which is an error.
func (p *Process) Stop(grace time.Duration) error { return p.end(syscall.SIGTERM, grace) }

func (p *Process) end(sig syscall.Signal, grace time.Duration) error {
	p.starting.Lock()
	defer p.starting.Unlock()
	r := p.current()
	if r == nil || r.gone() {
		return nil
	}
	r.stopping.Store(true)
	if err := r.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("send %v to %s: %w", sig, p.what, err)
	}
	select {
	case <-r.done:
		return nil
	case <-time.After(grace):
	}
	_ = r.cmd.Process.Kill()
	<-r.done
	return fmt.Errorf("%s did not end within %v of %v", p.what, grace, sig)
}

// Pause holds the process still (SIGSTOP) until Resume, as a machine does that
// is starved or migrated.
func (p *Process) Pause() error { return p.signal(syscall.SIGSTOP) }

// Resume ends a Pause.
func (p *Process) Resume() error { return p.signal(syscall.SIGCONT) }

func (p *Process) signal(sig syscall.Signal) error {
	r := p.current()
	if r == nil || r.gone() {
		return fmt.Errorf("send %v to %s: it does not run", sig, p.what)
	}
	if err := r.cmd.Process.Signal(sig); err != nil {
		return fmt.Errorf("send %v to %s: %w", sig, p.what, err)
	}
	return nil
}

// Wait waits until ready returns nil. The error of a process that has ended, or is not ready when ctx ends, holds the
// end of its log.
func (p *Process) Wait(ctx context.Context, ready func() error) error {
	why := errors.New("it was not started")
	for began := time.Now(); ; {
		if r := p.current(); r != nil {
			if r.gone() {
				return p.ended(r)
			}
			if why = ready(); why == nil {
				return nil
			}
		}
		if poll.Pause(ctx, began, poll.Often) != nil {
			return fmt.Errorf("%s is not ready: %w\n%s", p.what, why, p.LogTail(tailLines))
		}
	}
}

// LogFile is the process's log, appended to by every start.
func (p *Process) LogFile() string { return p.log }

// LogTail returns the last lines of the log.
func (p *Process) LogTail(lines int) string { return Tail(p.log, lines) }

// Tail returns the last lines of a log, and why where it cannot be read.
func Tail(file string, lines int) string {
	f, err := os.Open(file)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	const most = 64 << 10
	if st, err := f.Stat(); err == nil && st.Size() > most {
		_, _ = f.Seek(-most, io.SeekEnd)
	}
	data, _ := io.ReadAll(f)
	all := strings.Split(strings.TrimRight(string(data), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// Run runs a program to its end. When ctx ends first, the program is killed with its children, which would keep its
// output open. Another exit status than 0 is an *exec.ExitError.
func Run(ctx context.Context, c Command, stdin io.Reader, stdout, stderr io.Writer) error {
	argv := c.argv(nil)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env, cmd.Dir = append(Environment(), c.Env...), c.Dir
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, stdout, stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for good: it enters namespaces, and the process dies with it
		if err := enter(c.Netns, c.Mounts); err != nil {
			done <- err
			return
		}
		done <- cmd.Run()
	}()
	return <-done
}

// Listens returns an error unless a program listens at a Unix socket.
func Listens(ctx context.Context, socket string) error {
	c, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return err
	}
	return c.Close()
}
