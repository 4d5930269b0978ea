package bundle

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berthnet/berth/internal/version"
)

// size is a number of bytes, as Kubernetes writes one: 4Mi, 500k.
type size int64

func (s size) String() string { return resource.NewQuantity(int64(s), resource.BinarySI).String() }

// Type implements pflag.Value.
func (s *size) Type() string { return "size" }

// minSize leaves room to say what is in a bundle.
const minSize = 4 << 10

// Set implements pflag.Value.
func (s *size) Set(text string) error {
	q, err := resource.ParseQuantity(text)
	if err != nil || q.Value() < minSize {
		return fmt.Errorf("expected a size of at least %s, such as 4Mi", size(minSize))
	}
	*s = size(q.Value())
	return nil
}

// connection is how the cluster is found: by the flags of kubectl.
type connection struct {
	rules     *clientcmd.ClientConfigLoadingRules
	overrides clientcmd.ConfigOverrides
}

func (c *connection) register(flags *pflag.FlagSet) {
	c.rules = clientcmd.NewDefaultClientConfigLoadingRules()
	flags.StringVar(&c.rules.ExplicitPath, "kubeconfig", "", "path of the kubeconfig file")
	flags.StringVar(&c.overrides.CurrentContext, "context", "", "the context of the kubeconfig to use")
}

// given tells whether somebody named a cluster.
func (c *connection) given() bool {
	return c.rules.ExplicitPath != "" || c.overrides.CurrentContext != "" || os.Getenv(clientcmd.RecommendedConfigPathEnvVar) != ""
}

// config is how to reach the API server.
func (c *connection) config() (*rest.Config, error) {
	cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(c.rules, &c.overrides).ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		return nil, errors.New("no cluster is configured: set --kubeconfig or KUBECONFIG")
	}
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig: %w", err)
	}
	cfg.UserAgent = "berthctl/" + version.String()
	cfg.WarningHandler = rest.NoWarnings{}
	return cfg, nil
}
