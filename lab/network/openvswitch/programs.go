// Package openvswitch runs the programs of Open vSwitch and OVN, as Debian has them, in a
// network namespace.
package openvswitch

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/berthnet/berth/lab/run/poll"
	"github.com/berthnet/berth/lab/run/proc"
)

// Programs are the paths of programs by name.
type Programs map[string]string

// adminDirs are where Debian puts programs to which only root's PATH leads.
var adminDirs = []string{"/usr/sbin", "/sbin"}

// Find finds programs. The error names one that is not installed, and the group of
// hack/deps.sh by which it is to be had.
func Find(group string, names ...string) (Programs, error) {
	found := Programs{}
	for _, name := range names {
		path, err := exec.LookPath(name)
		for _, dir := range adminDirs {
			if err == nil {
				break
			}
			path, err = exec.LookPath(filepath.Join(dir, name))
		}
		if err != nil {
			return nil, fmt.Errorf("%s is needed and not installed (`hack/deps.sh %s` installs it)", name, group)
		}
		found[name] = path
	}
	return found, nil
}

// Schema is the path of a database's schema, which is where the package of a program put it.
func (p Programs) Schema(program, file string) string {
	return filepath.Join(filepath.Dir(p[program]), "../share", file)
}

// Runner runs programs in one place: a namespace, with a folder for their sockets and
// another for logs. Start, Serve and Kill are not called while another method is.
type Runner struct {
	Programs
	Who   string // such as "node-1"
	Netns string // path
	Dir   string // short, as sockets lie in it
	Logs  string

	procs []*proc.Process
}

// In is the path of a file in Dir.
func (r *Runner) In(name string) string { return filepath.Join(r.Dir, name) }

// Command runs a program in the place.
func (r *Runner) Command(program string, args ...string) proc.Command {
	return proc.Command{
		Path: r.Programs[program], Args: args, Netns: r.Netns, Dir: r.Dir,
		Env: []string{"OVS_RUNDIR=" + r.Dir, "OVN_RUNDIR=" + r.Dir, "OVS_LOGDIR=" + r.Logs, "OVN_LOGDIR=" + r.Logs, "LD_LIBRARY_PATH=" + os.Getenv("LD_LIBRARY_PATH")},
	}
}

// Start starts a program that runs until Kill, known as what.
func (r *Runner) Start(what, program string, args ...string) (*proc.Process, error) {
	args = append(args, "--pidfile="+r.In(what+".pid"), "-vconsole:warn", "-vsyslog:off")
	if program != "ovn-controller" { // which has a control socket of its own in OVN_RUNDIR
		args = append(args, "--unixctl="+r.In(what+".ctl"))
	}
	p := proc.New(r.title(what), filepath.Join(r.Logs, what+"-"+r.Who+".log"), func() proc.Command { return r.Command(program, args...) })
	r.procs = append(r.procs, p)
	return p, p.Start()
}

// Once runs a program until it has ended.
func (r *Runner) Once(ctx context.Context, program string, args ...string) error {
	var out bytes.Buffer
	if err := proc.Run(ctx, r.Command(program, args...), nil, &out, &out); err != nil {
		return fmt.Errorf("%s of %s: %w: %s", program, r.Who, err, bytes.TrimSpace(out.Bytes()))
	}
	return nil
}

// Serve serves a database at NAME.sock, from the file, which is made by the schema where it
// is missing. It returns once it can be spoken to.
func (r *Runner) Serve(ctx context.Context, name, file, schema string) error {
	if _, err := os.Stat(file); err != nil {
		if err := r.Once(ctx, "ovsdb-tool", "create", file, schema); err != nil {
			return err
		}
	}
	db, err := r.Start(name, "ovsdb-server", file, "--remote=punix:"+r.In(name+".sock"))
	if err != nil {
		return err
	}
	return db.Wait(ctx, func() error { return proc.Listens(ctx, r.In(name+".sock")) })
}

// Restart kills a database that Serve began, and serves it again. It returns once it can be
// spoken to.
func (r *Runner) Restart(ctx context.Context, name string) error {
	i := slices.IndexFunc(r.procs, func(p *proc.Process) bool { return p.String() == r.title(name) })
	if i < 0 {
		return fmt.Errorf("%s serves no database %s", r.Who, name)
	}
	db := r.procs[i]
	if err := db.Kill(); err != nil {
		return err
	}
	if err := db.Start(); err != nil {
		return err
	}
	return db.Wait(ctx, func() error { return proc.Listens(ctx, r.In(name+".sock")) })
}

// title is the name of a process.
func (r *Runner) title(what string) string { return what + " of " + r.Who }

// Alive is nil while no program has ended by itself.
func (r *Runner) Alive() error {
	for _, p := range r.procs {
		if err := p.Failed(); err != nil {
			return err
		}
	}
	return nil
}

// Until waits for a condition, and fails at once when a program has exited.
func (r *Runner) Until(ctx context.Context, what string, is func() error) error {
	err := poll.Retry(ctx, is, func(error) bool { return r.Alive() == nil })
	if ended := r.Alive(); ended != nil {
		return ended
	}
	if err != nil {
		return fmt.Errorf("%s: %s: %w", r.Who, what, err)
	}
	return nil
}

// LogTails are the ends of the programs' logs, of some lines each.
func (r *Runner) LogTails(lines int) string {
	var all strings.Builder
	for _, p := range r.procs {
		fmt.Fprintf(&all, "%s:\n%s\n", p, p.LogTail(lines))
	}
	return all.String()
}

// Kill ends all programs, the last first.
func (r *Runner) Kill() error {
	var first error
	for i := len(r.procs) - 1; i >= 0; i-- {
		if err := r.procs[i].Kill(); err != nil && first == nil {
			first = err
		}
	}
	r.procs = nil
	return first
}
