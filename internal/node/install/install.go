// Package install installs the CNI plugin and its network configuration for the
// container runtime. berthd calls it once its first address is
// usable, and periodically after that: a network configuration tells
// the runtime that the node can run pods.
//
//	install.go    the steps and the report
//	conflist.go   the configuration
//	foreign.go    entries of other software in the configuration
//	versions.go   CNI versions and usable plugins; installation after another network's plugins
//	ask.go        queries for the CNI versions that a plugin supports
//	file.go       atomic file replacement, and a configuration that a reboot removes
//	bundle.go     plugins that come with berthd
package install

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Options are the files to install and their locations. All are required unless marked optional.
type Options struct {
	Plugin   string // the plugin's binary, which is copied
	BinDir   string // where the runtime looks for plugins
	ConfDir  string // where the runtime looks for network configurations
	ConfName string // the configuration's file name, ending in ".conflist"
	// Volatile is the path of the configuration on a file system that a reboot empties, which the
	// runtime must see under the same path. ConfDir then has a link to it. Optional: without it the
	// configuration is in ConfDir itself.
	Volatile string
	// Bundle has plugins of the chain, and loopback, for nodes that lack them. Optional.
	Bundle     string
	CNIVersion string  // Auto, or the version of the configuration
	Network    Network // the Installer sets CNIVersions and removes unusable plugins from Chain
}

// Report describes an installation.
type Report struct {
	Changed  []string   // paths of files that were installed or corrected
	Versions []string   // CNI versions of the configuration, oldest first
	LeftOut  []string   // plugins of Network.Chain that are not in BinDir
	Unusable []Unusable // unusable plugins in BinDir, which are left out
	Failed   []Unusable // plugins of Bundle that could not be installed, and foreign ones that do not work
	Unasked  []string   // plugins in the list whose versions are unknown
	Held     []string   // plugins that do not support newer versions
	Foreign  []string   // plugins of other software in the configuration
	// Preferred are configurations of other networks whose names sort before Berth's. A runtime that
	// uses one network uses the first of them instead.
	Preferred []string
	// Unchained describes how to make the plugin run after another network's; empty: nothing to do.
	Unchained string
}

// Installer installs, and caches the answers of plugins. It is not safe for concurrent use.
type Installer struct {
	options Options
	asker   asker
}

// New returns an Installer without installing anything.
func New(o Options) *Installer {
	return &Installer{options: o, asker: asker{known: map[string]known{}, timeout: askTimeout}}
}

// The plugin's name in BinDir, and modes of installed files. A configuration has no secrets, but the
// CIS benchmark requires 0600.
const (
	pluginName = "berth"
	pluginMode = 0o755
	confMode   = 0o600
	confSuffix = ".conflist" // suffix that libcni requires of a list
)

// Install installs plugins and configuration, in this order, each with one rename, and does not touch
// files that are correct. It fails if another network uses the configuration's name; that
// file is left unchanged.
//
// It executes the plugins of the chain to query their CNI versions: each file once, for at most a few
// seconds.
func (i *Installer) Install(ctx context.Context) (r Report, err error) {
	o := i.options
	if !strings.HasSuffix(o.ConfName, confSuffix) {
		return r, fmt.Errorf("configuration name %q: expected one that ends in %s", o.ConfName, confSuffix)
	}
	for _, dir := range []string{o.BinDir, o.ConfDir} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return r, fmt.Errorf("creating the directory to install to: %w", err)
		}
	}
	path := filepath.Join(o.ConfDir, o.ConfName)
	if err := mayReplace(path); err != nil {
		return r, err
	}
	o.Network.foreign = o.foreign(path)
	if err := o.installPlugins(&r); err != nil {
		return r, err
	}
	i.fit(ctx, &o, &r)
	if err := ctx.Err(); err != nil {
		return r, err // answers are incomplete after a cancellation
	}
	if err := o.installConf(&r); err != nil {
		return r, err
	}
	r.Preferred, err = preferred(o.ConfDir, o.ConfName)
	return r, err
}

// installPlugins installs berth and the bundled plugins that the node lacks.
func (o *Options) installPlugins(r *Report) error {
	path := filepath.Join(o.BinDir, pluginName)
	source, err := openSource(o.Plugin)
	if err != nil {
		return fmt.Errorf("installing %s: %w", path, err)
	}
	defer func() { _ = source.Close() }()
	changed, err := put(path, source, pluginMode)
	if err != nil {
		return fmt.Errorf("installing %s: %w", path, err)
	}
	if changed {
		r.Changed = append(r.Changed, path)
	}
	if o.Bundle != "" {
		var bundled []string
		bundled, r.Failed = installBundled(o.Bundle, o.BinDir, append([]string{loopback}, o.Network.Chain...))
		r.Changed = append(r.Changed, bundled...)
	}
	return nil
}

