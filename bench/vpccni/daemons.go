package vpccni

import (
	"context"
	"errors"

	"github.com/containernetworking/cni/libcni"

	"github.com/berthnet/berth/bench/must"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/lab/run/vpccni"
)

// berthd is Berth's daemon, which the lab runs.
type berthd struct{ *node.Node }

func (d berthd) ready(ctx context.Context) (*pods, error) {
	if _, err := d.Get(ctx, node.ReadyURL); err != nil {
		return nil, err
	}
	files, err := libcni.ConfFiles(d.ConfDir(), []string{".conflist"})
	if err != nil || len(files) == 0 {
		return nil, errors.Join(errors.New("no CNI configuration is installed yet"), err)
	}
	return newPods(d.Node, files[0])
}

// ipamd is the Amazon VPC CNI's daemon.
type ipamd struct{ *vpccni.Daemon }

func newIPAMD(b *bed, n *node.Node, env map[string]string) ipamd {
	return ipamd{must.Get(vpccni.New(vpccni.Options{
		Node: n, Programs: b.CNIDir, Kubeconfig: b.control.AdminKubeconfig(), EC2URL: lab.EC2URL, Env: env,
	}))}
}

func (d ipamd) ready(ctx context.Context) (*pods, error) {
	if err := d.Ready(ctx); err != nil {
		return nil, err
	}
	return newPods(d.Node, d.Configuration())
}

// Close kills the daemon.
func (d berthd) Close() error { return d.Kill() }
