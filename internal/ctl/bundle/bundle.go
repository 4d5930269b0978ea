// Package bundle implements `berthctl support-bundle`: one archive, without secrets, with the data
// that support needs to analyse a node or a cluster.
//
//	bundle.go   the command
//	archive     the archive: limits, deadlines, errors
//	local       what is collected on a node
//	cluster     what is collected through the API server, and from nodes
package bundle

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/rest"

	"github.com/berthnet/berth/internal/ctl/bundle/archive"
	"github.com/berthnet/berth/internal/ctl/bundle/cluster"
	"github.com/berthnet/berth/internal/ctl/connect"
	"github.com/berthnet/berth/internal/ctl/view"
)

const (
	long = `Collect logs, settings, metrics, addresses, the kernel's network state, CNI
configuration, records, versions and Kubernetes objects into one tar.gz for support.
Secrets that Berth recognizes are removed.

`
	ofNode = `Without --node and --all the bundle covers the node that the command runs on, and needs
no API server. With them the command`
	ofCluster   = `The command`
	nodeExample = `  berthctl support-bundle                  # of this node
  berthctl support-bundle --node node-1    # of a node and its cluster, from anywhere
  berthctl support-bundle --all --since 2h`
	clusterExample = `  kubectl berth support-bundle --node node-1
  kubectl berth support-bundle --all --since 2h`
	longEnd = ` reads objects and the logs of Berth's pods through the API server, and runs
/berthctl in the pod of berthd on each of the nodes.

A part that cannot be read does not stop the others; the command prints it and lists it in
errors.txt of the archive.`
)

// atOnce is the number of parts collected at a time on a node, where memory is limited.
const atOnce = 4

// Options let other programs, such as the kubectl plugin, select the cluster themselves.
type Options struct {
	// Config returns the client configuration of the API server. If it is nil, the command
	// has kubectl's flags to select a cluster, and covers the local node without --node and --all.
	Config func() (*rest.Config, error)
	// Node returns the parts of the node that the command runs on. If it is nil, the command
	// covers nodes of a cluster only, as on systems that are not Linux.
	Node NodeParts
}

// NodeParts returns the parts of the node that the program runs on.
type NodeParts func(context.Context, NodeOptions) []archive.Part

// NodeOptions are the settings of a collection on a node.
type NodeOptions struct {
	Address string        // of berthd's introspection, host:port
	Timeout time.Duration // for each part
	Since   time.Duration // maximum age of log lines
	Root    string        // mount point of the node's root file system

	// Empty values default to the daemon's settings, or else to the daemon's defaults.
	StateDir   string
	CNIConfDir string
	CRISocket  string
}

// command holds the flags.
type command struct {
	Options
	local   NodeOptions
	cluster cluster.Options
	flags   connect.Flags
	output  string
	file    size
	total   size
	nodes   []string
	all     bool
	isLocal bool
}

// New returns the command support-bundle.
func New(o Options) *cobra.Command {
	c := command{Options: o, file: 4 << 20, total: 256 << 20}
	scope, example := ofCluster, clusterExample
	if o.Config == nil {
		scope, example = ofNode, nodeExample
	}
	cmd := &cobra.Command{
		Use: "support-bundle", Short: "Collect diagnostic data for support", Long: long + scope + longEnd, Example: example, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.run(cmd) },
	}
	f := cmd.Flags()
	f.StringSliceVar(&c.nodes, "node", nil, "collect from this node of the cluster; may be repeated")
	f.BoolVar(&c.all, "all", false, "collect from all nodes of the cluster")
	f.BoolVar(&c.isLocal, "local", false, "collect from the node that this runs on; the default without --node and --all")
	f.StringVarP(&c.output, "output", "o", "", "the file to write, or - for standard output (default berth-support-SCOPE-TIME.tar.gz)")
	f.DurationVar(&c.local.Since, "since", 24*time.Hour, "maximum age of log lines")
	f.DurationVar(&c.local.Timeout, "timeout", 20*time.Second, "limit for each part")
	f.DurationVar(&c.cluster.NodeTimeout, "node-timeout", 3*time.Minute, "limit for each node of a cluster")
	f.Var(&c.file, "max-file-size", "maximum size of a file before compression; logs keep their newest lines")
	f.Var(&c.total, "max-size", "maximum size of all files together, before compression")
	f.StringVar(&c.local.Address, "address", "localhost:6666", "where berthd serves introspection on the node (its --introspection-address)")
	f.StringVar(&c.local.StateDir, "state-dir", "", "where berthd keeps its records (default: berthd's setting)")
	f.StringVar(&c.local.CNIConfDir, "cni-conf-dir", "", "where the runtime looks for network configuration (default: berthd's setting)")
	f.StringVar(&c.local.CRISocket, "cri-socket", "", "socket of the container runtime (default: berthd's setting, or the usual paths)")
	f.StringVar(&c.local.Root, "root", "/", "where the node's root file system is mounted in a container")
	f.StringVar(&c.cluster.Namespace, "berth-namespace", "", "namespace of Berth's pods (default: any)")
	if o.Config == nil {
		c.flags.Register(f)
	}
	cmd.MarkFlagsMutuallyExclusive("local", "node", "all")
	return cmd
}

