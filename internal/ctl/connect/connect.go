// Package connect reaches a cluster for command-line tools: by kubectl's flags and
// kubeconfig files, and by port forwarding to Berth's pods.
package connect

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berthnet/berth/internal/version"

	// Authentication plugins that kubectl supports in a kubeconfig.
	_ "k8s.io/client-go/plugin/pkg/client/auth"
)

// Flags are the kubectl flags that select a cluster and namespace.
type Flags struct {
	rules     *clientcmd.ClientConfigLoadingRules
	overrides clientcmd.ConfigOverrides
}

// Register adds the flags to a set.
func (f *Flags) Register(flags *pflag.FlagSet) {
	f.rules = clientcmd.NewDefaultClientConfigLoadingRules()
	flags.StringVar(&f.rules.ExplicitPath, "kubeconfig", "", "path of the kubeconfig file")
	clientcmd.BindOverrideFlags(&f.overrides, flags, clientcmd.RecommendedConfigOverrideFlags(""))
}

// Loader returns the client configuration that the flags select.
func (f *Flags) Loader() clientcmd.ClientConfig {
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(f.rules, &f.overrides)
}

// Given reports whether a flag or environment variable selects a cluster.
func (f *Flags) Given() bool {
	return f.rules.ExplicitPath != "" || f.overrides.CurrentContext != "" || f.overrides.Context.Cluster != "" || f.overrides.ClusterInfo.Server != "" ||
		os.Getenv(clientcmd.RecommendedConfigPathEnvVar) != ""
}

// NamedNamespace returns the value of --namespace, or "".
func (f *Flags) NamedNamespace() string { return f.overrides.Context.Namespace }

// Namespace returns the value of --namespace, or else the context's namespace, or else "default".
func (f *Flags) Namespace() (string, error) {
	ns, _, err := f.Loader().Namespace()
	if clientcmd.IsEmptyConfig(err) {
		return "", errNoCluster
	}
	return ns, err
}

var errNoCluster = errors.New("no cluster is configured: set --kubeconfig or KUBECONFIG")

// Config returns the client configuration of the API server. The error names what to set.
func (f *Flags) Config() (*rest.Config, error) {
	cfg, err := f.Loader().ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		return nil, errNoCluster
	}
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig: %w", err)
	}
	return cfg, nil
}

// As returns a copy of cfg with a program's user agent. It disables client-side rate
// limiting, because callers bound their own requests.
func As(program string, cfg *rest.Config) *rest.Config {
	cfg = rest.CopyConfig(cfg)
	cfg.UserAgent = program + "/" + version.String()
	cfg.QPS = -1
	cfg.WarningHandler = rest.NoWarnings{}
	return cfg
}
