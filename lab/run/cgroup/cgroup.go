// Package cgroup makes, counts, ends and removes the cgroups of what a lab runs,
// with either version of the kernel's interface (cgroups(7)): version 1, with one
// hierarchy a set of controllers, and version 2 with one for all. Cgroups belong to
// no namespace that could take them along, so who makes them removes them.
package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Root is where hierarchies are mounted (cgroups(7), "Mounting v1 controllers").
const Root = "/sys/fs/cgroup"

// Group is a path below the root of every hierarchy.
type Group string

// Unified reports whether the machine has only version 2.
func Unified() bool {
	var st unix.Statfs_t
	return unix.Statfs(Root, &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC
}

// Hierarchies lists the roots of all hierarchies, also of those without controllers: systemd's, and version 2 beside
// version 1.
func Hierarchies() ([]string, error) {
	if Unified() {
		return []string{Root}, nil
	}
	entries, err := os.ReadDir(Root)
	if err != nil {
		return nil, fmt.Errorf("list cgroup hierarchies: %w", err)
	}
	var roots []string
	for _, e := range entries { // some are links to others: cpu to cpu,cpuacct
		var st unix.Statfs_t
		dir := filepath.Join(Root, e.Name())
		if e.IsDir() && unix.Statfs(dir, &st) == nil && (st.Type == unix.CGROUP_SUPER_MAGIC || st.Type == unix.CGROUP2_SUPER_MAGIC) {
			roots = append(roots, dir)
		}
	}
	if len(roots) == 0 {
		return nil, fmt.Errorf("no cgroups are mounted at %s", Root)
	}
	return roots, nil
}

// Create makes the group in every hierarchy, with all controllers. Where it is
// there already, nothing changes.
func (g Group) Create() error {
	roots, err := Hierarchies()
	if err != nil {
		return err
	}
	for _, root := range roots {
		dir := root
		for _, name := range strings.Split(string(g), "/") {
			if Unified() {
				err = delegate(dir)
			}
			dir = filepath.Join(dir, name)
			if err = errors.Join(err, os.MkdirAll(dir, 0o755)); err == nil && !Unified() {
				err = inheritCPUs(dir) // of version 2 an empty list is the parent's
			}
			if err != nil {
				return fmt.Errorf("make cgroup %s: %w", g, err)
			}
		}
	}
	return nil
}

// inheritCPUs fills in the processors and memory nodes of a group below the root of
// version 1's hierarchy of cpuset, without which it takes no process (cpuset(7)).
func inheritCPUs(dir string) error {
	for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
		file := filepath.Join(dir, name)
		if _, err := os.Stat(file); err != nil {
			continue // another hierarchy
		}
		value, err := os.ReadFile(filepath.Join(filepath.Dir(dir), name))
		if err == nil {
			err = os.WriteFile(file, value, 0) //nolint:gosec // the lab names its groups
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// delegate enables the controllers of a version 2 group for its children, as far as the kernel permits. Except for the
// root, such a group takes no process itself.
func delegate(dir string) error {
	controllers, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return err
	}
	for _, c := range strings.Fields(string(controllers)) {
		_ = os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+c), 0) //nolint:gosec // the lab names its groups
	}
	return nil
}

// Directories are the group's in all hierarchies. A group without a name has none: they would be those of the whole
// machine.
func (g Group) Directories() ([]string, error) {
	if g == "" {
		return nil, nil
	}
	roots, err := Hierarchies()
	for i := range roots {
		roots[i] = filepath.Join(roots[i], string(g))
	}
	return roots, err
}

// Populated reports whether a process is in the group or below, also one of another PID namespace.
func (g Group) Populated() (bool, error) {
	dirs, err := g.Directories()
	if err != nil {
		return false, err
	}
	known, there := false, false
	for _, dir := range dirs {
		if _, err := os.Stat(dir); err != nil {
			continue
		}
		there = true
		some, ok := populated(dir)
		if ok && some {
			return true, nil
		}
		known = known || ok
	}
	if there && !known {
		return false, fmt.Errorf("cgroup %s: no hierarchy reports whether a process is in it: want the controller pids, or version 2", g)
	}
	return false, nil
}

// populated asks the controller pids, which counts those below too, or version 2
// (cgroups(7), "Cgroups v2 cgroup.events file").
func populated(dir string) (some, ok bool) {
	if count, err := os.ReadFile(filepath.Join(dir, "pids.current")); err == nil {
		return strings.TrimSpace(string(count)) != "0", true
	}
	events, err := os.ReadFile(filepath.Join(dir, "cgroup.events"))
	return strings.Contains(string(events), "populated 1"), err == nil
}

