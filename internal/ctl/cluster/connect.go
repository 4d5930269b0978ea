package cluster

import (
	"cmp"

	"k8s.io/client-go/rest"

	"github.com/berthnet/berth/internal/ctl/connect"
)

// namespace is the one of --namespace, or else of the context, or else "default".
func (p *program) namespace() (string, error) {
	if p.Options.Config != nil {
		return cmp.Or(p.NamedNamespace(), "default"), nil
	}
	return p.Namespace()
}

// config is how to reach the API server.
func (p *program) config() (*rest.Config, error) {
	cfg := p.Options.Config
	if cfg == nil {
		var err error
		if cfg, err = p.Flags.Config(); err != nil {
			return nil, err
		}
	}
	return connect.As("kubectl-berth", cfg), nil
}
