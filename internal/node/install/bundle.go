package install

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/berthnet/berth/internal/statefile"
)

// A node's image may lack plugins that its pods need. Berth installs those that come with berthd into
// BinDir, and updates them with later versions. It never changes other files: a list in BinDir,
// written before each installation, has the hashes of Berth's files.

// loopback is a plugin that a runtime needs for a pod's lo interface, in addition to a network's plugins (containerd 1.x).
const loopback = "loopback"

// bundledName is a file in BinDir with the hexadecimal SHA-256 of the plugins that Berth installs and of those
// that they replace: after a crash either may be in place.
const (
	bundledName = ".berth-plugins.json"
	bundledMode = 0o644
)

// installBundled installs plugins that dir has and BinDir lacks. It returns the changed paths,
// and the plugins that could not be installed, with the reason.
func installBundled(dir, binDir string, plugins []string) (changed []string, failed []Unusable) {
	ours := readBundled(binDir)
	for _, name := range plugins {
		path := filepath.Join(binDir, name)
		switch did, err := installOne(filepath.Join(dir, name), path, ours); {
		case err != nil:
			failed = append(failed, Unusable{name, fmt.Sprintf("installing %s: %s", path, err)})
		case did:
			changed = append(changed, path)
		}
	}
	return changed, failed
}

// installOne installs one plugin, unless the bundle does not have it or the existing file is not Berth's.
func installOne(from, path string, ours map[string][]string) (changed bool, err error) {
	source, err := openSource(from)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer func() { _ = source.Close() }()
	name := filepath.Base(path)
	there, err := sumOf(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return false, err
	case !slices.Contains(ours[name], there):
		return false, nil
	}
	sum, err := sumAll(source)
	if err != nil {
		return false, err
	}
	if !slices.Contains(ours[name], sum) {
		now := []string{sum}
		if there != "" {
			now = append(now, there)
		}
		ours[name] = now
		if err := writeBundled(filepath.Dir(path), ours); err != nil {
			return false, err
		}
	}
	if _, err := source.Seek(0, io.SeekStart); err != nil {
		return false, fmt.Errorf("reading it again: %w", err)
	}
	return put(path, source, pluginMode)
}

// sumOf is sumAll of the file at path. Anything but a regular file, such as a dangling link, belongs to
// other software.
func sumOf(path string) (string, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() {
		return "not a regular file", nil
	}
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	return sumAll(f)
}

// sumAll returns the hexadecimal SHA-256 of the whole content.
func sumAll(r io.Reader) (string, error) {
	h := sha256.New()
	if _, err := io.Copy(h, r); err != nil {
		return "", fmt.Errorf("reading it: %w", err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// readBundled returns the hashes of the plugins that Berth installed into a directory. If they cannot be
// read, all files there are treated as foreign.
func readBundled(binDir string) map[string][]string {
	ours := map[string][]string{}
	data, err := statefile.Read(filepath.Join(binDir, bundledName))
	if err != nil || json.Unmarshal(data, &ours) != nil || ours == nil { // JSON null makes it nil
		return map[string][]string{}
	}
	return ours
}

func writeBundled(binDir string, ours map[string][]string) error {
	data, err := json.Marshal(ours)
	if err == nil {
		_, err = put(filepath.Join(binDir, bundledName), bytes.NewReader(data), bundledMode)
	}
	if err != nil {
		return fmt.Errorf("recording the installed plugins: %w", err)
	}
	return nil
}
