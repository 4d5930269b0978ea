package lab

import (
	"errors"
	"maps"

	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/lab/run/vpccni"
)

// NewAmazonVPCCNI installs the Amazon VPC CNI on a node of a lab, and returns its daemon, which is not started. It has the
// variables of BerthdEnv, many of which both systems read, and pods of IPFamilies. chain names plugins that run after its own.
// The lab kills it when it is closed.
func NewAmazonVPCCNI(l *Lab, n *node.Node, chain ...string) (*vpccni.Daemon, error) {
	if l.AmazonVPCCNI == "" {
		return nil, errors.New("this lab has no programs of the Amazon VPC CNI")
	}
	m, err := l.machines.get(n.Name)
	if err != nil {
		return nil, err
	}
	env := maps.Clone(l.BerthdEnv)
	if l.PodFamilies() == ipfamily.OnlyIPv6 {
		if env == nil {
			env = map[string]string{}
		}
		env["ENABLE_IPv4"], env["ENABLE_IPv6"], env["ENABLE_PREFIX_DELEGATION"] = "false", "true", "true"
	}
	d, err := vpccni.New(vpccni.Options{Node: n, Programs: l.AmazonVPCCNI, Kubeconfig: l.Kube.AdminKubeconfig(), EC2URL: EC2URL, Env: env, Chain: chain})
	if err != nil {
		return nil, err
	}
	l.machines.mu.Lock()
	defer l.machines.mu.Unlock()
	m.former = d
	return d, nil
}

// killFormer kills the daemons of other networks.
func (s *machines) killFormer() error {
	var errs []error
	for _, m := range s.all() {
		s.mu.Lock()
		d := m.former
		s.mu.Unlock()
		if d != nil {
			errs = append(errs, d.Close())
		}
	}
	return errors.Join(errs...)
}
