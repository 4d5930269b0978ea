// Package statefile reads and writes the files that programs need after a restart. It only reads
// regular files: a FIFO or a device in their place would block a program or never end.
package statefile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// Largest is the maximum size of a file, about ten times the size of the largest one in use, the
// inventory of a big node.
const Largest = 16 << 20

// Read returns the content of a regular file. The error for a missing one is fs.ErrNotExist.
func Read(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is %s, expected a regular file", path, info.Mode().Type())
	}
	data, err := io.ReadAll(io.LimitReader(f, Largest+1))
	if err == nil && len(data) > Largest {
		err = fmt.Errorf("%s is larger than %d bytes", path, Largest)
	}
	return data, err
}

// Version is the format of JSON files of this package. A file of another version is not read, and its
// reader ignores it like a damaged one. Within a version fields are only added, and readers ignore
// unknown fields, so earlier and later programs can read the file. A file without a version is of the
// first, which had none at the beginning.
const Version = 1

// Encode returns an object as JSON with its version.
func Encode(v any) ([]byte, error) {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return nil, err
	}
	rest, ok := bytes.CutPrefix(data, []byte("{\n"))
	if !ok {
		return nil, fmt.Errorf("%T: expected an object with fields", v)
	}
	return append(fmt.Appendf(nil, "{\n  \"version\": %d,\n", Version), rest...), nil
}

// Decode parses the result of Encode.
func Decode(data []byte, into any) error {
	var v struct {
		Version *int `json:"version"`
	}
	if err := json.Unmarshal(data, &v); err != nil {
		return err
	}
	if v.Version != nil && *v.Version != Version {
		return fmt.Errorf("version is %d, expected %d", *v.Version, Version)
	}
	return json.Unmarshal(data, into)
}

// LoadJSON reads a value from a file of a folder, and reports whether it exists.
func LoadJSON(dir, name string, into any) (bool, error) {
	data, err := Read(filepath.Join(dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err == nil {
		err = Decode(data, into)
	}
	if err != nil {
		return false, fmt.Errorf("read %s: %w", name, err)
	}
	return true, nil
}

// ReplaceJSON writes a value to a temporary file and renames it. It creates the folder if needed. It
// does not sync, since the folder should be on a tmpfs and vanish with the kernel state.
func ReplaceJSON(dir, name string, v any) error {
	data, err := Encode(v)
	if err != nil {
		return fmt.Errorf("encode %s: %w", name, err)
	}
	tmp := filepath.Join(dir, "."+name+".new")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make the state directory: %w", err)
	}
	if err := Create(tmp, data, 0o600); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	if err := os.Rename(tmp, filepath.Join(dir, name)); err != nil {
		return fmt.Errorf("replace %s: %w", name, err)
	}
	return nil
}

// Create writes a new file, replacing one that a crash may have left. On an error the file may be
// incomplete.
func Create(path string, data []byte, mode fs.FileMode) error {
	open := func() (*os.File, error) { return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode) }
	f, err := open()
	if errors.Is(err, fs.ErrExist) {
		if err = os.Remove(path); err == nil {
			f, err = open()
		}
	}
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Close())
}

// CreateOnly creates a file at once, with a file beside it whose name ends in .new. The error is fs.ErrExist if the file exists.
func CreateOnly(path string, data []byte, mode fs.FileMode) error {
	tmp := path + ".new"
	err := Create(tmp, data, mode)
	if err == nil {
		err = os.Link(tmp, path)
	}
	if err = errors.Join(err, os.Remove(tmp)); err != nil {
		return fmt.Errorf("create %s: %w", path, err)
	}
	return nil
}

// Replace replaces a file at once, by one beside it whose name ends in .new. An existing file's permissions are kept.
func Replace(path string, data []byte, mode fs.FileMode) error {
	if info, err := os.Lstat(path); err == nil {
		mode = info.Mode().Perm()
	}
	tmp := path + ".new"
	err := Create(tmp, data, mode)
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		return fmt.Errorf("replace %s: %w", path, err)
	}
	return nil
}
