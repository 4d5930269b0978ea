package kubectl

import (
	"cmp"
	"fmt"
	"strings"

	"k8s.io/client-go/rest"

	"github.com/berthnet/berth/internal/ctl/connect"
)

// namespace returns the value of --namespace, or else the context's namespace, or else "default".
func (p *program) namespace() (string, error) {
	if p.Options.Config != nil {
		return cmp.Or(p.NamedNamespace(), "default"), nil
	}
	return p.Namespace()
}

// named parses an argument: NAMESPACE/NAME, or NAME in the chosen namespace. Errors call
// the argument what.
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

// config returns the client configuration of the API server.
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
