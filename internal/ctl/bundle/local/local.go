// Package local collects the parts of a support bundle that come from the node it runs on.
// It needs no API server, no running daemon, and no program on the node except journalctl.
//
//	local.go    parts and settings
//	berthd.go   endpoints of the daemon and the kubelet
//	files.go    records, network configuration, /proc, related processes
//	logs.go     logs of pods, of units, of the kernel
//	runtime.go  the container runtime
//	ovsdb.go    Open vSwitch's database
package local

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/spf13/pflag"

	"github.com/berthnet/berth/internal/config"
	"github.com/berthnet/berth/internal/ctl/bundle"
	"github.com/berthnet/berth/internal/ctl/bundle/archive"
	"github.com/berthnet/berth/internal/kernel/kernelstate"
	"github.com/berthnet/berth/internal/node/introspect"
)

// node holds the options and the daemon's settings.
type node struct {
	bundle.NodeOptions
	metrics   string // address, or ""
	cniBinDir string
	ports     bool   // pods may have NICs in VPCs
	ovsdbAt   string // value of --ovsdb, or ""
	policies  bool   // it enforces network policies
}

// Parts returns all parts of a node. It reads the daemon's settings first.
func Parts(ctx context.Context, o bundle.NodeOptions) []archive.Part {
	settings, err := askSettings(ctx, o)
	source := "berthd"
	if err != nil {
		settings, source = ownSettings(), "the environment of this program and defaults"
	}
	n := node{NodeOptions: o, metrics: get(settings, "metrics-address"), cniBinDir: get(settings, "cni-bin-dir"), ovsdbAt: get(settings, "ovsdb")}
	n.ports = get(settings, "ipam") == config.IPAMPort || get(settings, "vpc-ports") == "true"
	n.policies = get(settings, "network-policies") == "true"
	for _, v := range []struct {
		to   *string
		name string
	}{{&n.StateDir, "state-dir"}, {&n.CNIConfDir, "cni-conf-dir"}, {&n.CRISocket, "cri-socket"}} {
		if *v.to == "" {
			*v.to = get(settings, v.name)
		}
	}
	parts := []archive.Part{
		n.part("settings", func(_ context.Context, s *archive.Sink) error {
			if err != nil {
				err = fmt.Errorf("%w; using those of %s instead", err, source)
			}
			return joinJSON(s, "settings.json", settings, err)
		}),
		n.part("introspection", n.introspection),
		n.part("network policies", n.networkPolicies),
		n.part("metrics", n.scrape),
		n.part("state", func(ctx context.Context, s *archive.Sink) error { return folder(ctx, s, "state", n.at(n.StateDir)) }),
		n.part("cni", func(ctx context.Context, s *archive.Sink) error { return folder(ctx, s, "cni", n.at(n.CNIConfDir)) }),
		n.part("cni plugins", func(_ context.Context, s *archive.Sink) error {
			return list(s, "cni-plugins.txt", n.at(n.cniBinDir))
		}),
		n.part("system", n.system),
		n.part("processes", processes),
		n.part("runtime", n.runtime),
		n.part("ovsdb", n.ovsdb),
		n.part("kubelet", kubelet),
		n.part("kernel log", kernelLog),
		n.part("pod logs", n.podLogs),
		n.part("journal", n.journal),
	}
	for _, p := range kernelstate.Parts() {
		parts = append(parts, n.part("kernel "+p.Name, func(_ context.Context, s *archive.Sink) error {
			return piped(func(w io.Writer) error { return p.Write(w) }, func(r io.Reader) error { return s.Text("kernel/"+p.Name, r) })
		}))
	}
	return parts
}

func (n *node) part(name string, collect func(context.Context, *archive.Sink) error) archive.Part {
	return archive.Part{Name: name, Timeout: n.Timeout, Collect: collect}
}

// ownSettings returns the settings that a daemon has in this program's environment. In the daemon's
// pod these are the daemon's own.
func ownSettings() introspect.Settings {
	for _, environ := range [][]string{os.Environ(), nil} {
		c, err := config.NewLoader(pflag.NewFlagSet("", pflag.ContinueOnError)).Load(environ)
		if err == nil {
			return introspect.Settings{Settings: c.Effective, Unknown: c.Unknown}
		}
	}
	return introspect.Settings{}
}

func get(s introspect.Settings, name string) string {
	v, _ := s.Get(name)
	return v
}

// piped connects write to read. The reader's error does not stop the writer: remaining output is
// discarded. A panic of the writer becomes an error, because it would otherwise end the program.
func piped(write func(io.Writer) error, read func(io.Reader) error) error {
	r, w := io.Pipe()
	go func() {
		defer func() {
			if r := recover(); r != nil {
				_ = w.CloseWithError(fmt.Errorf("panic: %v", r))
			}
		}()
		_ = w.CloseWithError(write(w))
	}()
	err := read(r)
	_, _ = io.Copy(io.Discard, r) // lets the writer finish
	return err
}