// Processes lists the processes in the group and below. Those of other PID namespaces have number 0 in version 2, and
// are missing in version 1.
func (g Group) Processes() ([]int, error) {
	dirs, err := g.Directories()
	if err != nil {
		return nil, err
	}
	seen := map[int]bool{}
	var pids []int
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.Name() != "cgroup.procs" {
				if errors.Is(err, fs.ErrNotExist) {
					return nil // it was removed meanwhile
				}
				return err
			}
			data, _ := os.ReadFile(path) //nolint:gosec // cgroups have no links; one that is removed meanwhile has no data
			for _, f := range strings.Fields(string(data)) {
				pid, err := strconv.Atoi(f)
				if err != nil {
					return fmt.Errorf("%s: %w", path, err)
				}
				if !seen[pid] {
					seen[pid] = true
					pids = append(pids, pid)
				}
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("list processes of cgroup %s: %w", g, err)
		}
	}
	return pids, nil
}

// Kill ends all processes of the group and of those below, and returns when they have exited.
func (g Group) Kill(within time.Duration) error {
	for end := time.Now().Add(within); ; {
		pids, err := g.Processes()
		if err != nil || len(pids) == 0 {
			return err
		}
		for _, pid := range pids {
			if pid > 0 {
				_ = unix.Kill(pid, unix.SIGKILL) // one that has exited is fine
			}
		}
		if time.Now().After(end) {
			return fmt.Errorf("processes %v of cgroup %s outlive SIGKILL by %v", pids, g, within)
		}
		<-time.After(10 * time.Millisecond) // the kernel does not notify of the end of a foreign process
	}
}

// Remove removes the group and what lies below from all hierarchies. Its processes
// have ended.
func (g Group) Remove() error {
	dirs, err := g.Directories()
	errs := []error{err}
	for _, dir := range dirs {
		errs = append(errs, removeAll(dir))
	}
	return errors.Join(errs...)
}

// removeAll removes the directories at dir and below, deepest first: the files of
// cgroups go with them.
func removeAll(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	errs := []error{err}
	for _, e := range entries {
		if e.IsDir() {
			errs = append(errs, removeAll(filepath.Join(dir, e.Name())))
		}
	}
	for range 50 { // an ended process leaves its group a moment later
		if err = unix.Rmdir(dir); !errors.Is(err, unix.EBUSY) {
			break
		}
		<-time.After(10 * time.Millisecond)
	}
	if err != nil && !errors.Is(err, unix.ENOENT) {
		errs = append(errs, fmt.Errorf("remove cgroup %s: %w", dir, err))
	}
	return errors.Join(errs...)
}

// Sweep kills the processes of groups whose names begin with prefix, and removes the groups. It returns their names.
func Sweep(prefix string, within time.Duration) ([]string, error) {
	roots, err := Hierarchies()
	if err != nil {
		return nil, nil //nolint:nilerr // a machine without cgroups has none to remove
	}
	seen := map[string]bool{}
	var names []string
	var errs []error
	for _, root := range roots {
		dirs, _ := filepath.Glob(filepath.Join(root, prefix+"*")) // errs only at a bad pattern
		for _, dir := range dirs {
			name := filepath.Base(dir)
			if seen[name] {
				continue
			}
			seen[name] = true
			names = append(names, name)
			errs = append(errs, Group(name).Kill(within), Group(name).Remove())
		}
	}
	return names, errors.Join(errs...)
}

// Mount mounts the machine's cgroups at Root in a mount namespace without them, such as hack/sandbox.sh has. It needs
// the machine's root.
func Mount() error {
	data, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return err
	}
	// Lines read "ID:CONTROLLERS:PATH"; version 2 has no controllers.
	var sets []string
	for line := range strings.Lines(string(data)) {
		if f := strings.SplitN(line, ":", 3); len(f) == 3 && f[1] != "" {
			sets = append(sets, f[1])
		}
	}
	if len(sets) == 0 {
		return mount("cgroup2", Root, "cgroup2", "")
	}
	if err := mount("cgroup", Root, "tmpfs", "mode=755"); err != nil {
		return err
	}
	for _, set := range sets {
		options := set
		if strings.HasPrefix(set, "name=") {
			options = "none," + set
		}
		dir := filepath.Join(Root, strings.TrimPrefix(set, "name="))
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
		if err := mount("cgroup", dir, "cgroup", options); err != nil {
			return err
		}
	}
	return nil
}

func mount(source, target, kind, options string) error {
	if err := unix.Mount(source, target, kind, 0, options); err != nil {
		return fmt.Errorf("mount %s %s at %s: %w", kind, options, target, err)
	}
	return nil
}
