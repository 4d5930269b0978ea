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

// folders are where Debian has the programs; some are not in everybody's PATH. RabbitMQ's come
// first: those of the same names in /usr/sbin become another user, who may not read what is here.
var folders = []string{"/usr/lib/rabbitmq/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}

// programs are those that an instance needs.
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

// installed is an error where a program is missing.
func (o Options) installed() error {
	missing := slices.DeleteFunc(o.programs(), func(name string) bool { return path(name) != "" })
	if len(missing) > 0 {
		return fmt.Errorf("OpenStack's programs %s are not installed: `hack/deps.sh neutron` installs them", strings.Join(missing, ", "))
	}
	return nil
}

// path is where a program is; empty: nowhere.
func path(name string) string {
	for _, dir := range folders {
		file := filepath.Join(dir, name)
		if st, err := os.Stat(file); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
			return file
		}
	}
	return ""
}

// searched is PATH of the programs, which start others.
var searched = "PATH=" + strings.Join(folders, ":")

// program is one that the instance runs. What is what people know it by.
type program struct {
	what, name string
	args, env  []string
	netns, dir string
}

// programs are those of the services of an instance.
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

// once runs a program until it has ended and returns what it prints.
func (o Options) once(ctx context.Context, p program) (string, error) {
	var out, errOut bytes.Buffer
	if err := proc.Run(ctx, o.command(p), nil, &out, &errOut); err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", p.name, strings.Join(p.args, " "), err, bytes.TrimSpace(errOut.Bytes()))
	}
	return out.String(), nil
}

// end kills programs and their children, the last one first. None has state to keep.
func end(programs []*proc.Process) error {
	var errs []error
	for _, p := range slices.Backward(programs) {
		pid := p.PID()
		errs = append(errs, p.Kill())
		if pid == 0 {
			continue
		}
		// A program leads a group of processes (package proc), in which its children stay.
		if err := unix.Kill(-pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, fmt.Errorf("end what %s started: %w", p, err))
		}
	}
	return errors.Join(errs...)
}

// Alive is the error of a program that ended by itself, of the services or of a node, with the
// end of its log.
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

// failed is the error of a service that ended by itself.
func (c *programs) failed() error {
	for _, p := range c.running() {
		if err := p.Failed(); err != nil {
			return err
		}
	}
	return nil
}

// within calls is until it returns nil, a service fails, or ctx ends, and says what it waits
// for when that takes long.
func (c *programs) within(ctx context.Context, what string, is func(ctx context.Context) error) error {
	slow := time.AfterFunc(patience, func() { c.Progress("waiting for " + what) })
	defer slow.Stop()
	err := poll.Retry(ctx, func() error {
		// Whoever else has the port may take a connection and never answer.
		look, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		return is(look)
	}, func(error) bool { return c.failed() == nil })
	if failed := c.failed(); err != nil && failed != nil {
		return failed
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// patience is how long nothing needs to be said.
const patience = 5 * time.Second
