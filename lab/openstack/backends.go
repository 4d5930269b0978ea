package openstack

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/lab/run/proc"
)

// database returns the SQLAlchemy URL of a database.
func (o Options) database(name string) string {
	return "mysql+pymysql://root@localhost/" + name + "?charset=utf8&unix_socket=" + o.databaseSocket()
}

func (o Options) databaseSocket() string { return o.in(databaseDir, "sql") }

// startDatabase starts MariaDB with empty databases. Its clients wait until it accepts connections.
//
// It has no system tables (mariadb-install-db takes seconds to create them), and so neither users nor
// privileges: it accepts any user on its socket, which only root can open. Its data need not survive a
// crash of the machine, so it does not sync to disk.
func (c *programs) startDatabase() error {
	if err := os.MkdirAll(c.in(databaseDir, "data"), 0o700); err != nil {
		return err
	}
	if err := os.Chmod(c.in(databaseDir), 0o700); err != nil {
		return err
	}
	var statements []string
	for _, name := range []string{"neutron", "keystone"} {
		statements = append(statements, "CREATE DATABASE "+name+" CHARACTER SET utf8mb3;")
	}
	init := c.in(databaseDir, "init.sql")
	if err := os.WriteFile(init, []byte(strings.Join(statements, "\n")+"\n"), 0o600); err != nil {
		return err
	}
	_, err := c.service(program{what: "MariaDB", name: "mariadbd", args: []string{
		"--no-defaults", "--user=root", "--datadir=" + c.in(databaseDir, "data"), "--socket=" + c.databaseSocket(), "--pid-file=" + c.in(databaseDir, "pid"),
		"--skip-networking", "--skip-grant-tables", "--init-file=" + init, "--skip-log-bin", "--skip-name-resolve", "--performance-schema=off",
		"--innodb-flush-log-at-trx-commit=0", "--innodb-buffer-pool-size=64M", "--innodb-log-file-size=16M", "--innodb-stats-persistent=0", "--innodb-flush-method=nosync",
	}})
	return err
}

const (
	brokerPort = 5672
	// Erlang's ports, other than those of a RabbitMQ that runs on the machine.
	epmdPort = 4379
	distPort = 25673
)

// startRabbit starts RabbitMQ and returns once it accepts connections. Erlang's port mapper is started
// separately, as RabbitMQ would leave it running. RUNNING_UNDER_SYSTEMD makes the start script exec the
// server: otherwise the script would wait for the server, and leave it running when the script is killed.
func (c *programs) startRabbit(ctx context.Context) error {
	if err := os.MkdirAll(c.in(rabbitDir, "mnesia"), 0o755); err != nil {
		return err
	}
	conf := fmt.Sprintf("listeners.tcp.default = %s:%d\nloopback_users = none\nvm_memory_high_watermark.absolute = 256MB\n", services.Addr(), brokerPort)
	for name, text := range map[string]string{"rabbitmq.conf": conf, "plugins": "[].\n"} {
		if err := os.WriteFile(c.in(rabbitDir, name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	mapper := []string{"ERL_EPMD_ADDRESS=127.0.0.1", fmt.Sprintf("ERL_EPMD_PORT=%d", epmdPort)}
	if _, err := c.service(program{what: "epmd", name: "epmd", env: mapper}); err != nil {
		return err
	}
	p, err := c.service(program{what: "RabbitMQ", name: "rabbitmq-server", env: append(mapper,
		"RUNNING_UNDER_SYSTEMD=true", "HOME="+c.in(rabbitDir), "RABBITMQ_NODENAME=lab@localhost", "RABBITMQ_CONFIG_FILE="+c.in(rabbitDir, "rabbitmq.conf"),
		"RABBITMQ_MNESIA_BASE="+c.in(rabbitDir, "mnesia"), "RABBITMQ_FEATURE_FLAGS_FILE="+c.in(rabbitDir, "features"), "ERL_CRASH_DUMP=/dev/null",
		"RABBITMQ_LOG_BASE="+c.in(logDir), "RABBITMQ_ENABLED_PLUGINS_FILE="+c.in(rabbitDir, "plugins"),
		"RABBITMQ_PID_FILE="+c.in(rabbitDir, "pid"), fmt.Sprintf("RABBITMQ_DIST_PORT=%d", distPort), "RABBITMQ_CONF_ENV_FILE=/dev/null",
		"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=+S 1:1 +sbwt none",
	)})
	if err != nil {
		return err
	}
	return c.within(ctx, "RabbitMQ, which logs to "+p.LogFile(), func(ctx context.Context) error {
		conn, err := ns.Dial(ctx, c.Netns, "tcp", netip.AddrPortFrom(services.Addr(), brokerPort), netip.Addr{})
		if err != nil {
			return err
		}
		return conn.Close()
	})
}

// Ports of OVN's databases (ovn-architecture(7)).
const (
	northboundPort = 6641
	southboundPort = 6642
)

// startOVN starts OVN's databases and northd. It creates the first row of both databases before northd and
// the controllers start: if both create it, they deadlock.
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

// waitDriver returns once Neutron has created the OVN objects that ports need, which is after its API
// responds.
func (c *programs) waitDriver(ctx context.Context, server *proc.Process) error {
	const group = "neutron_pg_drop" // drops packets that no rule allows
	return server.Wait(ctx, func() error {
		out, err := c.once(ctx, program{name: "ovn-nbctl", args: []string{
			"--no-leader-only", "--db=unix:" + c.in(ovnDir, "nb"), "--bare", "--columns=name", "find", "Port_Group", "name=" + group,
		}})
		if err == nil && !strings.Contains(out, group) {
			err = fmt.Errorf("Neutron has not created port group %s in OVN", group)
		}
		return err
	})
}
