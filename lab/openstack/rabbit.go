package openstack

import (
	"context"
	"fmt"
	"net/netip"
	"os"

	"github.com/berthnet/berth/lab/network/ns"
)

const (
	brokerPort = 5672
	// Ports of Erlang's own, other than a RabbitMQ's of the machine.
	epmdPort = 4379
	distPort = 25673
)

// startRabbit starts RabbitMQ and returns once it takes connections. It is started with
// Erlang's port mapper beside it, which it would else leave running, and as below systemd, where
// its script becomes the server: one that waited for it would leave it running when it is killed.
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