// run writes the bundle and prints what it could not read.
func (c *command) run(cmd *cobra.Command) error {
	ctx := cmd.Context()
	scope, job, err := c.prepare(ctx)
	if err != nil {
		return err
	}
	name := fmt.Sprintf("berth-support-%s-%s", scope, time.Now().UTC().Format("20060102T150405Z"))
	out, keep, drop, err := c.open(cmd, name)
	if err != nil {
		return err
	}
	a := archive.New(out, name, scope, archive.Limits{File: int64(c.file), Total: int64(c.total)}, time.Now)
	err = job(a, cmd.ErrOrStderr())
	var index archive.Index
	if err == nil {
		index, err = a.Close()
	}
	if err != nil {
		return errors.Join(fmt.Errorf("no bundle was written: %w", err), drop())
	}
	if err := keep(); err != nil {
		return fmt.Errorf("no bundle was written: %w", err)
	}
	c.report(cmd.ErrOrStderr(), index, name)
	return nil
}

// job collects into an archive and prints its progress.
type job func(a *archive.Archive, progress io.Writer) error

// prepare returns the parts to collect. It fails if there is no source to collect from.
func (c *command) prepare(ctx context.Context) (scope string, do job, err error) {
	if !c.all && len(c.nodes) == 0 && !c.isLocal && c.Config != nil {
		return "", nil, errors.New("specify --all, --node NODE, or --local for the node that this runs on")
	}
	if !c.all && len(c.nodes) == 0 {
		if c.Node == nil {
			return "", nil, errors.New("nodes run Linux, unlike this machine: specify --node NODE or --all")
		}
		host, err := os.Hostname()
		if err != nil {
			host = "node"
		}
		return plain(host), func(a *archive.Archive, _ io.Writer) error {
			parts := c.Node(ctx, c.local)
			if c.flagsGiven() { // a node's own credentials cannot read these objects
				parts = append(parts, c.objects(ctx)...)
			}
			return a.Collect(ctx, atOnce, parts)
		}, nil
	}
	cfg, err := c.config()
	if err != nil {
		return "", nil, err
	}
	o := c.cluster
	o.Nodes, o.All, o.Timeout, o.Since, o.FileSize = c.nodes, c.all, c.local.Timeout, c.local.Since, c.file.String()
	k, err := cluster.New(ctx, cfg, o)
	if err != nil {
		return "", nil, err
	}
	scope = "cluster"
	if len(c.nodes) == 1 {
		scope = plain(c.nodes[0])
	}
	return scope, func(a *archive.Archive, progress io.Writer) error { return k.Collect(ctx, a, progress) }, nil
}

// flagsGiven reports whether flags or environment variables select a cluster.
func (c *command) flagsGiven() bool { return c.Config == nil && c.flags.Given() }

func (c *command) config() (*rest.Config, error) {
	if c.Config != nil {
		return c.Config()
	}
	cfg, err := c.flags.Config()
	if err != nil {
		return nil, err
	}
	return connect.As("berthctl", cfg), nil
}

// objects returns the cluster parts for a bundle of this node.
func (c *command) objects(ctx context.Context) []archive.Part {
	failed := func(err error) []archive.Part {
		return []archive.Part{{Name: "cluster", Timeout: c.local.Timeout, Collect: func(context.Context, *archive.Sink) error { return err }}}
	}
	cfg, err := c.config()
	if err != nil {
		return failed(err)
	}
	o := c.cluster
	o.Timeout, o.Since = c.local.Timeout, c.local.Since
	k, err := cluster.New(ctx, cfg, o)
	if err != nil {
		return failed(err)
	}
	return k.Objects()
}

// open returns the output of the archive, and functions that keep or remove it at the end.
func (c *command) open(cmd *cobra.Command, name string) (out io.Writer, keep, drop func() error, err error) {
	nothing := func() error { return nil }
	if c.output == "-" {
		out := cmd.OutOrStdout()
		if f, ok := out.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
			return nil, nil, nil, errors.New("--output=-: standard output is a terminal, expected a file or a pipe")
		}
		return out, nothing, nothing, nil
	}
	if c.output == "" {
		c.output = name + ".tar.gz"
	}
	f, err := archive.Create(c.output)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("--output: %w", err)
	}
	return f, f.Keep, f.Drop, nil
}

// report prints the path of the bundle and the parts that could not be read.
func (c *command) report(w io.Writer, index archive.Index, name string) {
	var bytes int64
	for _, f := range index.Files {
		bytes += f.Size
	}
	where := c.output
	if where == "-" {
		where = name
	}
	fmt.Fprintf(w, "%s: %d files, %s before compression\n", where, len(index.Files), size(bytes))
	if len(index.Errors) == 0 {
		return
	}
	fmt.Fprintf(w, "%d parts could not be read completely (see also %s in the bundle):\n", len(index.Errors), archive.ErrorsFile)
	for i, e := range index.Errors {
		if i == maxListed {
			fmt.Fprintf(w, "  and %d more\n", len(index.Errors)-i)
			break
		}
		fmt.Fprintf(w, "  %s: %s\n", view.Printable(e.Part), view.Printable(e.Error))
	}
}

// maxListed bounds the number of failed parts that are printed.
const maxListed = 40

// plain replaces characters that are not safe in a file name.
func plain(name string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '.' {
			return r
		}
		return '_'
	}, name)
}

// size is a number of bytes in the format of Kubernetes quantities: 4Mi, 500k.
type size int64

func (s size) String() string { return resource.NewQuantity(int64(s), resource.BinarySI).String() }

// Type implements pflag.Value.
func (s *size) Type() string { return "size" }

// minSize leaves room for the index of a bundle.
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
