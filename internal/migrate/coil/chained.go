package coil

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/statefile"
)

// Where Coil is chained behind another network's plugins, for egress alone, no pod is adopted: each keeps its interface
// and its tunnels. The configuration loses Coil's plugin, which fails without coild.

// aside ends the name of the file beside the configuration that keeps it as it was. Container runtimes do not read it, and it
// survives a reboot, unlike the state directory.
const aside = ".berth"

// unchain removes Coil's plugin from another network's configuration, and from one that the network wrote while an earlier call was
// killed.
func (n *Node) unchain(s state) (changed []string, err error) {
	kept, err := n.chainedFiles()
	if err != nil {
		return nil, err
	}
	confs := map[string]bool{}
	for _, path := range kept {
		confs[strings.TrimSuffix(path, aside)] = true
	}
	if s.chained {
		confs[s.conf] = true
	}
	for _, conf := range slices.Sorted(maps.Keys(confs)) {
		did, err := edit(conf, func(was []byte) ([]byte, error) { return setAside(conf, was) })
		if did {
			changed = append(changed, "removed Coil's plugin from "+conf)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return changed, err
		}
	}
	return changed, nil
}

// setAside keeps the content of a configuration beside it, and returns it without Coil's plugin.
func setAside(conf string, was []byte) ([]byte, error) {
	if _, at := parseConflist(was); at <= 0 {
		return was, nil
	}
	info, err := os.Stat(conf)
	if err == nil {
		err = statefile.Replace(conf+aside, was, info.Mode().Perm())
	}
	if err != nil {
		return nil, err
	}
	without, _, err := unchained(was)
	return without, err
}

// unchained returns a configuration without Coil's plugin, and the plugin.
func unchained(data []byte) (without []byte, removed any, err error) {
	list, plugins, err := parsePlugins(data)
	if err != nil {
		return nil, nil, err
	}
	list["plugins"] = slices.DeleteFunc(plugins, func(p any) bool {
		m, _ := p.(map[string]any)
		if m["type"] != plugin {
			return false
		}
		removed = p
		return true
	})
	without, err = encode(list)
	return without, removed, err
}

// chainedAgain returns a configuration with Coil's plugin as it was. If the other network has changed its configuration
// meanwhile, the plugin is its last one again.
func chainedAgain(is, was []byte) ([]byte, error) {
	without, coils, err := unchained(was)
	if err != nil || bytes.Equal(is, without) {
		return was, err
	}
	if _, at := parseConflist(is); at >= 0 {
		return is, nil
	}
	list, plugins, err := parsePlugins(is)
	if err != nil {
		return nil, err
	}
	list["plugins"] = append(plugins, coils)
	return encode(list)
}

func parsePlugins(data []byte) (list map[string]any, plugins []any, err error) {
	if err := json.Unmarshal(data, &list); err != nil {
		return nil, nil, err
	}
	plugins, _ = list["plugins"].([]any)
	return list, plugins, nil
}

func encode(list map[string]any) ([]byte, error) {
	text, err := json.MarshalIndent(list, "", "  ")
	return append(text, '\n'), err
}

// draft ends the name of the file that replaces a configuration, and then holds what it replaced.
const draft = aside + ".new"

// edit replaces the content of a file that the other network's daemon may write at any time. What it writes meanwhile is
// changed as well, not lost, also if edit is killed: a file that it writes has the time of the one from which it comes, so a
// later draft is what the network wrote.
func edit(path string, change func(was []byte) ([]byte, error)) (changed bool, err error) {
	path, err = filepath.EvalSymlinks(path)
	if err != nil {
		return false, err
	}
	was, err := readVersion(path)
	if err != nil {
		return false, err
	}
	next, expected := path+draft, was.data
	switch left, err := readVersion(next); {
	case err == nil && left.info.ModTime().After(was.info.ModTime()):
		was = left
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return false, err
	}
	for {
		want, err := change(was.data)
		if err != nil {
			return changed, fmt.Errorf("%s: %w", path, err)
		}
		if bytes.Equal(want, expected) {
			return changed, removeDraft(path)
		}
		if err := was.write(next, want); err != nil {
			return changed, err
		}
		if err := failpoint.Hit("coil.draft.after"); err != nil {
			return changed, err
		}
		if err := statefile.Exchange(next, path); err != nil {
			return changed, errors.Join(err, removeDraft(path))
		}
		changed = true
		if err := failpoint.Hit("coil.exchange.after"); err != nil {
			return changed, err
		}
		found, err := readVersion(next)
		if err != nil {
			return changed, err
		}
		if bytes.Equal(found.data, expected) {
			return changed, removeDraft(path)
		}
		was, expected = found, want
	}
}

// version is what a file was at a time.
type version struct {
	data []byte
	info fs.FileInfo // not later than data
}

func readVersion(path string) (v version, err error) {
	if v.info, err = os.Lstat(path); err == nil {
		v.data, err = statefile.Read(path)
	}
	return v, err
}

// write replaces a file at once, with the permissions and the time of v.
func (v version) write(path string, data []byte) error {
	tmp := path + ".new"
	err := statefile.Create(tmp, data, v.info.Mode().Perm())
	if err == nil {
		err = os.Chmod(tmp, v.info.Mode().Perm()) // despite the umask
	}
	if err == nil {
		err = os.Chtimes(tmp, time.Time{}, v.info.ModTime())
	}
	if err == nil {
		err = os.Rename(tmp, path)
	}
	return err
}

// removeDraft removes what edit left beside a file.
func removeDraft(path string) (err error) {
	for _, left := range []string{path + draft, path + draft + ".new"} {
		if failed := os.Remove(left); !errors.Is(failed, fs.ErrNotExist) {
			err = errors.Join(err, failed)
		}
	}
	return err
}

// rechain undoes unchain.
func (n *Node) rechain() (changed []string, err error) {
	kept, err := n.chainedFiles()
	for _, path := range kept {
		conf := strings.TrimSuffix(path, aside)
		was, err := statefile.Read(path)
		if err != nil {
			return changed, err
		}
		switch _, err = edit(conf, func(is []byte) ([]byte, error) { return chainedAgain(is, was) }); {
		case errors.Is(err, fs.ErrNotExist):
			err = errors.Join(os.Rename(path, conf), removeDraft(conf))
		case err == nil:
			err = os.Remove(path)
		}
		if err != nil {
			return changed, err
		}
		changed = append(changed, "restored "+conf)
	}
	return changed, err
}

// forgetChained removes former configurations.
func (n *Node) forgetChained() error {
	kept, err := n.chainedFiles()
	for _, path := range kept {
		conf := strings.TrimSuffix(path, aside)
		if target, failed := filepath.EvalSymlinks(conf); failed == nil {
			conf = target
		}
		err = errors.Join(err, removeDraft(conf), os.Remove(path))
	}
	return err
}

// chainedFiles returns the files that keep a configuration with Coil's plugin.
func (n *Node) chainedFiles() (list []string, err error) {
	found, err := filepath.Glob(filepath.Join(n.cfg.ConfFolder, "*"+aside))
	for _, path := range found {
		data, failed := statefile.Read(path)
		if failed != nil {
			err = errors.Join(err, failed)
			continue
		}
		if _, at := parseConflist(data); at > 0 {
			list = append(list, path)
		}
	}
	return list, err
}
