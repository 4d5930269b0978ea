// Package kubectl implements `kubectl berth`: views of a whole cluster. It uses the API
// server only, and reads what only a node knows from its daemon by port forwarding.
//
//	cluster.go   the commands
//	connect.go   kubeconfig and arguments
//	api.go       requests to the API server
//	objects.go   the objects that are read
//	daemon.go    the pods of berthd and berth-operator
//	ask.go       requests to daemons
//	report.go    the rows of all nodes
//	output.go    output formats
//	complete.go  shell completion
//	status.go, node.go, pod.go, pools.go, vpcs.go, egresses.go, top.go, events.go  a command each
package kubectl

import (
	"errors"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"

	"github.com/berthnet/berth/internal/ctl/bundle"
	"github.com/berthnet/berth/internal/ctl/connect"
	"github.com/berthnet/berth/internal/ctl/view"
	"github.com/berthnet/berth/internal/version"
)

// Exit codes of the program.
const (
	ExitTrouble = 1 // the command failed
	ExitUnwell  = 2 // the command succeeded and found a problem
)

// errUnwell makes the program exit with ExitUnwell after the problem was printed.
var errUnwell = errors.New("a problem was found")

// ExitCode returns the exit code for the error of a command, and the error that is still to
// be printed, if any, with everything escaped that a terminal would interpret.
func ExitCode(err error) (code int, tell error) {
	switch {
	case err == nil:
		return 0, nil
	case errors.Is(err, errUnwell):
		return ExitUnwell, nil
	default:
		return ExitTrouble, errors.New(view.Printable(err.Error()))
	}
}

// Options replace kubeconfig and port forwarding, for tests. The zero value is for production.
type Options struct {
	Config *rest.Config   // instead of kubeconfig
	Dial   connect.Dialer // instead of port forwarding
	Now    func() time.Time
}

// program holds the options and flags that all commands share.
type program struct {
	Options
	connect.Flags
	daemons  string // namespace of berthd and berth-operator
	timeout  time.Duration
	parallel int
	quiet    bool // print no progress
}

// New returns the command `kubectl berth`. Pass its error to ExitCode.
func New(o Options) *cobra.Command {
	if o.Now == nil {
		o.Now = time.Now
	}
	p := &program{Options: o}
	cmd := &cobra.Command{
		Use:   "berth",
		Short: "Inspect Berth in a cluster, and find out why a pod has no address",
		Long: `Inspect Berth in a cluster, and find out why a pod has no address.

Reads everything through the Kubernetes API. It asks the berthd of a node for what only
that node knows, by port forwarding to the pod.

Exit codes: 0 healthy; 1 the command failed; 2 the command succeeded and found
a problem (status, node, pod, pools, vpcs, egresses).`,
		Example: `  kubectl berth status
  kubectl berth pod shop/web-0
  kubectl berth node ip-10-0-1-7.eu-central-1.compute.internal
  kubectl berth events --follow`,
		SilenceUsage:      true,
		SilenceErrors:     true,
		Annotations:       map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl berth"},
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
	}
	flags := cmd.PersistentFlags()
	p.Register(flags)
	flags.StringVar(&p.daemons, "berth-namespace", "kube-system", "namespace of the pods of berthd and berth-operator")
	flags.DurationVar(&p.timeout, "node-timeout", 10*time.Second, "limit for the answer of one node")
	flags.IntVar(&p.parallel, "parallel", 16, "number of nodes asked at a time, 1 to 256")
	flags.BoolVarP(&p.quiet, "quiet", "q", false, "print no progress on standard error")
	_ = cmd.RegisterFlagCompletionFunc("berth-namespace", completion{p}.namespaces)
	_ = cmd.RegisterFlagCompletionFunc("namespace", completion{p}.namespaces)
	_ = cmd.RegisterFlagCompletionFunc("context", completion{p}.contexts)
	cmd.AddCommand(newStatus(p), newNode(p), newPod(p), newPools(p), newVPCs(p), newEgresses(p), newTop(p), newEvents(p), newENIConfigs(p), bundle.New(bundle.Options{Config: p.config}), newVersion())
	return cmd
}

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version of this program", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cmd.Println(version.String())
			return nil
		},
	}
}
