package berthd

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/berthnet/berth/internal/cni"
	"github.com/berthnet/berth/internal/install"
)

// pluginMargin is what the plugin's calls may take beyond the wait for an address.
const pluginMargin = 15 * time.Second

// installer returns what installs the plugin and its configuration, and says
// what it did and found.
func (n *node) installer(tells []string) (func(context.Context) (string, error), error) {
	plugin := n.cfg.CNIPlugin
	if plugin == "" {
		self, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("finding the plugin beside berthd: %w; set --cni-plugin", err)
		}
		plugin = filepath.Join(filepath.Dir(self), "berth")
	}
	o := install.Options{
		Plugin: plugin, BinDir: n.cfg.CNIBinDir, ConfDir: n.cfg.CNIConfDir, ConfName: n.cfg.CNIConfName,
		Network: install.Network{
			CNIVersion: n.cfg.CNIVersion, Name: n.cfg.CNINetwork, Socket: n.cfg.Socket, Chain: n.cfg.CNIChain,
			Timeout: max(n.cfg.WarmWait+pluginMargin, cni.DefaultTimeout), Tells: tells,
		},
	}
	return func(context.Context) (string, error) {
		report, err := install.Install(o)
		if err != nil {
			return "", err
		}
		if len(report.Changed) > 0 {
			n.log.Info("installed", "files", report.Changed)
		}
		var notes []string
		if len(report.LeftOut) > 0 {
			notes = append(notes, fmt.Sprintf("left out of the chain, as not in %s: %s", o.BinDir, strings.Join(report.LeftOut, ", ")))
		}
		if len(report.Preferred) > 0 {
			notes = append(notes, "the runtime may take another network's configuration, whose name sorts first: "+strings.Join(report.Preferred, ", "))
		}
		return strings.Join(notes, "; "), nil
	}, nil
}
