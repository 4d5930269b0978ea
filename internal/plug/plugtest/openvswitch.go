package plugtest

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	lib "github.com/ovn-kubernetes/libovsdb/ovsdb"

	"github.com/berthnet/berth/internal/lab/run/proc"
	"github.com/berthnet/berth/internal/plug"
	"github.com/berthnet/berth/internal/plug/podif"
)

// daemons run Open vSwitch's and OVN's programs in a node's namespace, with their files in a
// folder of the test's own.
type daemons struct {
	t        *testing.T
	node     *podif.Namespace
	dir      string
	programs map[string]string // path by name
}

// find looks programs up. Where one is not installed, the test says so and is left out.
func find(t *testing.T, node *podif.Namespace, group string, names ...string) daemons {
	t.Helper()
	t.Setenv("PATH", os.Getenv("PATH")+":/usr/sbin:/sbin")
	d := daemons{t: t, node: node, programs: map[string]string{}}
	for _, name := range names {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Skipf("NOT RUN: with %s: %v; hack/deps.sh %s installs it", group, err, group)
		}
		d.programs[name] = path
	}
	return d
}

// in is a path in the folder.
func (d daemons) in(name string) string { return filepath.Join(d.dir, name) }

func (d daemons) command(name string, args ...string) proc.Command {
	return proc.Command{
		Path: d.programs[name], Args: args, Netns: d.node.Path, Dir: d.dir,
		Env: []string{"OVS_RUNDIR=" + d.dir, "OVN_RUNDIR=" + d.dir, "OVS_LOGDIR=" + d.dir, "LD_LIBRARY_PATH=" + os.Getenv("LD_LIBRARY_PATH")},
	}
}

// run starts a program that goes with the test, as what.
func (d daemons) run(what, name string, args ...string) *proc.Process {
	d.t.Helper()
	args = append(args, "--pidfile="+d.in(what+".pid"), "-vconsole:warn")
	if name != "ovn-controller" { // which has a control socket of its own in OVN_RUNDIR
		args = append(args, "--unixctl="+d.in(what+".ctl"))
	}
	p := proc.New(what, d.in(what+".log"), func() proc.Command { return d.command(name, args...) })
	d.t.Cleanup(func() {
		if d.t.Failed() {
			fmt.Fprintf(os.Stderr, "%s:\n%s\n", what, p.LogTail(20))
		}
		Must(d.t, p.Kill())
	})
	Must(d.t, p.Start())
	return p
}

// once runs a program until it has ended.
func (d daemons) once(name string, args ...string) {
	d.t.Helper()
	var out bytes.Buffer
	if err := proc.Run(Bounded(d.t), d.command(name, args...), nil, &out, &out); err != nil {
		d.t.Fatalf("%s %q: %v: %s", name, args, err, out.String())
	}
}

