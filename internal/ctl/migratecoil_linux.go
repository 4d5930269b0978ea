package ctl

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"

	"github.com/berthnet/berth/internal/config"
	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/migrate/coil"
	"github.com/berthnet/berth/internal/migrate/coil/etcd"
	"github.com/berthnet/berth/internal/migrate/plugins"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/daemon"
)

// coilFlags say where Coil keeps what on the node.
func coilFlags(more map[string][2]string) map[string][2]string {
	flags := map[string][2]string{
		"netns-dir":   {"/var/run/netns", "where the container runtime keeps network namespaces"},
		"results-dir": {"/var/lib/cni/results", "where the container runtime caches results, which name the pods"},
		"coil-plugin": {"/opt/cni/bin/coil", "Coil's CNI plugin"},
	}
	for name, about := range more {
		flags[name] = about
	}
	return flags
}

var (
	coilV2Flags = coilFlags(map[string][2]string{"coild-socket": {"/run/coild.sock", "coild's socket"}})
	coilV1Flags = coilFlags(map[string][2]string{
		"coild-address": {"127.0.0.1:9383", "address of coild's HTTP server"},
		"etcd-dump":     {"", "file with the output of etcdctl get PREFIX --prefix -w json (required)"},
		"etcd-prefix":   {etcd.DefaultPrefix, "prefix of Coil's keys in etcd"},
	})
)

func openCoilV2(c config.Config, log *slog.Logger, flags map[string]*string) (formerNode, error) {
	return openCoil(c, log, flags, &net.UnixAddr{Net: "unix", Name: *flags["coild-socket"]}, nil)
}

func openCoilV1(c config.Config, log *slog.Logger, flags map[string]*string) (formerNode, error) {
	file := *flags["etcd-dump"]
	if file == "" {
		return nil, errors.New("--etcd-dump is empty: expected the file of a dump, since Coil v1 keeps the owners of addresses in etcd alone")
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	d, err := etcd.ParseDump(data, *flags["etcd-prefix"])
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	at, err := net.ResolveTCPAddr("tcp", *flags["coild-address"])
	if err != nil {
		return nil, fmt.Errorf("--coild-address: %w", err)
	}
	return openCoil(c, log, flags, at, d.Of(c.NodeName))
}

func openCoil(c config.Config, log *slog.Logger, flags map[string]*string, coild net.Addr, known []etcd.Known) (formerNode, error) {
	if c.IPAM != config.IPAMPool && c.IPAM != config.IPAMNone {
		return nil, fmt.Errorf("--ipam is %s: expected %s, as pods keep their addresses of Coil's pools, or %s where Coil gives pods egress alone", c.IPAM, config.IPAMPool, config.IPAMNone)
	}
	boot, err := daemon.BootID()
	if err != nil {
		return nil, err
	}
	return coil.Open(coil.Config{
		Node: attachment.Node{InstanceID: c.NodeName, BootID: boot}, StateDir: c.StateDir, Network: c.CNINetwork,
		Datapath: datapath.Config{
			BlockMetadata: c.BlocksMetadata(), MaxConnections: c.MaxConnections, MTU: c.MTU, Sysctls: c.SysctlDir, Log: log,
			Uplinks: datapath.Routed{ExportTable: c.ExportTable},
		},
		NetnsFolders: []string{*flags["netns-dir"]}, Proc: "/proc", ResultFolders: []string{*flags["results-dir"]},
		ConfFolder: c.CNIConfDir, Plugin: *flags["coil-plugin"], EndsByResult: plugins.EndsByResult(c.CRISocket), CoilAddress: coild, Known: known,
	}, log)
}
