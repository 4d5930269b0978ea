// Package connect is how programs for people find a cluster: by the flags and files of
// kubectl.
package connect

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berthnet/berth/internal/version"

	// Ways to prove who one is that kubeconfig names besides certificates,
	// tokens and programs, as kubectl has them.
	_ "k8s.io/client-go/plugin/pkg/client/auth"
)

// Flags are those of kubectl that say which cluster.
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

// Loader reads what the flags say.
func (f *Flags) Loader() clientcmd.ClientConfig {
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(f.rules, &f.overrides)
}

// Given tells whether somebody named a cluster, by a flag or a variable.
func (f *Flags) Given() bool {
	return f.rules.ExplicitPath != "" || f.overrides.CurrentContext != "" || f.overrides.Context.Cluster != "" || f.overrides.ClusterInfo.Server != "" ||
		os.Getenv(clientcmd.RecommendedConfigPathEnvVar) != ""
}

// NamedNamespace is what --namespace says, or empty.
func (f *Flags) NamedNamespace() string { return f.overrides.Context.Namespace }

// Namespace is the one of --namespace, or else of the context, or else "default".
func (f *Flags) Namespace() (string, error) {
	ns, _, err := f.Loader().Namespace()
	if clientcmd.IsEmptyConfig(err) {
		return "", errNoCluster
	}
	return ns, err
}

var errNoCluster = errors.New("no cluster is configured: set --kubeconfig or KUBECONFIG")

// Config is how to reach the API server. The error says what to set.
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

// As is a copy of a configuration for a program of this name. Requests are paced by what
// asks, not by the client.
func As(program string, cfg *rest.Config) *rest.Config {
	cfg = rest.CopyConfig(cfg)
	cfg.UserAgent = program + "/" + version.String()
	cfg.QPS = -1
	cfg.WarningHandler = rest.NoWarnings{}
	return cfg
}
