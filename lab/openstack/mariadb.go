package openstack

import (
	"os"
	"strings"
)

// database is the URL of a database as SQLAlchemy has it.
func (o Options) database(name string) string {
	return "mysql+pymysql://root@localhost/" + name + "?charset=utf8&unix_socket=" + o.databaseSocket()
}

func (o Options) databaseSocket() string { return o.in(databaseDir, "sql") }

// startDatabase starts MariaDB with empty databases. Who needs one waits for it.
//
// It has no tables of its own (mariadb-install-db takes seconds to make them), so no users
// and no rights: whoever opens its socket, root's, is who he says. Nothing is to survive the
// machine, so it does not wait for disks.
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
