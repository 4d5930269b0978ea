// Package proc runs the programs under test as processes of the lab: each in a network namespace, with its output in a
// log. They can be restarted, and the kernel kills them when the lab dies.
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

// Command describes how to run a program.
type Command struct {
	Path  string // path of the program
	Args  []string
	Env   []string // name=value, in addition to Environment
	Dir   string   // working directory; default is the lab's own
	Netns string   // path of its network namespace; default is the lab's own

	// Mounts is the path of its mount namespace, in which Path is looked up; default is the lab's own.
	Mounts string
	// Cgroups are the directories of cgroups in which it starts, in addition to those of the lab.
	Cgroups []string
	// Capabilities are the maximum capabilities, such as net_admin; default is all capabilities of the lab.
	Capabilities []string
}

// joinCgroups is a shell script that joins cgroups and executes a program: moving a running program would not move its
// existing children.
const joinCgroups = `while [ "$1" != -- ]; do echo $$ >"$1/cgroup.procs" || exit 1; shift; done; shift; exec "$@"`

// argv returns the executed command line, with further arguments.
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

// Process is a program that can be started and stopped repeatedly. It is safe for concurrent use.
type Process struct {
	what    string // description for messages, such as "berthd of node-1"
	log     string // log file; every start appends to it
	command func() Command

	starting sync.Mutex // held while the process is started or stopped, so that it never runs twice

	mu     sync.Mutex // guards all below; never held across I/O
	run    *run       // nil before the first start
	starts int
}

// New returns a process that is not running. what describes it in messages, such as "berthd of node-1". Every start appends
// to the file log, and calls command.
func New(what, log string, command func() Command) *Process {
	return &Process{what: what, log: log, command: command}
}

// String describes the process.
func (p *Process) String() string { return p.what }

// run is one execution of a process.
type run struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has exited
	err  error         // error of the process; set before done is closed

	stopping atomic.Bool // the lab requested the exit
}

// Start starts the process with further arguments for this start. A running process is an error.
func (p *Process) Start(more ...string) error {
	p.starting.Lock()
	defer p.starting.Unlock()
	if p.Running() {
		return fmt.Errorf("%s is already running", p.what)
	}
	c := p.command()
	if _, err := os.Stat(c.Path); err != nil && c.Mounts == "" {
		return fmt.Errorf("%s: %w (build the programs first, or set their directory with --bin-dir)", p.what, err)
	}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644) //nolint:gosec // the lab names its own logs
	if err != nil {
		return fmt.Errorf("%s: open log: %w", p.what, err)
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

// start starts the process from a thread in the namespaces. The thread stays until the process ends, so that the kernel
// kills the process with the lab (prctl(2), PR_SET_PDEATHSIG applies to threads).
func (r *run) start(netns, mounts string) error {
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // permanently if the thread enters another namespace
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

// Environment returns variables that any program needs. It configures neither programs under test nor an AWS SDK.
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

// PID returns the process ID, or 0 if the process does not run.
func (p *Process) PID() int {
	if r := p.current(); r != nil && !r.gone() {
		return r.cmd.Process.Pid
	}
	return 0
}

// Starts returns the number of starts.
func (p *Process) Starts() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.starts
}

// Exited returns a channel that is closed when the current process has exited; nil before the first start.
func (p *Process) Exited() <-chan struct{} {
	if r := p.current(); r != nil {
		return r.done
	}
	return nil
}

// ExitCode returns the exit status of the last process, or -1 while it runs or if a signal ended it.
func (p *Process) ExitCode() int {
	if r := p.current(); r != nil && r.gone() {
		return r.cmd.ProcessState.ExitCode()
	}
	return -1
}

// EndedByItself reports whether the process has exited without Kill or Stop.
func (p *Process) EndedByItself() bool { return p.Failed() != nil }

// Failed returns the error of a process that ended by itself, with the end of its log.
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
	return fmt.Errorf("%s has exited: %w\n%s", p.what, err, p.LogTail(tailLines))
}

// tailLines is the number of log lines in errors.
const tailLines = 20

// Kill kills the process with SIGKILL and returns when it has exited. A process that does not run is not an error.
func (p *Process) Kill() error { return p.end(syscall.SIGKILL, 5*time.Minute) }

// Stop terminates the process and waits until it has exited. After the grace period it kills the process and returns an
// error, with the goroutines of a Go program.
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
	stacks := p.stacks(r)
	_ = r.cmd.Process.Kill()
	<-r.done
	return fmt.Errorf("%s did not exit within %v of %v%s", p.what, grace, sig, stacks)
}

// dumping is how long a program may take to write its stacks.
const dumping = 5 * time.Second

// stacks returns what the process writes to its log at SIGQUIT: a Go program the stacks of its goroutines, and ends.
func (p *Process) stacks(r *run) string {
	before, err := os.Stat(p.log)
	if err != nil || r.cmd.Process.Signal(syscall.SIGQUIT) != nil {
		return ""
	}
	select {
	case <-r.done:
	case <-time.After(dumping):
	}
	log, err := os.Open(p.log)
	if err != nil {
		return ""
	}
	defer log.Close()
	const most = 256 << 10
	data, _ := io.ReadAll(io.NewSectionReader(log, before.Size(), most))
	return "\n" + strings.TrimSpace(string(data))
}

// Pause suspends the process (SIGSTOP) until Resume, like a machine that is starved or migrated.
func (p *Process) Pause() error { return p.signal(syscall.SIGSTOP) }

// Resume ends a Pause.
func (p *Process) Resume() error { return p.signal(syscall.SIGCONT) }

func (p *Process) signal(sig syscall.Signal) error {
	r := p.current()
	if r == nil || r.gone() {
		return fmt.Errorf("send %v to %s: it is not running", sig, p.what)
	}
	if err := r.cmd.Process.Signal(sig); err != nil {
		return fmt.Errorf("send %v to %s: %w", sig, p.what, err)
	}
	return nil
}

// Wait waits until ready returns nil. If the process has ended, or is not ready when ctx ends, the error contains the end of
// its log.
func (p *Process) Wait(ctx context.Context, ready func() error) error {
	why := errors.New("not started")
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

// LogFile returns the path of the process's log, to which every start appends.
func (p *Process) LogFile() string { return p.log }

// LogTail returns the last lines of the log.
func (p *Process) LogTail(lines int) string { return Tail(p.log, lines) }

// Tail returns the last lines of a log, or the reason why it cannot be read.
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

// Run runs a program to completion. If ctx ends first, it kills the program with its children, which would keep its output
// open. An exit status other than 0 is an *exec.ExitError.
func Run(ctx context.Context, c Command, stdin io.Reader, stdout, stderr io.Writer) error {
	argv := c.argv(nil)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env, cmd.Dir = append(Environment(), c.Env...), c.Dir
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, stdout, stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // permanently: it enters namespaces, and the process dies with it
		if err := enter(c.Netns, c.Mounts); err != nil {
			done <- err
			return
		}
		done <- cmd.Run()
	}()
	return <-done
}

// Listens returns an error unless a program listens on a Unix socket.
func Listens(ctx context.Context, socket string) error {
	c, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return err
	}
	return c.Close()
}
