package lab

import (
	"errors"
	"maps"
	"sync"

	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/lab/run/vpccni"
)

// former are daemons of other networks that the lab's nodes run.
type former struct {
	mu      sync.Mutex // guards daemons
	daemons []*vpccni.Daemon
}

// NewAmazonVPCCNI installs the Amazon VPC CNI on a node, and returns its daemon, which is not started. It has the variables
// of BerthdEnv, many of which both systems read, and pods of IPFamilies. The lab kills it when it is closed.
func (l *Lab) NewAmazonVPCCNI(n *node.Node) (*vpccni.Daemon, error) {
	if l.AmazonVPCCNI == "" {
		return nil, errors.New("this lab has no programs of the Amazon VPC CNI")
	}
	env := maps.Clone(l.BerthdEnv)
	if l.PodFamilies() == ipfamily.OnlyIPv6 {
		if env == nil {
			env = map[string]string{}
		}
		env["ENABLE_IPv4"], env["ENABLE_IPv6"], env["ENABLE_PREFIX_DELEGATION"] = "false", "true", "true"
	}
	d, err := vpccni.New(vpccni.Options{Node: n, Programs: l.AmazonVPCCNI, Kubeconfig: l.Kube.AdminKubeconfig(), EC2URL: EC2URL, Env: env})
	if err != nil {
		return nil, err
	}
	l.former.mu.Lock()
	defer l.former.mu.Unlock()
	l.former.daemons = append(l.former.daemons, d)
	return d, nil
}

// kill kills all daemons.
func (f *former) kill() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var errs []error
	for _, d := range f.daemons {
		errs = append(errs, d.Kill())
	}
	if len(f.daemons) > 0 {
		vpccni.Sweep()
	}
	return errors.Join(errs...)
}
