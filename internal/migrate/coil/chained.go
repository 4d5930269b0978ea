package coil

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/berthnet/berth/internal/statefile"
)

// Where Coil is chained behind another network's plugins, for egress alone, no pod is adopted: each keeps its interface
// and its tunnels. The configuration loses Coil's plugin, which fails without coild.

// aside ends the name of the file beside the configuration that keeps it as it was. Container runtimes do not read it, and it
// survives a reboot, unlike the state directory.
const aside = ".berth"

// unchain removes Coil's plugin from another network's configuration.
func (n *Node) unchain(s state) (changed []string, err error) {
	if !s.chained {
		return nil, nil
	}
	did, err := edit(s.conf, func(was []byte) ([]byte, error) { return setAside(s.conf, was) })
	if did {
		changed = append(changed, "removed Coil's plugin from "+s.conf)
	}
	return changed, err
}

// setAside keeps the content of a configuration beside it, and returns it without Coil's plugin.
func setAside(conf string, was []byte) ([]byte, error) {
	if _, at := parseConflist(was); at < 0 {
		return was, nil
	}
	if err := statefile.Replace(conf+aside, was, 0o644); err != nil {
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

// edit replaces the content of a file that the other network's daemon may write at any time. What it writes meanwhile is
// changed as well, not lost.
func edit(path string, change func(was []byte) ([]byte, error)) (changed bool, err error) {
	was, err := statefile.Read(path)
	if err != nil {
		return false, err
	}
	for expected, next := was, path+aside+".new"; ; {
		want, err := change(was)
		if err != nil {
			return changed, fmt.Errorf("%s: %w", path, err)
		}
		if bytes.Equal(want, expected) {
			return changed, nil
		}
		if err := statefile.Replace(next, want, 0o644); err != nil {
			return changed, err
		}
		if err := statefile.Exchange(next, path); err != nil {
			return changed, errors.Join(err, os.Remove(next))
		}
		changed = true
		found, err := statefile.Read(next)
		if err == nil {
			err = os.Remove(next)
		}
		if err != nil || bytes.Equal(found, expected) {
			return changed, err
		}
		was, expected = found, want
	}
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
			err = os.Rename(path, conf)
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
		err = errors.Join(err, os.Remove(path))
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
