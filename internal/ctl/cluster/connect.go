package cluster

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berthnet/berth/internal/version"

	// Ways to prove who one is that kubeconfig names besides certificates,
	// tokens and programs, as kubectl has them.
	_ "k8s.io/client-go/plugin/pkg/client/auth"
)

// connection is how the cluster is found: by the flags of kubectl.
type connection struct {
	rules     *clientcmd.ClientConfigLoadingRules
	overrides clientcmd.ConfigOverrides
}

func (c *connection) register(flags *pflag.FlagSet) {
	c.rules = clientcmd.NewDefaultClientConfigLoadingRules()
	flags.StringVar(&c.rules.ExplicitPath, "kubeconfig", "", "path of the kubeconfig file")
	clientcmd.BindOverrideFlags(&c.overrides, flags, clientcmd.RecommendedConfigOverrideFlags(""))
}

func (c *connection) loader() clientcmd.ClientConfig {
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(c.rules, &c.overrides)
}

// namespace is the one of --namespace, or else of the context, or else "default".
func (p *program) namespace() (string, error) {
	if p.Config != nil {
		return cmp.Or(p.overrides.Context.Namespace, "default"), nil
	}
	ns, _, err := p.loader().Namespace()
	if clientcmd.IsEmptyConfig(err) {
		return "", errNoCluster
	}
	return ns, err
}

var errNoCluster = errors.New("no cluster is configured: set --kubeconfig or KUBECONFIG")

// config is how to reach the API server. Requests are paced by what asks, not
// by the client.
func (p *program) config() (*rest.Config, error) {
	cfg := p.Config
	if cfg == nil {
		var err error
		if cfg, err = p.loader().ClientConfig(); clientcmd.IsEmptyConfig(err) {
			return nil, errNoCluster
		} else if err != nil {
			return nil, fmt.Errorf("read the kubeconfig: %w", err)
		}
	}
	cfg = rest.CopyConfig(cfg)
	cfg.UserAgent = "kubectl-berth/" + version.String()
	cfg.QPS = -1
	cfg.WarningHandler = rest.NoWarnings{}
	return cfg, nil
}
