// Package install puts the CNI plugin and its network configuration where the
// container runtime looks for them. berthd calls it once its first address is
// usable, and again from time to time: a configuration in place is what tells
// the runtime that the node can take pods.
package install

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// Options say what to install, and where. All are needed.
type Options struct {
	Plugin   string // the plugin's binary, to be copied
	BinDir   string // where the runtime looks for plugins
	ConfDir  string // where the runtime looks for network configurations
	ConfName string // the configuration's file name, ending in ".conflist"
	Network  Network
}

// Report tells what an installation did, and what a person may want to know.
type Report struct {
	Changed []string // paths of files that were not as they should be
	LeftOut []string // plugins of Network.Chain that are not in BinDir
	// Preferred are configurations of others whose names sort before ours. A
	// runtime that takes one network takes the first of them instead.
	Preferred []string
}

// The plugin's name in BinDir, and modes of what is installed. A configuration
// holds no secrets, but is nobody's business (0600 is also what the CIS
// benchmark asks for).
const (
	pluginName = "berth"
	pluginMode = 0o755
	confMode   = 0o600
	confSuffix = ".conflist" // what libcni takes for a list
)

// Install makes plugin and configuration what they should be, in this order,
// each by one rename: nobody sees half a file, and a file that is as it should
// be is not touched. It is an error when the configuration's name is taken by
// a network that is not Berth's; such a file is left alone.
func Install(o Options) (Report, error) {
	var r Report
	if !strings.HasSuffix(o.ConfName, confSuffix) {
		return r, fmt.Errorf("configuration name %q: expected one that ends in %s", o.ConfName, confSuffix)
	}
	for _, dir := range []string{o.BinDir, o.ConfDir} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return r, fmt.Errorf("creating the directory to install to: %w", err)
		}
	}
	plugin, conf := filepath.Join(o.BinDir, pluginName), filepath.Join(o.ConfDir, o.ConfName)
	if err := mayReplace(conf); err != nil {
		return r, err
	}
	o.Network.Chain, r.LeftOut = present(o.BinDir, o.Network.Chain)
	text, err := o.Network.Conflist()
	if err != nil {
		return r, err
	}
	source, err := openSource(o.Plugin)
	if err != nil {
		return r, fmt.Errorf("installing %s: %w", plugin, err)
	}
	defer func() { _ = source.Close() }()
	for _, f := range []struct {
		path    string
		content io.ReadSeeker
		mode    os.FileMode
	}{{plugin, source, pluginMode}, {conf, bytes.NewReader(text), confMode}} {
		changed, err := put(f.path, f.content, f.mode)
		if err != nil {
			return r, fmt.Errorf("installing %s: %w", f.path, err)
		}
		if changed {
			r.Changed = append(r.Changed, f.path)
		}
	}
	r.Preferred, err = preferred(o.ConfDir, o.ConfName)
	return r, err
}

// Uninstall removes the configuration, so that the runtime gives the node no
// more pods, and tells whether there was one. The plugin stays, since running
// pods need it to be removed. A file of another network is left alone.
func Uninstall(confDir, confName string) (bool, error) {
	path := filepath.Join(confDir, confName)
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("reading the network configuration: %w", err)
	}
	if owner(text) != ours {
		return false, nil
	}
	if err := os.Remove(path); err != nil {
		return false, fmt.Errorf("removing the network configuration: %w", err)
	}
	return true, syncDir(confDir)
}

// mayReplace refuses a configuration of someone else's. One that nobody could
// read is of no use to anyone.
func mayReplace(conf string) error {
	text, err := os.ReadFile(conf)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading the network configuration in place: %w", err)
	}
	if owner(text) == others {
		return fmt.Errorf("%s is a network configuration of another plugin: remove it, or choose another name with --cni-conf-name", conf)
	}
	return nil
}

// present splits plugins into those that are in dir and those that are not.
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

// preferred lists the configurations whose names sort before name.
func preferred(dir, name string) ([]string, error) {
	entries, err := os.ReadDir(dir) // sorted
	if err != nil {
		return nil, fmt.Errorf("listing network configurations: %w", err)
	}
	var out []string
	for _, e := range entries {
		if e.Name() >= name {
			break
		}
		switch filepath.Ext(e.Name()) {
		case confSuffix, ".conf", ".json": // what libcni's ConfFiles callers look for
			out = append(out, filepath.Join(dir, e.Name()))
		}
	}
	return out, nil
}