// fit reduces the chain to usable plugins, and the versions to those that all of them support.
func (i *Installer) fit(ctx context.Context, o *Options, r *Report) {
	var there []string
	there, r.LeftOut = present(o.BinDir, o.Network.Chain)
	answers := make([]answer, 0, len(there))
	for _, plugin := range there {
		answers = append(answers, i.asker.ask(ctx, o.BinDir, chained(plugin)))
	}
	for _, f := range o.Network.foreign {
		a := i.asker.ask(ctx, o.BinDir, pluginConf{Type: f.kind})
		if a.foreign = true; a.broken != "" {
			r.Failed = append(r.Failed, Unusable{f.kind, fmt.Sprintf("%s, which other software put into the chain, does not work: %s", f.kind, a.broken)})
		}
		r.Foreign, answers = append(r.Foreign, f.kind), append(answers, a)
	}
	c := choose(o.CNIVersion, answers)
	o.Network.Chain, o.Network.CNIVersions = c.chain, c.versions
	r.Versions, r.Unusable, r.Held = c.versions, c.leftOut, c.held
	for _, a := range answers {
		if a.unasked != "" && (a.foreign || slices.Contains(c.chain, a.plugin)) {
			r.Unasked = append(r.Unasked, a.plugin)
		}
	}
}

// installConf installs the configuration.
func (o *Options) installConf(r *Report) error {
	path := filepath.Join(o.ConfDir, o.ConfName)
	text, err := o.Network.Conflist()
	if err != nil {
		return err
	}
	var changed bool
	if o.Volatile != "" {
		changed, err = putLinked(path, o.Volatile, bytes.NewReader(text), confMode)
	} else {
		changed, err = put(path, bytes.NewReader(text), confMode)
	}
	if err != nil {
		return fmt.Errorf("installing %s: %w", path, err)
	}
	if changed {
		r.Changed = append(r.Changed, path)
	}
	return nil
}

// Uninstall removes the configuration and its link, so that the runtime starts no more pods on the node,
// and reports whether there was one. The plugins stay, because the removal of running pods needs them. A
// configuration of another network is left unchanged.
func Uninstall(confDir, confName string) (bool, error) {
	path := filepath.Join(confDir, confName)
	text, err := os.ReadFile(path)
	switch _, linkErr := os.Readlink(path); {
	case errors.Is(err, os.ErrNotExist) && linkErr == nil: // a dangling link, as after a reboot
	case errors.Is(err, os.ErrNotExist):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("reading the network configuration: %w", err)
	case placeIn(text) == nowhere:
		return false, nil
	}
	if err := unlink(path); err != nil {
		return false, fmt.Errorf("removing the network configuration: %w", err)
	}
	return true, syncDir(confDir)
}

// Hold writes a configuration of the plugin alone if there is none of its name. Until berthd starts and completes it, pods
// wait for the plugin's daemon, but the runtime has a network, so that its Node stays Ready. It has no CNI version with
// STATUS.
func Hold(confDir, confName string, of Network) (changed bool, err error) {
	path := filepath.Join(confDir, confName)
	if _, err := os.Stat(path); err == nil {
		return false, nil
	}
	of.CNIVersions, of.Chain = []string{common[len(common)-1]}, nil
	text, err := of.Conflist()
	if err != nil {
		return false, err
	}
	return put(path, bytes.NewReader(text), confMode)
}

// mayReplace returns an error for another network's configuration. An unreadable one may be replaced.
func mayReplace(conf string) error {
	text, err := os.ReadFile(conf)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading the network configuration in place: %w", err)
	}
	if placeIn(text) == nowhere && len(pluginsOf(text)) > 0 {
		return fmt.Errorf("%s is a network configuration of another plugin: remove it, or choose another name with --cni-conf-name", conf)
	}
	return nil
}

// present splits plugins into those that exist in dir and those that do not.
func present(dir string, plugins []string) (there, missing []string) {
	for _, p := range plugins {
		if info, err := os.Stat(filepath.Join(dir, p)); err == nil && info.Mode().IsRegular() {
			there = append(there, p)
		} else {
			missing = append(missing, p)
		}
	}
	return there, missing
}

// preferred returns the configurations whose names sort before name.
func preferred(dir, name string) ([]string, error) {
	files, err := configurations(dir)
	var before []string
	for _, path := range files {
		if filepath.Base(path) < name {
			before = append(before, path)
		}
	}
	return before, err
}

// Configuration is a network configuration for the container runtime.
type Configuration struct {
	File    string   // its path
	Plugins []string // types, in order; none if it cannot be read
}

// Configurations returns the network configurations of a directory, ordered by name as by the runtime, which uses the
// first.
func Configurations(dir string) (list []Configuration, err error) {
	files, err := configurations(dir)
	for _, file := range files {
		c := Configuration{File: file}
		if text, err := os.ReadFile(file); err == nil {
			for _, p := range pluginsOf(text) {
				c.Plugins = append(c.Plugins, p.Type)
			}
		}
		list = append(list, c)
	}
	return list, err
}

// configurations returns the network configurations ordered by name. A missing directory has none.
func configurations(dir string) (out []string, err error) {
	entries, err := os.ReadDir(dir) // sorted by name
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("listing network configurations: %w", err)
	}
	for _, e := range entries {
		switch filepath.Ext(e.Name()) {
		case confSuffix, ".conf", ".json": // the extensions that libcni's ConfFiles accepts
			out = append(out, filepath.Join(dir, e.Name()))
		}
	}
	return out, nil
}
