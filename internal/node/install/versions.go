package install

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// All plugins of a list are called in one CNI version, which the runtime chooses: the newest version
// of the list that it supports (CNI specification 1.1.0, "Version considerations"). Therefore the list has all
// versions that each of its plugins supports, and a runtime that is upgraded in place chooses again. A
// runtime that does not know the field cniVersions (libcni below 1.2: containerd 1.x) uses cniVersion,
// so that version is one that all runtimes support.
//
// A plugin that does not support newer versions limits the list, but stays in it: the loss is STATUS and GC,
// which berthd does not need, while a pod without its host ports would be worse.

// Auto selects all CNI versions that the plugins of a configuration support.
const Auto = "auto"

// spoken are the CNI versions that berth supports, oldest first, and those of them that every Kubernetes
// runtime supports (CRI v1 came with containerd 1.6).
var (
	spoken = []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"}
	common = spoken[:3]
)

// withStatus is the first version that has STATUS and GC.
const withStatus = "1.1.0"

// answer is the result of querying a plugin of the chain.
type answer struct {
	plugin   string
	versions []string // those of spoken that it supports, oldest first
	unasked  string   // why it could not be queried, so that common is assumed; empty: it was queried
	broken   string   // why it does not work; empty: it does
	foreign  bool     // of other software: it stays, regardless of its versions
}

// chosen holds the versions and plugins of a list.
type chosen struct {
	versions []string // oldest first, at least one
	chain    []string
	leftOut  []Unusable
	held     []string // plugins that do not support newer versions
}

// Unusable is an existing plugin that cannot be used.
type Unusable struct{ Plugin, Why string }

// choose decides from the answers of a chain's plugins, in order. want is Auto or the only version of
// the list.
func choose(want string, answers []answer) chosen {
	c := chosen{versions: spoken}
	if want != Auto {
		c.versions = []string{want}
	}
	for _, a := range answers {
		both := intersection(c.versions, a.versions)
		switch {
		case a.foreign && (a.broken != "" || len(both) == 0):
			continue
		case a.broken != "":
			c.leftOut = append(c.leftOut, Unusable{a.plugin, a.broken})
			continue
		case len(both) == 0 && a.unasked != "":
			c.leftOut = append(c.leftOut, Unusable{a.plugin, fmt.Sprintf("it cannot be asked whether it supports CNI %s: %s", list(c.versions), a.unasked)})
			continue
		case len(both) == 0:
			c.leftOut = append(c.leftOut, Unusable{a.plugin, fmt.Sprintf("it supports CNI %s, but the configuration uses %s", list(a.versions), list(c.versions))})
			continue
		case want == Auto && newest(a.versions) != newest(spoken):
			c.held = append(c.held, a.plugin)
		}
		c.versions = both
		if !a.foreign {
			c.chain = append(c.chain, a.plugin)
		}
	}
	return c
}

// offered returns the version fields of a list: cniVersion is one that every runtime supports, if there
// is one, and cniVersions has all versions from there on, if there are several.
func offered(versions []string) (one string, all []string) {
	one = versions[0]
	for _, v := range versions {
		if slices.Contains(common, v) {
			one = v
		}
	}
	if all = versions[slices.Index(versions, one):]; len(all) == 1 {
		all = nil
	}
	return one, all
}

// intersection returns the elements of a that are also in b.
func intersection(a, b []string) []string {
	return slices.DeleteFunc(slices.Clone(a), func(v string) bool { return !slices.Contains(b, v) })
}

func newest(versions []string) string { return versions[len(versions)-1] }

func list(versions []string) string { return strings.Join(versions, ", ") }

// InstallChained installs the plugin to be called after another network's plugins. It writes no
// configuration, which might take precedence over that network's, and does not change that network's
// configuration, whose installer would revert the change or keep it for good. Report.Unchained describes the
// change to make.
//
// It removes a configuration that an Installer wrote when the node still had addresses of Berth's.
func (i *Installer) InstallChained() (r Report, err error) {
	o := i.options
	o.Bundle = ""
	if err := os.MkdirAll(o.BinDir, 0o755); err != nil {
		return r, fmt.Errorf("creating the directory to install to: %w", err)
	}
	if err := o.installPlugins(&r); err != nil {
		return r, err
	}
	path := filepath.Join(o.ConfDir, o.ConfName)
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return r, fmt.Errorf("reading the network configuration in place: %w", err)
	}
	if placeIn(text) != later {
		was, err := Uninstall(o.ConfDir, o.ConfName)
		if err != nil {
			return r, err
		}
		if was {
			r.Changed = append(r.Changed, path)
		}
	}
	r.Unchained, err = o.unchained()
	return r, err
}

// unchained describes how to make the runtime call the plugin, or returns "" if a configuration already
// has it after another network's plugins.
func (o *Options) unchained() (string, error) {
	entry, err := json.Marshal(o.Network.plugin())
	if err != nil {
		return "", fmt.Errorf("writing the plugin's configuration: %w", err)
	}
	todo := fmt.Sprintf(`add %s as the last of "plugins" to the configuration of the pods' network`, entry)
	files, err := configurations(o.ConfDir)
	if err != nil {
		return "", err
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err == nil && placeIn(text) == later {
			return "", nil
		}
	}
	if len(files) == 0 {
		return fmt.Sprintf("there is no network configuration in %s yet; %s", o.ConfDir, todo), nil
	}
	return fmt.Sprintf("no network configuration in %s has berth after another plugin, so that no pod gets egress; %s (a runtime that uses a single network uses %s)", o.ConfDir, todo, files[0]), nil
}

// place is the place of Berth's plugin in a network configuration.
type place int

const (
	nowhere place = iota
	first         // first: it creates the interface
	later         // after other plugins
)

// placeIn returns the place of the plugin in a network configuration.
func placeIn(text []byte) place {
	for k, p := range pluginsOf(text) {
		switch {
		case p.Type == pluginName && k == 0:
			return first
		case p.Type == pluginName:
			return later
		}
	}
	return nowhere
}
