package plugtest

import (
	"fmt"
	"os"
	"testing"

	lib "github.com/ovn-kubernetes/libovsdb/ovsdb"

	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/kernel/plug/podif"
	"github.com/berthnet/berth/lab/network/openvswitch"
	"github.com/berthnet/berth/lab/run/poll"
)

// programs returns a runner for Open vSwitch's and OVN's programs in a node's namespace, with files in a temporary
// folder. The programs end with the test. If one is not installed, the test is skipped.
func programs(t *testing.T, node *podif.Namespace, group string, names ...string) *openvswitch.Runner {
	t.Helper()
	found, err := openvswitch.Find(group, names...)
	if err != nil {
		t.Skipf("NOT RUN: with %s: %v", group, err)
	}
	dir, err := os.MkdirTemp("", "ovs")
	Must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	r := &openvswitch.Runner{Programs: found, Who: "node", Netns: node.Path, Dir: dir, Logs: dir}
	t.Cleanup(func() {
		if t.Failed() {
			fmt.Fprint(os.Stderr, r.LogTails(20))
		}
		Must(t, r.Kill())
	})
	return r
}

// NewOpenVSwitch runs ovsdb-server and ovs-vswitchd in a node's namespace, with br-int in the user space datapath. If
// they are not installed, the test is skipped.
func NewOpenVSwitch(t *testing.T, node *podif.Namespace) *Server {
	t.Helper()
	return openVSwitch(t, node, programs(t, node, "ovs", "ovsdb-tool", "ovsdb-server", "ovs-vswitchd"))
}

func openVSwitch(t *testing.T, node *podif.Namespace, r *openvswitch.Runner) *Server {
	t.Helper()
	Must(t, r.Serve(Bounded(t), "db", r.In("db.db"), r.Schema("ovsdb-tool", "openvswitch/vswitch.ovsschema")))
	s := &Server{t: t, path: r.In("db.sock"), Endpoint: "unix:" + r.In("db.sock")}
	s.other = s.connect()
	t.Cleanup(s.other.Close)
	s.Transact(
		lib.Operation{Op: "insert", Table: "Interface", UUIDName: "i", Row: lib.Row{"name": "br-int", "type": "internal"}},
		lib.Operation{Op: "insert", Table: "Port", UUIDName: "p", Row: lib.Row{"name": "br-int", "interfaces": lib.UUID{GoUUID: "i"}}},
		lib.Operation{Op: "insert", Table: "Bridge", UUIDName: "b", Row: lib.Row{"name": "br-int", "datapath_type": "netdev", "ports": lib.UUID{GoUUID: "p"}}},
		lib.Operation{Op: "insert", Table: "Open_vSwitch", UUIDName: "root", Row: lib.Row{"bridges": lib.UUID{GoUUID: "b"}, "external_ids": Map(map[string]string{
			"system-id": "node-a", "hostname": "node-a", "ovn-remote": "unix:" + r.In("sb.sock"), "ovn-encap-type": "geneve", "ovn-encap-ip": "127.0.0.1",
			"ovn-bridge": "br-int", "ovn-bridge-datapath-type": "netdev",
		})}},
	)
	_, err := r.Start("ovs-vswitchd", "ovs-vswitchd", s.Endpoint)
	Must(t, err)
	Must(t, r.Until(Bounded(t), "br-int", poll.True(func() bool { return Link(t, node, "br-int") != nil })))
	return s
}

// OVN is a real OVN for one node.
type OVN struct {
	*Server
	programs *openvswitch.Runner
}

// NewOVN runs OVN's databases, northd and controller for Open vSwitch, with one logical switch.
func NewOVN(t *testing.T, node *podif.Namespace) *OVN {
	t.Helper()
	r := programs(t, node, "ovn", "ovsdb-tool", "ovsdb-server", "ovs-vswitchd", "ovn-northd", "ovn-controller", "ovn-nbctl", "ovn-sbctl")
	o := &OVN{openVSwitch(t, node, r), r}
	for _, db := range []string{"nb", "sb"} {
		Must(t, r.Serve(Bounded(t), db, r.In(db+".db"), r.Schema("ovn-nbctl", "ovn/ovn-"+db+".ovsschema")))
	}
	o.nbctl("init")
	Must(t, r.Once(Bounded(t), "ovn-sbctl", "--no-leader-only", "--db=unix:"+r.In("sb.sock"), "init")) // otherwise both programs below would add the first row
	_, err := r.Start("ovn-northd", "ovn-northd", "--ovnnb-db=unix:"+r.In("nb.sock"), "--ovnsb-db=unix:"+r.In("sb.sock"))
	Must(t, err)
	_, err = r.Start("ovn-controller", "ovn-controller", o.Endpoint)
	Must(t, err)
	o.nbctl("ls-add", "net")
	return o
}

func (o *OVN) nbctl(args ...string) {
	o.t.Helper()
	Must(o.t, o.programs.Once(Bounded(o.t), "ovn-nbctl", append([]string{"--no-leader-only", "--db=unix:" + o.programs.In("nb.sock")}, args...)...))
}

// AddPort adds a logical port with port security, as Neutron does.
func (o *OVN) AddPort(w plug.Want) {
	o.t.Helper()
	addresses := w.Interface.MAC.String()
	for _, p := range w.Interface.Addresses {
		addresses += " " + p.Addr().String()
	}
	o.nbctl("lsp-add", "net", w.PortID, "--", "lsp-set-addresses", w.PortID, addresses, "--", "lsp-set-port-security", w.PortID, addresses)
}
