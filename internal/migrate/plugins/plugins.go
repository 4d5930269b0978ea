// Package plugins removes the CNI plugins that a former system installed on a node.
package plugins

import (
	"bytes"
	"debug/buildinfo"
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

// Folders are a node's folders with plugins and their configurations.
type Folders struct {
	Bin  string // plugins
	Conf string // CNI configurations
	// Results are libcni's results of running pods, with the configuration of each. They count if the container runtime
	// uses them, as CRI-O does: it ends a pod with the plugins that created it. Empty: it uses the configurations only.
	Results string
}

// Remove removes the files of a system: plugins, and programs beside them, by their names. It keeps one that a configuration
// uses, and a program that is built from another Go module than the system's, and returns why.
func (f Folders) Remove(module string, names ...string) (removed, kept []string, err error) {
	for _, name := range names {
		path := filepath.Join(f.Bin, name)
		if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		why := foreign(path, module)
		if why == "" {
			if why, err = f.user(name); err != nil {
				return removed, kept, err
			}
		}
		if why != "" {
			kept = append(kept, path+": "+why)
			continue
		}
		if err := os.Remove(path); err != nil {
			return removed, kept, err
		}
		removed = append(removed, "removed "+path)
	}
	return removed, kept, nil
}

// foreign returns why a file does not belong to a module, or "". A file without build information, such as a script, is
// identified by its name alone.
func foreign(path, module string) string {
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return ""
	}
	for _, of := range []string{info.Path, info.Main.Path} {
		if of == module || strings.HasPrefix(of, module+"/") {
			return ""
		}
	}
	return fmt.Sprintf("it is built from %s, not from %s", info.Path, module)
}

// user returns what uses a plugin, or "".
func (f Folders) user(plugin string) (string, error) {
	for _, in := range []struct {
		folder, what string
		uses         func(data []byte, plugin string) bool
		suffixes     []string
	}{
		{f.Conf, "it is used by %s", uses, []string{".conf", ".conflist", ".json"}},
		{f.Results, "the container runtime ends a pod with it, according to %s; remove it once no such pod is left", usedBefore, []string{""}},
	} {
		if in.folder == "" {
			continue
		}
		found, err := search{in.uses, plugin, in.suffixes, map[string]bool{}}.at(in.folder)
		if err != nil {
			return "", fmt.Errorf("look for configurations that use %s: %w", plugin, err)
		}
		if found != "" {
			return fmt.Sprintf(in.what, found), nil
		}
	}
	return "", nil
}

// search looks for files that use a plugin. It follows links, as libcni does.
type search struct {
	uses     func(data []byte, plugin string) bool
	plugin   string
	suffixes []string        // of files
	seen     map[string]bool // folders, which links may lead to repeatedly
}

// at returns the first file at or below a path that uses the plugin, or "". A link that does not resolve counts: whether
// its file uses the plugin is unknown, for example because only the container runtime sees the file.
func (s search) at(path string) (found string, err error) {
	resolved, _ := filepath.EvalSymlinks(path)
	if resolved == "" {
		if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
			return "", nil
		}
		return path + ", a link that does not resolve", nil
	}
	info, err := os.Stat(resolved)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", nil
	case err != nil:
		return "", err
	case info.IsDir():
		return s.below(path, resolved)
	case !info.Mode().IsRegular() || !slices.ContainsFunc(s.suffixes, func(suffix string) bool { return strings.HasSuffix(path, suffix) }):
		return "", nil
	}
	data, err := statefile.Read(resolved)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err == nil && s.uses(data, s.plugin) {
		found = path
	}
	return found, err
}

func (s search) below(folder, resolved string) (found string, err error) {
	if s.seen[resolved] {
		return "", nil
	}
	s.seen[resolved] = true
	entries, err := os.ReadDir(resolved)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	for _, e := range entries {
		if found, err := s.at(filepath.Join(folder, e.Name())); err != nil || found != "" {
			return found, err
		}
	}
	return "", err
}

// uses reports whether a configuration names a plugin as a type, at any depth: Multus has delegates. A configuration that is not
// JSON uses each plugin that it mentions.
func uses(data []byte, plugin string) bool {
	var v any
	if json.Unmarshal(data, &v) != nil {
		return bytes.Contains(data, []byte(plugin))
	}
	return named(v, plugin)
}

func named(v any, plugin string) bool {
	switch v := v.(type) {
	case map[string]any:
		if v["type"] == plugin {
			return true
		}
		for _, of := range v {
			if named(of, plugin) {
				return true
			}
		}
	case []any:
		return slices.ContainsFunc(v, func(of any) bool { return named(of, plugin) })
	}
	return false
}

// usedBefore reports whether the configuration of a result of libcni uses a plugin.
func usedBefore(data []byte, plugin string) bool {
	var result struct {
		Config []byte `json:"config"`
	}
	return json.Unmarshal(data, &result) == nil && uses(result.Config, plugin)
}

// EndsByResult reports whether the container runtime at a CRI socket may end pods with the configuration of their results.
// An empty socket is an unknown runtime.
func EndsByResult(socket string) bool {
	return socket == "" || strings.Contains(filepath.Base(socket), "crio")
}
