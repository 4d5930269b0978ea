package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// dirs are the directories of a testbed on the media that they have on a node: on a disk, replacing a
// record takes half of an ADD's time.
type dirs struct {
	run, data string // on a tmpfs, like /run with Berth's records; on a disk, like /var/lib/cni with host-local's and libcni's
	mounted   bool   // run is
	plugins   string // in data, like /opt/cni/bin
}

// makeAll makes the directories and mounts the tmpfs.
func (d *dirs) makeAll() (err error) {
	for _, dir := range []*string{&d.run, &d.data} {
		if *dir, err = os.MkdirTemp("", "bench-"); err != nil {
			return fmt.Errorf("make a directory for the lab: %w", err)
		}
	}
	if err := unix.Mount("tmpfs", d.run, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755"); err != nil {
		return fmt.Errorf("mount a tmpfs on %s: %w", d.run, err)
	}
	d.mounted = true
	return nil
}

// removeAll undoes makeAll, however far it came.
func (d *dirs) removeAll() (err error) {
	if d.mounted {
		if err = unix.Unmount(d.run, unix.MNT_DETACH); err != nil {
			err = fmt.Errorf("unmount %s: %w", d.run, err)
		}
	}
	err = errors.Join(err, os.RemoveAll(d.run), os.RemoveAll(d.data)) // an empty name is no error
	*d = dirs{}
	return err
}

// install copies plugins to one directory on a disk, as an installer does on a node. The directory and the
// writer of a program matter: the kernel maps smaller pages of a file on a tmpfs, or of one as the linker
// leaves it, and the same plugin then starts up to a tenth slower.
func (d *dirs) install(programs ...string) error {
	d.plugins = filepath.Join(d.data, "bin")
	if err := os.MkdirAll(d.plugins, 0o755); err != nil {
		return fmt.Errorf("make the plugins' directory: %w", err)
	}
	dir, err := os.OpenRoot(d.plugins)
	if err != nil {
		return fmt.Errorf("open the plugins' directory: %w", err)
	}
	defer dir.Close()
	for _, from := range programs {
		program, err := os.ReadFile(from)
		if err != nil {
			return fmt.Errorf("install a plugin: %w", err)
		}
		if err := dir.WriteFile(filepath.Base(from), program, 0o755); err != nil {
			return fmt.Errorf("install a plugin: %w", err)
		}
	}
	return nil
}
