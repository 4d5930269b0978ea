// Package kubectl implements `kubectl berth`: views of a whole cluster. It uses only the API
// server, and reads node-local state from the node's daemon by port forwarding.
//
//	cluster.go   the commands
//	api.go       the API server, and the objects that are read
//	daemon.go    the pods of berthd and berth-operator
//	ask.go       requests to daemons
//	report.go    the rows of all nodes
//	output.go    output formats
//	complete.go  shell completion
//	settings.go       the Helm release; choices.go the objects that people wrote, drift.go what differs from the release,
//	settingsstate.go  what status says about it
//	policycluster.go  network policies, resolved from the API's objects
//	migrate.go        moving a cluster from another network; migratecluster.go, migratetool.go, migrateplan.go are its parts
//	status.go, node.go, pod.go, pools.go, vpcs.go, egresses.go, policies.go, trace.go, top.go, events.go  a command each
package kubectl

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"

	"github.com/berthnet/berth/internal/clock"
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

// ExitCode returns the exit code for a command's error, and the error that is still to be printed,
// if any. Everything that a terminal would interpret is escaped.
func ExitCode(err error) (code int, toPrint error) {
	switch {
	case err == nil:
		return 0, nil
	case errors.Is(err, errUnwell):
		return ExitUnwell, nil
	default:
		return ExitTrouble, errors.New(view.Printable(err.Error()))
	}
}

// Options replace the kubeconfig and port forwarding in tests.
type Options struct {
	Config *rest.Config   // replaces the kubeconfig
	Dial   connect.Dialer // replaces port forwarding
	Now    func() time.Time
	Clock  clock.Clock // of waits
	// Node returns the parts of a support bundle of the node that the program runs on; nil if it does not run on Linux.
	Node bundle.NodeParts
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
	if o.Clock == nil {
		o.Clock = clock.Real{}
	}
	p := &program{Options: o}
	cmd := &cobra.Command{
		Use:   "berth",
		Short: "Inspect Berth in a cluster, and find out why a pod has no address",
		Long: `Inspect Berth in a cluster, and find out why a pod has no address.

Reads everything through the Kubernetes API. For data that only a node has, it connects to
the node's berthd by port forwarding.

Exit codes: 0 healthy; 1 the command failed; 2 the command succeeded and found
a problem (status, node, pod, pools, vpcs, egresses, policies, policy, trace, settings --diff).`,
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
	flags.IntVar(&p.parallel, "parallel", 16, "number of nodes queried at a time, 1 to 256")
	flags.BoolVarP(&p.quiet, "quiet", "q", false, "print no progress on standard error")
	_ = cmd.RegisterFlagCompletionFunc("berth-namespace", completion{p}.namespaces)
	_ = cmd.RegisterFlagCompletionFunc("namespace", completion{p}.namespaces)
	_ = cmd.RegisterFlagCompletionFunc("context", completion{p}.contexts)
	cmd.AddCommand(newStatus(p), newNode(p), newPod(p), newPools(p), newVPCs(p), newEgresses(p), newPolicies(p), newPolicy(p), newTrace(p), newTop(p), newEvents(p), newMigrate(p), newPlan(p), newSettings(p), bundle.New(bundle.Options{Config: p.config, Node: p.Node}), newVersion())
	return cmd
}

// named parses an argument, NAMESPACE/NAME or NAME in the selected namespace. Errors call
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

// choose returns the rows that the arguments name, or all rows without arguments. A missing row
// is an error, which mentions rows that could not be read.
func choose[T any](a *api, kind, plural string, rows []T, args []string, name func(T) string) ([]T, error) {
	if len(args) == 0 {
		return rows, nil
	}
	out := []T{}
	for _, arg := range args {
		i := slices.IndexFunc(rows, func(r T) bool { return name(r) == arg })
		if why := a.unread.why(plural); i < 0 && why != "" {
			return nil, fmt.Errorf("could not be read: %s", why)
		} else if i < 0 {
			return nil, fmt.Errorf("there is no %s %q", kind, arg)
		}
		out = append(out, rows[i])
	}
	return out, nil
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
