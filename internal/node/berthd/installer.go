package berthd

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/berthnet/berth/internal/cni"
	"github.com/berthnet/berth/internal/config"
	"github.com/berthnet/berth/internal/node/daemon"
	"github.com/berthnet/berth/internal/node/daemon/part"
	"github.com/berthnet/berth/internal/node/install"
)

// pluginMargin is the time of a plugin call beyond the wait for an address.
const pluginMargin = 15 * time.Second

// tells returns the capabilities by which the runtime passes the pod data that the daemon reads.
func tells(o daemon.Options) []string {
	reads := func(p part.Part) bool { return len(p.About().Annotations) > 0 }
	if len(o.Source.Annotations()) == 0 && !slices.ContainsFunc(o.Parts, reads) {
		return nil
	}
	return []string{cni.PodAnnotations}
}

// installer returns a function that installs the plugin and its configuration, and logs what it did.
func (n *node) installer(tells []string) (func(context.Context) (daemon.Installation, error), error) {
	plugin, bundle := n.cfg.CNIPlugin, n.cfg.CNIBundle
	if self, err := os.Executable(); err == nil {
		plugin = cmp.Or(plugin, filepath.Join(filepath.Dir(self), "berth"))
		bundle = cmp.Or(bundle, filepath.Join(filepath.Dir(self), "cni"))
	} else if plugin == "" {
		return nil, fmt.Errorf("finding the plugin beside berthd: %w; set --cni-plugin", err)
	}
	o := install.Options{
		Plugin: plugin, BinDir: n.cfg.CNIBinDir, ConfDir: n.cfg.CNIConfDir, ConfName: n.cfg.CNIConfName,
		Bundle: bundle, CNIVersion: n.cfg.CNIVersion,
		Network: install.Network{
			Name: n.cfg.CNINetwork, Socket: n.cfg.Socket, Chain: n.cfg.CNIChain,
			Timeout: max(n.patience()+pluginMargin, cni.DefaultTimeout), Tells: tells,
		},
	}
	if n.cfg.CNIVolatile {
		// The plugin finds the socket only if the runtime sees its directory under the same
		// path.
		o.Volatile = filepath.Join(filepath.Dir(n.cfg.Socket), "cni", n.cfg.CNIConfName)
	}
	i := install.New(o)
	put := i.Install
	if n.cfg.IPAM == config.IPAMNone {
		put = func(context.Context) (install.Report, error) { return i.InstallChained() }
	}
	return func(ctx context.Context) (daemon.Installation, error) {
		report, err := put(ctx)
		if len(report.Changed) > 0 {
			n.log.Info("installed", "files", report.Changed, "cni-versions", report.Versions)
		}
		if err != nil {
			return daemon.Installation{}, err
		}
		return daemon.Installation{Remark: remark(report, o), LeftOut: leftOut(report)}, nil
	}, nil
}

// patience is the maximum wait of an ADD.
func (n *node) patience() time.Duration {
	longest := n.cfg.WarmWait
	if n.cfg.HasPorts() {
		longest = max(longest, n.cfg.PortWait)
	}
	if n.cfg.Egress {
		longest = max(longest, n.cfg.EgressWait) + n.cfg.EgressGatewayWait
	}
	return longest
}

// remark returns information about an installation that requires no action.
func remark(r install.Report, o install.Options) string {
	var notes []string
	if len(r.LeftOut) > 0 {
		notes = append(notes, fmt.Sprintf("left out of the chain, because missing in %s: %s", o.BinDir, strings.Join(r.LeftOut, ", ")))
	}
	if len(r.Foreign) > 0 {
		notes = append(notes, "kept in the chain, where other software put it: "+strings.Join(r.Foreign, ", "))
	}
	if len(r.Unasked) > 0 {
		notes = append(notes, fmt.Sprintf("assumed to support CNI up to 1.0.0, because berthd's container cannot run them to ask: %s", strings.Join(r.Unasked, ", ")))
	}
	if len(r.Held) > 0 {
		notes = append(notes, fmt.Sprintf("without STATUS and GC, because the configuration uses CNI %s for older plugins: %s", strings.Join(r.Versions, ", "), strings.Join(r.Held, ", ")))
	}
	if len(r.Preferred) > 0 {
		notes = append(notes, "the runtime may take another network's configuration, whose name sorts first: "+strings.Join(r.Preferred, ", "))
	}
	return strings.Join(notes, "; ")
}

// leftOut returns the problems of an installation that require action.
func leftOut(r install.Report) string {
	var all []string
	for _, u := range r.Unusable {
		all = append(all, fmt.Sprintf("%s is left out of the chain: %s", u.Plugin, u.Why))
	}
	for _, u := range r.Failed {
		all = append(all, u.Why)
	}
	if r.Unchained != "" {
		all = append(all, r.Unchained)
	}
	return strings.Join(all, "; ")
}
