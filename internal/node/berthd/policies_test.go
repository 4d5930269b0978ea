package berthd

import (
	"bytes"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/berthnet/berth/internal/kernel/policytable"
	"github.com/berthnet/berth/internal/kernel/rtnl"
	"github.com/berthnet/berth/internal/mac"
	"github.com/berthnet/berth/internal/node/attachment"
)

// leftTable is a table that an earlier start left, or not.
type leftTable struct {
	PolicyTable
	there  bool
	opened []string
}

func (t *leftTable) There() (bool, error) { return t.there, nil }

func (t *leftTable) Remove() error {
	t.there = false
	return nil
}

func (t *leftTable) OpenInside(path string, _ rtnl.NetnsID, _ []string) (*policytable.Inside, error) {
	t.opened = append(t.opened, path)
	return nil, rtnl.ErrNoNetns // the pod is gone
}

// While network policies are off, a start removes what an earlier one left: the tables of the node and of pods, and the file.
func TestPoliciesThatAreOffAreRemoved(t *testing.T) {
	var log bytes.Buffer
	n := &node{log: slog.New(slog.NewTextHandler(&log, nil))}
	n.cfg.NetworkPolicyDir = t.TempDir()
	table := &leftTable{}
	n.deps.PolicyTable = func() (PolicyTable, error) { return table, nil }
	store, _, err := attachment.Open(t.TempDir(), attachment.Node{InstanceID: "i-1", BootID: "boot-1"}, n.log)
	must(t, err)
	must(t, store.Put(attachment.Record{
		Key: attachment.Key{Network: "berth", ContainerID: "a", IfName: "eth0"}, HostLink: "link-a", State: attachment.Ready, Netns: attachment.Netns{Path: "/run/netns/a"},
		NICs: []attachment.NIC{{
			Object: "a", UID: "u", Port: "p", IfName: "eth0", MAC: mac.Addr{2, 0, 0, 0, 0, 1}, Plug: attachment.Plug{Type: "OVS"},
			Addresses: []attachment.NICAddress{{CIDR: netip.MustParsePrefix("10.0.0.5/24")}},
		}},
	}))
	log.Reset()
	must(t, n.openPolicies(store))
	if log.Len() > 0 || len(table.opened) > 0 || n.policies != nil {
		t.Errorf("a node without policies: %s, opened %v", &log, table.opened)
	}
	file := filepath.Join(n.cfg.NetworkPolicyDir, "networkpolicies.pb")
	must(t, os.WriteFile(file, nil, 0o600))
	table.there = true
	must(t, n.openPolicies(store))
	if _, err := os.Stat(file); !os.IsNotExist(err) || table.there || len(table.opened) != 1 || table.opened[0] != "/run/netns/a" {
		t.Errorf("left: %v, %t, opened %v", err, table.there, table.opened)
	}
	if log.Len() == 0 {
		t.Error("the removal is not logged")
	}
}
