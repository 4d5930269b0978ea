package cgroup

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Mount mounts the machine's cgroups at Root, for who is in a mount namespace of its
// own without them, such as hack/sandbox.sh: one hierarchy a set of controllers
// (version 1), or the one of version 2. It takes the machine's root.
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
