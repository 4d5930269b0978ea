package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/berthnet/berth/internal/vpclab/ns"
)

// The daemon's addresses inside its node's namespace, its own defaults.
const (
	IntrospectionURL = "http://127.0.0.1:6666/ip-manager"
	ReadyURL         = "http://127.0.0.1:61678/readyz"
	MetricsURL       = "http://127.0.0.1:61678/metrics"
)

// daemon is one process of berthd.
type daemon struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when the process is gone
	err  error         // how it ended; set before done is closed
}

// Start starts the node's berthd, this time with further arguments besides
// those of Options. One that runs already is an error.
func (n *Node) Start(more ...string) error {
	n.starting.Lock()
	defer n.starting.Unlock()
	if n.Running() {
		return fmt.Errorf("berthd of %s runs already", n.Name)
	}
	bin := filepath.Join(n.BinDir, "berthd")
	if _, err := os.Stat(bin); err != nil {
		return fmt.Errorf("berthd of %s: %w (build the programs first, or say where they are with --bin-dir)", n.Name, err)
	}
	log, err := os.OpenFile(n.LogFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("berthd of %s: open its log: %w", n.Name, err)
	}
	defer log.Close()
	cmd := exec.Command(bin, append(n.daemonArgs(), more...)...)
	cmd.Env = n.daemonEnv()
	cmd.Stdout, cmd.Stderr = log, log
	d := &daemon{cmd: cmd, done: make(chan struct{})}
	if err := d.run(n.Netns); err != nil {
		return fmt.Errorf("start berthd of %s: %w", n.Name, err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.daemon = d
	n.starts++
	return nil
}

// run starts the process on a thread inside the namespace and returns once it
// runs. The thread stays until the process ends, which lets the kernel end
// the process when the lab dies (prctl(2), PR_SET_PDEATHSIG follows threads).
func (d *daemon) run(netns string) error {
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for good: the thread is in another namespace
		if err := ns.Enter(netns); err != nil {
			started <- err
			return
		}
		d.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
		if err := d.cmd.Start(); err != nil {
			started <- err
			return
		}
		started <- nil
		d.err = d.cmd.Wait()
		close(d.done)
	}()
	return <-started
}

func (n *Node) daemonArgs() []string {
	return append([]string{
		"--node-name=" + n.Name,
		"--cluster-name=" + n.Cluster,
		"--state-dir=" + n.StateDir(),
		"--socket=" + n.Socket(),
		"--ec2-endpoint=" + n.EC2URL,
		"--install-cni",
		"--cni-bin-dir=" + n.CNIBinDir(),
		"--cni-conf-dir=" + n.ConfDir(),
		"--cni-plugin=" + filepath.Join(n.BinDir, "berth"),
	}, n.Args...)
}

// daemonEnv passes on what any program needs and nothing that configures
// berthd or an AWS SDK: the caller's credentials have no business here.
func (n *Node) daemonEnv() []string {
	var env []string
	for _, name := range []string{"PATH", "HOME", "TMPDIR", "GOCOVERDIR", "GORACE"} {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	var own []string
	for k, v := range n.Env {
		own = append(own, k+"="+v)
	}
	slices.Sort(own)
	return append(env, own...)
}

func (n *Node) current() *daemon {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.daemon
}

// Running tells whether the daemon's process exists.
func (n *Node) Running() bool {
	d := n.current()
	if d == nil {
		return false
	}
	select {
	case <-d.done:
		return false
	default:
		return true
	}
}

// PID is the daemon's process, 0 when it does not run.
func (n *Node) PID() int {
	if !n.Running() {
		return 0
	}
	return n.current().cmd.Process.Pid
}

// Starts is how often the daemon was started.
func (n *Node) Starts() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.starts
}

// Exited is closed when the daemon's present process is gone; nil before the first start.
func (n *Node) Exited() <-chan struct{} {
	if d := n.current(); d != nil {
		return d.done
	}
	return nil
}

// ExitCode is the exit status of the daemon's last process, -1 while it runs
// or when a signal ended it.
func (n *Node) ExitCode() int {
	if d := n.current(); d != nil && !n.Running() {
		return d.cmd.ProcessState.ExitCode()
	}
	return -1
}

// Kill ends the daemon with SIGKILL and returns when it is gone. One that does
// not run is no error.
func (n *Node) Kill() error { return n.end(syscall.SIGKILL, 10*time.Second) }

// Stop ends the daemon with SIGTERM and returns when it is gone; after the
// grace period it is killed, which is an error.
func (n *Node) Stop(grace time.Duration) error { return n.end(syscall.SIGTERM, grace) }

func (n *Node) end(sig syscall.Signal, grace time.Duration) error {
	n.starting.Lock()
	defer n.starting.Unlock()
	d := n.current()
	if d == nil || !n.Running() {
		return nil
	}
	if err := d.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("send %v to berthd of %s: %w", sig, n.Name, err)
	}
	select {
	case <-d.done:
		return nil
	case <-time.After(grace):
	}
	_ = d.cmd.Process.Kill()
	<-d.done
	return fmt.Errorf("berthd of %s did not end within %v of %v", n.Name, grace, sig)
}

// WaitReady returns once pods can be made: the CNI configuration is installed
// and the daemon calls itself ready. The error of a daemon that ended, or that
// is not ready when ctx ends, holds the end of its log.
func (n *Node) WaitReady(ctx context.Context) error {
	why := errors.New("berthd was not started")
	for {
		if d := n.current(); d != nil {
			select {
			case <-d.done:
				return fmt.Errorf("berthd of %s ended: %w\n%s", n.Name, errOr(d.err, "exit status 0"), n.LogTail(15))
			default:
			}
			if why = n.ready(ctx); why == nil {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("berthd of %s is not ready: %w\n%s", n.Name, why, n.LogTail(15))
		case <-time.After(20 * time.Millisecond): // another process's edge: it tells nobody when it is ready
		}
	}
}

func errOr(err error, otherwise string) error {
	if err != nil {
		return err
	}
	return errors.New(otherwise)
}

func (n *Node) ready(ctx context.Context) error {
	if _, err := n.conf(); err != nil {
		return err
	}
	_, err := n.Get(ctx, ReadyURL)
	return err
}

// Get fetches a URL with a literal address from inside the node, and fails
// unless the status is 200. The body is returned in either case.
func (n *Node) Get(ctx context.Context, url string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return ns.Get(ctx, n.Netns, url)
}

// LogTail returns the last lines of the daemon's log.
func (n *Node) LogTail(lines int) string {
	f, err := os.Open(n.LogFile())
	if err != nil {
		return ""
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
