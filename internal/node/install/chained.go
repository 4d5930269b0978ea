package install

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// InstallChained puts the plugin in place, to be called after another network's plugins. It
// writes no configuration, which might win over that network's, and does not change that
// network's either: whoever installs it would take the change back, or keep it for good. It
// tells in Report.Unchained what a person has to do.
//
// A configuration that an Installer wrote before, when the node's addresses were Berth's, is
// removed.
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

// unchained tells what to do so that the plugin is called; empty: it is in a configuration,
// after another network's plugins.
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
	return fmt.Sprintf("no network configuration in %s has berth after another plugin, so that no pod gets egress; %s (%s is what a runtime that takes one network takes)", o.ConfDir, todo, files[0]), nil
}

// place of our plugin in a network configuration.
type place int

const (
	nowhere place = iota
	first         // it makes the interface
	later         // it comes after others
)

// placeIn tells where in a network configuration our plugin is.
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