// serve makes a database of a schema, which is beside a program's, and serves it at NAME.sock.
func (d daemons) serve(name, besides, schema string) {
	d.t.Helper()
	d.once("ovsdb-tool", "create", d.in(name+".db"), filepath.Join(filepath.Dir(d.programs[besides]), "../share", schema))
	db := d.run(name, "ovsdb-server", d.in(name+".db"), "--remote=punix:"+d.in(name+".sock"))
	Within(d.t, name+" listens", func() bool {
		if db.EndedByItself() {
			d.t.Fatal(db.Failed())
		}
		c, err := (&net.Dialer{}).DialContext(Bounded(d.t), "unix", d.in(name+".sock"))
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
}

// NewOpenVSwitch runs ovsdb-server and ovs-vswitchd in a node's namespace, with br-int switched in
// user space. Where they are not installed, the test says so and is left out.
func NewOpenVSwitch(t *testing.T, node *podif.Namespace) *Server {
	t.Helper()
	s, _ := openVSwitch(t, find(t, node, "ovs", "ovsdb-tool", "ovsdb-server", "ovs-vswitchd"))
	return s
}

func openVSwitch(t *testing.T, d daemons) (*Server, daemons) {
	t.Helper()
	var err error
	d.dir, err = os.MkdirTemp("", "ovs")
	Must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(d.dir) })
	d.serve("db", "ovsdb-tool", "openvswitch/vswitch.ovsschema")
	s := &Server{t: t, path: d.in("db.sock"), Endpoint: "unix:" + d.in("db.sock")}
	s.other = s.connect()
	t.Cleanup(s.other.Close)
	s.Transact(
		lib.Operation{Op: "insert", Table: "Interface", UUIDName: "i", Row: lib.Row{"name": "br-int", "type": "internal"}},
		lib.Operation{Op: "insert", Table: "Port", UUIDName: "p", Row: lib.Row{"name": "br-int", "interfaces": lib.UUID{GoUUID: "i"}}},
		lib.Operation{Op: "insert", Table: "Bridge", UUIDName: "b", Row: lib.Row{"name": "br-int", "datapath_type": "netdev", "ports": lib.UUID{GoUUID: "p"}}},
		lib.Operation{Op: "insert", Table: "Open_vSwitch", UUIDName: "root", Row: lib.Row{"bridges": lib.UUID{GoUUID: "b"}, "external_ids": Map(map[string]string{
			"system-id": "node-a", "hostname": "node-a", "ovn-remote": "unix:" + d.in("sb.sock"), "ovn-encap-type": "geneve", "ovn-encap-ip": "127.0.0.1",
			"ovn-bridge": "br-int", "ovn-bridge-datapath-type": "netdev",
		})}},
	)
	switchd := d.run("ovs-vswitchd", "ovs-vswitchd", s.Endpoint)
	Within(t, "ovs-vswitchd makes br-int", func() bool {
		if switchd.EndedByItself() {
			t.Fatal(switchd.Failed())
		}
		return Link(t, d.node, "br-int") != nil
	})
	return s, d
}

// OVN is a real one of one node.
type OVN struct {
	*Server
	d daemons
}

// NewOVN runs OVN's databases, northd and controller beside Open vSwitch, with one logical switch.
func NewOVN(t *testing.T, node *podif.Namespace) *OVN {
	t.Helper()
	d := find(t, node, "ovn", "ovsdb-tool", "ovsdb-server", "ovs-vswitchd", "ovn-northd", "ovn-controller", "ovn-nbctl", "ovn-sbctl")
	s, d := openVSwitch(t, d)
	d.serve("nb", "ovn-nbctl", "ovn/ovn-nb.ovsschema")
	d.serve("sb", "ovn-nbctl", "ovn/ovn-sb.ovsschema")
	o := &OVN{s, d}
	o.nbctl("init")
	d.once("ovn-sbctl", "--no-leader-only", "--db=unix:"+d.in("sb.sock"), "init") // else both programs below make its first row
	d.run("ovn-northd", "ovn-northd", "--ovnnb-db=unix:"+d.in("nb.sock"), "--ovnsb-db=unix:"+d.in("sb.sock"))
	d.run("ovn-controller", "ovn-controller", s.Endpoint)
	o.nbctl("ls-add", "net")
	return o
}

func (o *OVN) nbctl(args ...string) {
	o.t.Helper()
	o.d.once("ovn-nbctl", append([]string{"--no-leader-only", "--db=unix:" + o.d.in("nb.sock")}, args...)...)
}

// AddPort makes a logical port, as Neutron does, with port security.
func (o *OVN) AddPort(w plug.Want) {
	o.t.Helper()
	addresses := w.Interface.MAC.String()
	for _, p := range w.Interface.Addresses {
		addresses += " " + p.Addr().String()
	}
	o.nbctl("lsp-add", "net", w.PortID, "--", "lsp-set-addresses", w.PortID, addresses, "--", "lsp-set-port-security", w.PortID, addresses)
}
