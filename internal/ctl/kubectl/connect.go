package kubectl

import (
	"cmp"
	"fmt"
	"strings"

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

// named is the namespace and name of an argument: NAMESPACE/NAME, or NAME of the chosen
// namespace. The error calls it what.
func (p *program) named(what, arg string) (namespace, name string, err error) {
	namespace, name, ok := strings.Cut(arg, "/")
	if !ok {
		name = arg
		if namespace, err = p.namespace(); err != nil {
			return "", "", err
		}
	}
	if namespace == "" || name == "" || strings.Contains(name, "/") {
		kind := strings.ToUpper(what)
		return "", "", fmt.Errorf("%s is %q, expected NAMESPACE/%s or %s", what, arg, kind, kind)
	}
	return namespace, name, nil
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
