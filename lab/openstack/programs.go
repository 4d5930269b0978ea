package openstack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/lab/run/poll"
	"github.com/berthnet/berth/lab/run/proc"
)

// folders are where Debian installs the programs; not every PATH contains all of them. RabbitMQ's folder
// comes first: the programs of the same names in /usr/sbin switch to a user who cannot read the instance's
// files.
var folders = []string{"/usr/lib/rabbitmq/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}

// programs returns the programs that an instance needs.
func (o Options) programs() []string {
	needed := []string{"mariadbd", "neutron-server", "ovsdb-tool", "ovsdb-server", "ovs-vswitchd", "ovs-vsctl"}
	switch o.Backend {
	case OVN:
		needed = append(needed, "ovn-northd", "ovn-controller", "ovn-nbctl", "ovn-sbctl")
	case Agent:
		needed = append(needed, "rabbitmq-server", "epmd", "neutron-openvswitch-agent", "ipset", "iptables", "conntrack")
	}
	if o.Keystone {
		needed = append(needed, "keystone-manage")
	}
	return needed
}

// installed returns an error if a program is missing.
func (o Options) installed() error {
	missing := slices.DeleteFunc(o.programs(), func(name string) bool { return path(name) != "" })
	if len(missing) > 0 {
		return fmt.Errorf("OpenStack's programs %s are not installed: `hack/deps.sh neutron` installs them", strings.Join(missing, ", "))
	}
	return nil
}

// path returns the path of a program, or "" if it is not installed.
func path(name string) string {
	for _, dir := range folders {
		file := filepath.Join(dir, name)
		if st, err := os.Stat(file); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
			return file
		}
	}
	return ""
}

// searched is the PATH of the programs, which start others.
var searched = "PATH=" + strings.Join(folders, ":")

// program is one that the instance runs. What is its common name.
type program struct {
	what, name string
	args, env  []string
	netns, dir string
}

// programs are the processes of an instance's services.
type programs struct {
	Options

	mu   sync.Mutex // guards list; never held across I/O
	list []*proc.Process
}

func (c *programs) running() []*proc.Process {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.list)
}

func (o Options) command(p program) proc.Command {
	return proc.Command{Path: path(p.name), Args: p.args, Env: append([]string{searched}, p.env...), Netns: p.netns, Dir: p.dir}
}

// service starts a program in the services' namespace that runs until the instance is closed.
func (c *programs) service(p program) (*proc.Process, error) {
	p.netns, p.dir = c.Netns, c.Dir
	started, err := c.start(p)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.list = append(c.list, started)
	return started, nil
}

func (o Options) start(p program) (*proc.Process, error) {
	log := o.in(logDir, strings.ReplaceAll(p.what, " ", "-")+".log")
	started := proc.New(p.what, log, func() proc.Command { return o.command(p) })
	return started, started.Start()
}

// once runs a program to completion and returns its output.
func (o Options) once(ctx context.Context, p program) (string, error) {
	var out, errOut bytes.Buffer
	if err := proc.Run(ctx, o.command(p), nil, &out, &errOut); err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", p.name, strings.Join(p.args, " "), err, bytes.TrimSpace(errOut.Bytes()))
	}
	return out.String(), nil
}

// end kills programs and their children, the last one first. None has state that must be saved.
func end(programs []*proc.Process) error {
	var errs []error
	for _, p := range slices.Backward(programs) {
		pid := p.PID()
		errs = append(errs, p.Kill())
		if pid == 0 {
			continue
		}
		// A program is the leader of a process group (package proc), in which its children stay.
		if err := unix.Kill(-pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, fmt.Errorf("kill the children of %s: %w", p, err))
		}
	}
	return errors.Join(errs...)
}

// Alive returns an error if a program of the services or of a node has exited. The error contains the end
// of its log.
func (c *Cloud) Alive() error {
	if err := c.programs.failed(); err != nil {
		return err
	}
	for _, n := range c.Nodes() {
		for _, p := range n.running() {
			if err := p.Failed(); err != nil {
				return err
			}
		}
	}
	return nil
}

// failed returns an error if a service has exited.
func (c *programs) failed() error {
	for _, p := range c.running() {
		if err := p.Failed(); err != nil {
			return err
		}
	}
	return nil
}

// within calls is until it returns nil, a service fails, or ctx ends. It reports progress if that takes
// longer than patience.
func (c *programs) within(ctx context.Context, what string, is func(ctx context.Context) error) error {
	slow := time.AfterFunc(patience, func() { c.Progress("waiting for " + what) })
	defer slow.Stop()
	err := poll.Retry(ctx, func() error {
		// Another program on the port may accept a connection and never respond.
		attempt, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		return is(attempt)
	}, func(error) bool { return c.failed() == nil })
	if failed := c.failed(); err != nil && failed != nil {
		return failed
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// patience is the time after which within reports progress, and the timeout of each attempt.
const patience = 5 * time.Second
