// Package openvswitch runs Debian's programs of Open vSwitch and OVN in a network namespace.
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

// adminDirs are Debian's directories that are only in root's PATH.
var adminDirs = []string{"/usr/sbin", "/sbin"}

// Find returns the paths of programs. The error names one that is not installed, and the group of hack/deps.sh that
// installs it.
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

// Schema returns the path of a database's schema, as installed by the package of a program.
func (p Programs) Schema(program, file string) string {
	return filepath.Join(filepath.Dir(p[program]), "../share", file)
}

// Runner runs programs in one namespace, with one directory for their sockets and another for logs. Start, Serve and Kill
// must not be called concurrently with other methods.
type Runner struct {
	Programs
	Who   string // such as "node-1"
	Netns string // path of the network namespace
	Dir   string // short, because of socket paths
	Logs  string

	procs []*proc.Process
}

// In returns the path of a file in Dir.
func (r *Runner) In(name string) string { return filepath.Join(r.Dir, name) }

// Command returns a command for a program in the namespace.
func (r *Runner) Command(program string, args ...string) proc.Command {
	return proc.Command{
		Path: r.Programs[program], Args: args, Netns: r.Netns, Dir: r.Dir,
		Env: []string{"OVS_RUNDIR=" + r.Dir, "OVN_RUNDIR=" + r.Dir, "OVS_LOGDIR=" + r.Logs, "OVN_LOGDIR=" + r.Logs, "LD_LIBRARY_PATH=" + os.Getenv("LD_LIBRARY_PATH")},
	}
}

// Start starts a program, described as what, that runs until Kill.
func (r *Runner) Start(what, program string, args ...string) (*proc.Process, error) {
	args = append(args, "--pidfile="+r.In(what+".pid"), "-vconsole:warn", "-vsyslog:off")
	if program != "ovn-controller" { // its control socket is in OVN_RUNDIR by default
		args = append(args, "--unixctl="+r.In(what+".ctl"))
	}
	p := proc.New(r.title(what), filepath.Join(r.Logs, what+"-"+r.Who+".log"), func() proc.Command { return r.Command(program, args...) })
	r.procs = append(r.procs, p)
	return p, p.Start()
}

// Once runs a program to completion.
func (r *Runner) Once(ctx context.Context, program string, args ...string) error {
	var out bytes.Buffer
	if err := proc.Run(ctx, r.Command(program, args...), nil, &out, &out); err != nil {
		return fmt.Errorf("%s of %s: %w: %s", program, r.Who, err, bytes.TrimSpace(out.Bytes()))
	}
	return nil
}

// Serve serves a database at NAME.sock from a file, which it creates from the schema if missing. It returns once the
// database accepts connections.
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

// Restart kills a database that Serve started, and serves it again. It returns once the database accepts connections.
func (r *Runner) Restart(ctx context.Context, name string) error {
	i := slices.IndexFunc(r.procs, func(p *proc.Process) bool { return p.String() == r.title(name) })
	if i < 0 {
		return fmt.Errorf("no database %[2]s is served on %[1]s", r.Who, name)
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

// title returns the name of a process.
func (r *Runner) title(what string) string { return what + " of " + r.Who }

// Alive returns an error if a program has exited by itself.
func (r *Runner) Alive() error {
	for _, p := range r.procs {
		if err := p.Failed(); err != nil {
			return err
		}
	}
	return nil
}

// Until waits for a condition, and fails immediately if a program has exited.
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

// LogTails returns the last lines of each program's log.
func (r *Runner) LogTails(lines int) string {
	var all strings.Builder
	for _, p := range r.procs {
		fmt.Fprintf(&all, "%s:\n%s\n", p, p.LogTail(lines))
	}
	return all.String()
}

// Kill kills all programs, the last one first.
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
