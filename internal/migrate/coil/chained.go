package coil

import (
	"encoding/json"
	"errors"
	"fmt"
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
	data, err := os.ReadFile(s.conf)
	if err != nil {
		return nil, err
	}
	var list map[string]any
	if err := json.Unmarshal(data, &list); err != nil {
		return nil, fmt.Errorf("%s: %w", s.conf, err)
	}
	plugins, _ := list["plugins"].([]any)
	list["plugins"] = slices.DeleteFunc(plugins, func(p any) bool {
		m, _ := p.(map[string]any)
		return m["type"] == plugin
	})
	text, err := json.MarshalIndent(list, "", "  ")
	if err != nil {
		return nil, err
	}
	if err := statefile.Replace(s.conf+aside, data, 0o644); err != nil {
		return nil, err
	}
	return []string{"removed Coil's plugin from " + s.conf}, statefile.Replace(s.conf, append(text, '\n'), 0o644)
}

// rechain undoes unchain.
func (n *Node) rechain() (changed []string, err error) {
	kept, err := n.chainedFiles()
	for _, path := range kept {
		was := strings.TrimSuffix(path, aside)
		if err := os.Rename(path, was); err != nil {
			return changed, err
		}
		changed = append(changed, "restored "+was)
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
