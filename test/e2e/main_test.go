//go:build e2e

package e2e

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/lab/run/cgroup"
	"github.com/berthnet/berth/test/harness"
)

// tree is the cgroup of this run.
var tree cgroup.Group

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) (code int) {
	undo, err := prepare()
	defer func() {
		if err := undo(); err != nil {
			fmt.Println("FAIL: left behind:", err)
			code = 1
		}
	}()
	if err != nil {
		fmt.Println("NOT RUN: tests against containerd:", err)
		fmt.Println("FAIL")
		return 1
	}
	before, err := mountsBelow("/")
	if err != nil {
		fmt.Println("FAIL:", err)
		return 1
	}
	code = harness.Main(m, "berthd", "berth", "berth-operator")
	after, err := mountsBelow("/")
	after = slices.DeleteFunc(after, func(m string) bool { return slices.Contains(before, m) })
	if err != nil || len(after) > 0 {
		fmt.Printf("FAIL: mounts left behind: %v (%v)\n", after, err)
		code = 1
	}
	return code
}

// prepare checks for the programs and makes the paths that runtimes expect. undo removes what outlives
// the sandbox.
func prepare() (undo func() error, err error) {
	undo = func() error { return nil }
	for program, of := range map[string]string{"containerd": "containerd", "ctr": "containerd", "runc": "runc", "podman": "podman"} {
		if _, err := exec.LookPath(program); err != nil {
			return undo, fmt.Errorf("no program %s: install the Debian package %s (make e2e does): %w", program, of, err)
		}
	}
	var st unix.Statfs_t
	if err := unix.Statfs(cgroup.Root, &st); err != nil || st.Type != unix.SYSFS_MAGIC {
		return undo, errors.Join(errors.New("this is not the sandbox: run `make e2e`, which keeps /run/containerd, /var/lib/cni and mounts off the machine"), err)
	}
	if err := cgroup.Mount(); err != nil {
		return undo, fmt.Errorf("mount the cgroups that runc needs, which takes the machine's root: %w", err)
	}
	if err := sweepCgroups(); err != nil {
		return undo, fmt.Errorf("remove the cgroups of an earlier run: %w", err)
	}
	id := make([]byte, 4)
	_, _ = rand.Read(id) // never fails (crypto/rand)
	tree = cgroup.Group(treePrefix + hex.EncodeToString(id))
	undo = func() error { return errors.Join(tree.Kill(10*time.Second), tree.Remove()) }
	for _, dir := range []string{
		"/var/lib/cni", // of libcni in containerd and podman
		"/run/netns",   // podman would mount it on itself, above the namespaces that are there
	} {
		uncover, err := cover(dir)
		last := undo
		undo = func() error { return errors.Join(last(), uncover()) }
		if err != nil {
			return undo, err
		}
	}
	return undo, nil
}

// cover mounts an empty file system at dir, which uncover removes, with dir if it was not there.
func cover(dir string) (uncover func() error, err error) {
	err = os.Mkdir(dir, 0o755)
	made := err == nil
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return func() error { return nil }, err
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=755"); err != nil {
		return func() error { return nil }, fmt.Errorf("mount a tmpfs at %s: %w", dir, err)
	}
	return func() error {
		err := unix.Unmount(dir, unix.MNT_DETACH)
		if err == nil && made {
			err = os.Remove(dir)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("uncover %s: %w", dir, err)
		}
		return nil
	}, nil
}

// mountsBelow lists what is mounted at dir and below, the latest first.
func mountsBelow(dir string) (found []string, err error) {
	data, err := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(data)) {
		f := strings.Fields(line) // proc_pid_mountinfo(5): the fifth is where
		if len(f) > 4 && (f[4] == dir || strings.HasPrefix(f[4], strings.TrimSuffix(dir, "/")+"/")) {
			found = append([]string{f[4]}, found...)
		}
	}
	return found, err
}
