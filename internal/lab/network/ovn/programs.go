package ovn

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/berthnet/berth/internal/lab/run/poll"
	"github.com/berthnet/berth/internal/lab/run/proc"
)

// needed are the programs that the package runs.
var needed = []string{"ovsdb-tool", "ovsdb-server", "ovs-vswitchd", "ovs-vsctl", "ovn-northd", "ovn-controller", "ovn-nbctl", "ovn-sbctl"}

// Installed tells whether all programs are there that the package runs. The error names one
// that is not, and how to get it.
func Installed() error {
	_, err := find(needed...)
	return err
}

// programs are the paths of programs by name.
type programs map[string]string

// adminDirs are where Debian puts programs to which only root's PATH leads.
var adminDirs = []string{"/usr/sbin", "/sbin"}

func find(names ...string) (programs, error) {
	found := programs{}
	for _, name := range names {
		path, err := exec.LookPath(name)
		for _, dir := range adminDirs {
			if err == nil {
				break
			}
			path, err = exec.LookPath(filepath.Join(dir, name))
		}
		if err != nil {
			return nil, fmt.Errorf("%s is needed and not installed (`hack/deps.sh ovn` installs it)", name)
		}
		found[name] = path
	}
	return found, nil
}

// schema is the path of a database's schema, which is where the package of a program put it.
func (p programs) schema(program, file string) string {
	return filepath.Join(filepath.Dir(p[program]), "../share", file)
}

// rack is a place where programs run: a namespace, with a folder for their sockets and
// another for logs.
type rack struct {
	programs
	who   string // such as "node-1"
	netns string
	dir   string
	logs  string
	procs []*proc.Process
}

func (r *rack) in(name string) string { return filepath.Join(r.dir, name) }

func (r *rack) command(program string, args ...string) proc.Command {
	return proc.Command{
		Path: r.programs[program], Args: args, Netns: r.netns, Dir: r.dir,
		Env: []string{"OVS_RUNDIR=" + r.dir, "OVN_RUNDIR=" + r.dir, "OVS_LOGDIR=" + r.logs, "OVN_LOGDIR=" + r.logs, "LD_LIBRARY_PATH=" + os.Getenv("LD_LIBRARY_PATH")},
	}
}

// start starts a program that runs until kill, known as what.
func (r *rack) start(what, program string, args ...string) (*proc.Process, error) {
	args = append(args, "--pidfile="+r.in(what+".pid"), "-vconsole:warn", "-vsyslog:off")
	if program != "ovn-controller" { // which has a control socket of its own in OVN_RUNDIR
		args = append(args, "--unixctl="+r.in(what+".ctl"))
	}
	p := proc.New(what+" of "+r.who, filepath.Join(r.logs, what+"-"+r.who+".log"), func() proc.Command { return r.command(program, args...) })
	r.procs = append(r.procs, p)
	return p, p.Start()
}

// once runs a program until it has ended.
func (r *rack) once(ctx context.Context, program string, args ...string) error {
	var out bytes.Buffer
	if err := proc.Run(ctx, r.command(program, args...), nil, &out, &out); err != nil {
		return fmt.Errorf("%s of %s: %w: %s", program, r.who, err, bytes.TrimSpace(out.Bytes()))
	}
	return nil
}

// serve serves a database at NAME.sock, from the file, which is made by the schema where it
// is missing. It returns once it can be spoken to.
func (r *rack) serve(ctx context.Context, name, file, schema string) error {
	if _, err := os.Stat(file); err != nil {
		if err := r.once(ctx, "ovsdb-tool", "create", file, schema); err != nil {
			return err
		}
	}
	db, err := r.start(name, "ovsdb-server", file, "--remote=punix:"+r.in(name+".sock"))
	if err != nil {
		return err
	}
	return db.Wait(ctx, func() error {
		c, err := (&net.Dialer{}).DialContext(ctx, "unix", r.in(name+".sock"))
		if err == nil {
			_ = c.Close()
		}
		return err
	})
}

// alive is nil while no program has ended by itself.
func (r *rack) alive() error {
	for _, p := range r.procs {
		if err := p.Failed(); err != nil {
			return err
		}
	}
	return nil
}

// until waits for what a program does, and fails at once when one has ended.
func (r *rack) until(ctx context.Context, what string, is func() error) error {
	err := poll.Until(ctx, func() error {
		if err := r.alive(); err != nil {
			return nil //nolint:nilerr // told below
		}
		return is()
	})
	if ended := r.alive(); ended != nil {
		return ended
	}
	if err != nil {
		return fmt.Errorf("%s: %s: %w", r.who, what, err)
	}
	return nil
}

// kill ends all programs, the last first.
func (r *rack) kill() error {
	var first error
	for i := len(r.procs) - 1; i >= 0; i-- {
		if err := r.procs[i].Kill(); err != nil && first == nil {
			first = err
		}
	}
	r.procs = nil
	return first
}
