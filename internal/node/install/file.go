package install

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// openSource opens a file to copy.
func openSource(path string) (*os.File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("opening the source file: %w", err)
	}
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() || info.Size() == 0 {
		return nil, errors.Join(fmt.Errorf("%s is not a regular file or is empty", path), err, f.Close())
	}
	return f, nil
}

// put replaces path unless it is a regular file with this content and mode, and reports whether it did.
func put(path string, content io.ReadSeeker, mode os.FileMode) (changed bool, err error) {
	if err := os.Remove(staged(path)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return false, fmt.Errorf("removing the leftover of an earlier attempt: %w", err)
	}
	same, err := isSame(path, content, mode)
	if same || err != nil {
		return false, err
	}
	if _, err := content.Seek(0, io.SeekStart); err != nil {
		return false, fmt.Errorf("reading it again: %w", err)
	}
	tmp, err := stage(path, content, mode)
	if err != nil {
		return false, err
	}
	if err := os.Rename(tmp, path); err != nil {
		return false, errors.Join(fmt.Errorf("putting it in place: %w", err), os.Remove(tmp))
	}
	return true, syncDir(filepath.Dir(path))
}

// isSame reports whether path is a regular file with this content and mode.
func isSame(path string, content io.Reader, mode os.FileMode) (bool, error) {
	info, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("examining the existing file: %w", err)
	}
	if info.IsDir() {
		return false, errors.New("a directory of this name is in the way")
	}
	if info.Mode() != mode { // including the type: a symbolic link is replaced
		return false, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return false, fmt.Errorf("opening the existing file: %w", err)
	}
	defer func() { _ = f.Close() }()
	return equal(f, content)
}

// equal compares two files without reading either of them into memory as a whole.
func equal(a, b io.Reader) (bool, error) {
	x, y := make([]byte, 32<<10), make([]byte, 32<<10)
	for {
		n, errA := io.ReadFull(a, x)
		m, errB := io.ReadFull(b, y)
		if !bytes.Equal(x[:n], y[:m]) {
			return false, nil
		}
		if errA != nil || errB != nil {
			if isEnd(errA) && isEnd(errB) {
				return true, nil
			}
			return false, fmt.Errorf("comparing with the existing file: %w", errors.Join(errA, errB))
		}
	}
}

func isEnd(err error) bool { return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) }

// staged returns the name under which a file is written before it is renamed: in the same directory,
// ignored by runtimes, and always the same, so that a crash leaves at most one file, which the next
// attempt removes.
func staged(path string) string {
	return filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".new")
}

// stage writes and syncs content, and returns the name of the staged file.
func stage(path string, content io.Reader, mode os.FileMode) (tmp string, err error) {
	tmp = staged(path)
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", fmt.Errorf("creating it: %w", err)
	}
	_, err = io.Copy(f, content)
	// The mode is set after the content is written, and independently of the umask.
	if err := errors.Join(err, f.Chmod(mode), f.Sync(), f.Close()); err != nil {
		return "", errors.Join(fmt.Errorf("writing it: %w", err), os.Remove(tmp))
	}
	return tmp, nil
}

// syncDir makes a rename or removal in dir durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("opening %s: %w", dir, err)
	}
	defer func() { _ = d.Close() }()
	if err := d.Sync(); err != nil {
		return fmt.Errorf("syncing %s: %w", dir, err)
	}
	return nil
}

// A configuration file tells a runtime that the node can run pods. After a reboot that is false
// until berthd has set up the node, but the runtime starts first. Therefore the configuration is on the tmpfs
// of berthd's state, and the runtime's directory has a link to it, which dangles after a reboot.
// containerd treats a dangling link as a broken configuration and uses no other in its place; CRI-O
// ignores it.
//
// Runtimes watch the directory of the link but not its target (inotify, in containerd's
// cniNetConfSyncer and CRI-O's ocicni). Therefore, whenever the file has changed, the link is replaced by a
// rename, which both see. Its temporary name exists while the file is replaced: if a crash leaves it behind,
// the next attempt knows that the runtime has not seen the change.

// putLinked is put for a file at target, and makes path a link to it.
func putLinked(path, target string, content io.ReadSeeker, mode fs.FileMode) (changed bool, err error) {
	if err := os.MkdirAll(filepath.Dir(target), 0o700); err != nil {
		return false, fmt.Errorf("creating the directory of the link's target: %w", err)
	}
	if done, err := isLinked(path, target, content, mode); done || err != nil {
		return false, err
	}
	if info, err := os.Lstat(path); err == nil && info.IsDir() {
		return false, errors.New("a directory of this name is in the way")
	}
	if err := os.Remove(staged(path)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("removing the leftover of an earlier attempt: %w", err)
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

// isLinked reports whether link and file are correct, and no attempt was interrupted.
func isLinked(path, target string, content io.Reader, mode fs.FileMode) (bool, error) {
	if _, err := os.Lstat(staged(path)); !errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if to, err := os.Readlink(path); err != nil || to != target {
		return false, nil //nolint:nilerr // anything else is replaced
	}
	return isSame(target, content, mode)
}

// unlink removes path and, if it is a link, its target.
func unlink(path string) error {
	if to, err := os.Readlink(path); err == nil {
		if !filepath.IsAbs(to) {
			to = filepath.Join(filepath.Dir(path), to)
		}
		if err := os.Remove(to); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("removing the target of the link: %w", err)
		}
	}
	return os.Remove(path)
}
