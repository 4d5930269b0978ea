package openstack

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/berthnet/berth/lab/run/proc"
)

// Ports of OVN's databases (ovn-architecture(7)).
const (
	northboundPort = 6641
	southboundPort = 6642
)

// startOVN starts OVN's databases and northd. Both databases get their first row before
// anybody else could make it: northd and a controller that both do wait for each other for
// ever.
func (c *programs) startOVN(ctx context.Context) error {
	if err := os.MkdirAll(c.in(ovnDir), 0o755); err != nil {
		return err
	}
	for _, db := range []struct {
		name, init string
		port       int
	}{{"nb", "ovn-nbctl", northboundPort}, {"sb", "ovn-sbctl", southboundPort}} {
		file, socket := c.in(ovnDir, db.name+".db"), c.in(ovnDir, db.name)
		if _, err := c.once(ctx, program{name: "ovsdb-tool", args: []string{"create", file, "/usr/share/ovn/ovn-" + db.name + ".ovsschema"}}); err != nil {
			return err
		}
		p, err := c.service(program{what: "OVN " + db.name, name: "ovsdb-server", args: []string{
			file, "--remote=punix:" + socket, fmt.Sprintf("--remote=ptcp:%d:%s", db.port, services.Addr()), "--unixctl=" + socket + ".ctl", "-vconsole:warn",
		}})
		if err != nil {
			return err
		}
		if err := p.Wait(ctx, func() error { return proc.Listens(ctx, socket) }); err != nil {
			return err
		}
		if _, err := c.once(ctx, program{name: db.init, args: []string{"--no-leader-only", "--db=unix:" + socket, "init"}}); err != nil {
			return err
		}
	}
	_, err := c.service(program{what: "northd", name: "ovn-northd", args: []string{
		"--ovnnb-db=unix:" + c.in(ovnDir, "nb"), "--ovnsb-db=unix:" + c.in(ovnDir, "sb"), "--unixctl=" + c.in(ovnDir, "northd.ctl"), "-vconsole:warn",
	}})
	return err
}

// waitDriver returns once Neutron has put into OVN what ports are made with: its API answers
// before that.
func (c *programs) waitDriver(ctx context.Context, server *proc.Process) error {
	const group = "neutron_pg_drop" // which drops what no rule allows
	return server.Wait(ctx, func() error {
		out, err := c.once(ctx, program{name: "ovn-nbctl", args: []string{
			"--no-leader-only", "--db=unix:" + c.in(ovnDir, "nb"), "--bare", "--columns=name", "find", "Port_Group", "name=" + group,
		}})
		if err == nil && !strings.Contains(out, group) {
			err = fmt.Errorf("OVN has no port group %s of it", group)
		}
		return err
	})
}
