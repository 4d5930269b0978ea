package coil

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/berthnet/berth/internal/statefile"
)

// Where Coil is chained behind another network's plugins, for egress alone, no pod is adopted: each keeps its interface
// and its tunnels. The configuration loses Coil's plugin, which fails without coild.

// chainedFile keeps the former configuration in the state directory.
const chainedFile = "coil-chained.json"

type chainedConf struct {
	Path string `json:"path"`
	Text string `json:"text"`
}

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
	if err := statefile.ReplaceJSON(n.cfg.StateDir, chainedFile, chainedConf{s.conf, string(data)}); err != nil {
		return nil, err
	}
	return []string{"removed Coil's plugin from " + s.conf}, statefile.Replace(s.conf, append(text, '\n'), 0o644)
}

// rechain undoes unchain.
func (n *Node) rechain() (changed []string, err error) {
	var was chainedConf
	ok, err := statefile.LoadJSON(n.cfg.StateDir, chainedFile, &was)
	if err != nil || !ok {
		return nil, err
	}
	if err := statefile.Replace(was.Path, []byte(was.Text), 0o644); err != nil {
		return nil, err
	}
	return []string{"restored " + was.Path}, n.forgetChained()
}

// forgetChained removes the former configuration from the state directory.
func (n *Node) forgetChained() error {
	err := os.Remove(filepath.Join(n.cfg.StateDir, chainedFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
