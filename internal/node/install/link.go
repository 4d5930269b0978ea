package install

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// A configuration in place tells a runtime that the node can take pods. After a
// reboot that is not so until berthd has set the node up again, and nothing of
// Berth runs before the runtime. So the configuration lies on the tmpfs that berthd
// keeps its state on, and where the runtime looks is a link to it, which leads
// nowhere after a reboot. containerd takes a link that leads nowhere for a broken
// configuration, and takes no other in its place; CRI-O passes over it.
//
// Runtimes watch the link's directory and not where it leads (inotify, of
// containerd's cniNetConfSyncer and CRI-O's ocicni). So whenever the file has
// changed the link is made anew, by a rename, which both see. It waits under its
// temporary name while the file is put in place: one that a crash leaves there
// tells the next attempt that the runtime has yet to see the change.

// putLinked is put for a file at target to which path is to be a link.
func putLinked(path, target string, content io.ReadSeeker, mode fs.FileMode) (changed bool, err error) {
	if err := os.MkdirAll(filepath.Dir(target), 0o700); err != nil {
		return false, fmt.Errorf("creating the directory that it links to: %w", err)
	}
	if done, err := isLinked(path, target, content, mode); done || err != nil {
		return false, err
	}
	if info, err := os.Lstat(path); err == nil && info.IsDir() {
		return false, errors.New("a directory of this name is in the way")
	}
	if err := os.Remove(staged(path)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("removing what an earlier attempt left: %w", err)
	}
	if err := os.Symlink(target, staged(path)); err != nil {
		return false, fmt.Errorf("making the link: %w", err)
	}
	if _, err := content.Seek(0, io.SeekStart); err != nil {
		return false, fmt.Errorf("reading it again: %w", err)
	}
	if _, err := put(target, content, mode); err != nil {
		return false, fmt.Errorf("writing %s: %w", target, err)
	}
	if err := os.Rename(staged(path), path); err != nil {
		return false, fmt.Errorf("putting the link in place: %w", err)
	}
	return true, syncDir(filepath.Dir(path))
}

// isLinked tells whether link and file are as they should be, and no attempt was
// broken off.
func isLinked(path, target string, content io.Reader, mode fs.FileMode) (bool, error) {
	if _, err := os.Lstat(staged(path)); !errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if to, err := os.Readlink(path); err != nil || to != target {
		return false, nil //nolint:nilerr // whatever else is there is replaced
	}
	return isSame(target, content, mode)
}

// unlink removes path and, if it is a link, the file that it leads to.
func unlink(path string) error {
	if to, err := os.Readlink(path); err == nil {
		if !filepath.IsAbs(to) {
			to = filepath.Join(filepath.Dir(path), to)
		}
		if err := os.Remove(to); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("removing what it links to: %w", err)
		}
	}
	return os.Remove(path)
}
