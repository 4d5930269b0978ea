//go:build e2e

package e2e

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

// cgroupRoot is where runtimes look for cgroups. The sandbox leaves it empty.
const cgroupRoot = "/sys/fs/cgroup"

// treePrefix begins the name of the cgroup that all of one run are below.
const treePrefix = "berth-e2e-"

// mountCgroups mounts the machine's cgroups where runtimes look for them: one
// hierarchy a controller set (cgroups(7), version 1), or the one of version 2.
func mountCgroups() error {
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
		return unix.Mount("cgroup2", cgroupRoot, "cgroup2", 0, "")
	}
	if err := unix.Mount("cgroup", cgroupRoot, "tmpfs", 0, "mode=755"); err != nil {
		return err
	}
	for _, set := range sets {
		options := set
		if strings.HasPrefix(set, "name=") {
			options = "none," + set
		}
		dir := filepath.Join(cgroupRoot, strings.TrimPrefix(set, "name="))
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
		if err := unix.Mount("cgroup", dir, "cgroup", 0, options); err != nil {
			return fmt.Errorf("mount the hierarchy of %s: %w", set, err)
		}
	}
	return nil
}

// hierarchies lists the roots of all hierarchies.
func hierarchies() ([]string, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(cgroupRoot, &st); err != nil {
		return nil, err
	}
	if st.Type == unix.CGROUP2_SUPER_MAGIC {
		return []string{cgroupRoot}, nil
	}
	return filepath.Glob(cgroupRoot + "/*")
}

// tracker is the root of the hierarchy by which processes are found again:
// whatever they start is in their cgroup too.
func tracker() string {
	if pids := filepath.Join(cgroupRoot, "pids"); isDir(pids) {
		return pids
	}
	if all, err := hierarchies(); err == nil && len(all) > 0 {
		return all[0]
	}
	return cgroupRoot
}

func isDir(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.IsDir()
}

// cgroup is a path below the root of every hierarchy.
type cgroup string

// join moves a process there, in the tracker's hierarchy.
func (g cgroup) join(pid int) error {
	dir := filepath.Join(tracker(), string(g))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0)
}

// processes lists all that are there or below. Those of other process
// namespaces have the number 0.
func (g cgroup) processes() (pids []int, err error) {
	err = filepath.WalkDir(filepath.Join(tracker(), string(g)), func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Name() == "cgroup.procs" {
			data, _ := os.ReadFile(path) // one that is removed meanwhile has none
			for _, f := range strings.Fields(string(data)) {
				pid, err := strconv.Atoi(f)
				if err != nil {
					return err
				}
				pids = append(pids, pid)
			}
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
	return pids, err
}

// kill ends all that are there or below, and returns when they are gone.
func (g cgroup) kill(within time.Duration) error {
	for end := time.Now().Add(within); ; {
		pids, err := g.processes()
		if err != nil || len(pids) == 0 {
			return err
		}
		for _, pid := range pids {
			if pid > 0 {
				_ = unix.Kill(pid, unix.SIGKILL) // one that is gone already is what we want
			}
		}
		if time.Now().After(end) {
			return fmt.Errorf("processes %v of cgroup %s outlive SIGKILL by %v", pids, g, within)
		}
		<-time.After(10 * time.Millisecond) // the kernel's edge: it tells nobody when a foreign process is gone
	}
}

// children lists what lies below, in any hierarchy.
func (g cgroup) children() (found []string, err error) {
	roots, err := hierarchies()
	for _, root := range roots {
		dirs, _ := filepath.Glob(filepath.Join(root, string(g), "*"))
		for _, d := range dirs {
			if isDir(d) {
				found = append(found, d)
			}
		}
	}
	return found, err
}

// remove removes it and what lies below from all hierarchies.
func (g cgroup) remove() error {
	roots, err := hierarchies()
	errs := []error{err}
	for _, root := range roots {
		errs = append(errs, removeGroups(filepath.Join(root, string(g))))
	}
	return errors.Join(errs...)
}

// removeGroups removes the directories at dir and below, deepest first: the
// files of cgroups go with them.
func removeGroups(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	errs := []error{err}
	for _, e := range entries {
		if e.IsDir() {
			errs = append(errs, removeGroups(filepath.Join(dir, e.Name())))
		}
	}
	if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) {
		errs = append(errs, fmt.Errorf("remove cgroup %s: %w", dir, err))
	}
	return errors.Join(errs...)
}

// sweepCgroups removes what runs that were killed have left: cgroups belong to
// no namespace that could take them along. Those with processes are alive.
func sweepCgroups() error {
	roots, err := hierarchies()
	errs := []error{err}
	for _, root := range roots {
		old, _ := filepath.Glob(filepath.Join(root, treePrefix+"*"))
		for _, dir := range old {
			g := cgroup(filepath.Base(dir))
			if pids, err := g.processes(); err == nil && len(pids) == 0 {
				errs = append(errs, g.remove())
			}
		}
	}
	return errors.Join(errs...)
}
