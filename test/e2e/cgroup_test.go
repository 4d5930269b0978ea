//go:build e2e

package e2e

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"

	"github.com/berthnet/berth/lab/run/cgroup"
)

// treePrefix begins the name of the cgroup that all of one run are below.
const treePrefix = "berth-e2e-"

// join moves a process to a group that it makes.
func join(g cgroup.Group, pid int) error {
	if err := g.Create(); err != nil {
		return err
	}
	dirs, err := g.Directories()
	errs := []error{err}
	for _, dir := range dirs {
		errs = append(errs, os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0))
	}
	return errors.Join(errs...)
}

// children lists what lies below a group, in any hierarchy.
func children(g cgroup.Group) (found []string, err error) {
	dirs, err := g.Directories()
	for _, dir := range dirs {
		below, _ := filepath.Glob(filepath.Join(dir, "*"))
		for _, d := range below {
			if st, err := os.Stat(d); err == nil && st.IsDir() {
				found = append(found, d)
			}
		}
	}
	return found, err
}

// sweepCgroups removes what runs that were killed have left: cgroups belong to
// no namespace that could take them along. Those with processes are alive.
func sweepCgroups() error {
	roots, err := cgroup.Hierarchies()
	errs := []error{err}
	for _, root := range roots {
		old, _ := filepath.Glob(filepath.Join(root, treePrefix+"*"))
		for _, dir := range old {
			g := cgroup.Group(filepath.Base(dir))
			if some, err := g.Populated(); err == nil && !some {
				errs = append(errs, g.Remove())
			}
		}
	}
	return errors.Join(errs...)
}
