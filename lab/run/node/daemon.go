package node

import (
	"context"
	"path/filepath"
	"slices"
	"time"

	"github.com/berthnet/berth/lab/network/ns"
	"github.com/berthnet/berth/lab/run/proc"
)

// The daemon's addresses inside its node's namespace, its own defaults.
const (
	IntrospectionURL = "http://127.0.0.1:6666/ip-manager"
	ReadyURL         = "http://127.0.0.1:61678/readyz"
	MetricsURL       = "http://127.0.0.1:61678/metrics"
)

// berthd is the daemon as the node runs it now.
func (n *Node) berthd() proc.Command {
	return proc.Command{
		Path: filepath.Join(n.BinDir, "berthd"), Args: n.daemonArgs(), Env: n.daemonEnv(), Netns: n.Netns,
	}
}

func (o Options) daemonArgs() []string {
	args := []string{
		"--node-name=" + o.Name,
		"--cluster-name=" + o.Cluster,
		"--state-dir=" + o.StateDir(),
		"--socket=" + o.Socket(),
		"--install-cni",
		"--cni-bin-dir=" + o.CNIBinDir(),
		"--cni-conf-dir=" + o.ConfDir(),
		"--cni-plugin=" + filepath.Join(o.BinDir, "berth"),
	}
	if o.EC2URL != "" {
		args = append(args, "--ec2-endpoint="+o.EC2URL)
	}
	return append(args, o.Args...)
}

func (o Options) daemonEnv() []string {
	var env []string
	for k, v := range o.Env {
		env = append(env, k+"="+v)
	}
	slices.Sort(env)
	return env
}

// WaitReady returns once pods can be made: the CNI configuration is installed
// and the daemon calls itself ready. The error of a daemon that ended, or that
// is not ready when ctx ends, holds the end of its log.
func (n *Node) WaitReady(ctx context.Context) error {
	return n.Wait(ctx, func() error {
		if _, err := n.conf(); err != nil {
			return err
		}
		_, err := n.Get(ctx, ReadyURL)
		return err
	})
}

// Get fetches a URL with a literal address from inside the node, and fails
// unless the status is 200. The body is returned in either case.
func (n *Node) Get(ctx context.Context, url string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return ns.Get(ctx, n.Netns, url)
}
