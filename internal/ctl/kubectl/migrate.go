package kubectl

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berthnet/berth/internal/ctl/view"
	"github.com/berthnet/berth/internal/migrate"
	"github.com/berthnet/berth/internal/migrate/awsvpccni/chartvalues"
	"github.com/berthnet/berth/internal/migrate/manifests"
	"github.com/berthnet/berth/internal/migrate/rollout"
)

// former is a system that clusters can be migrated from.
type former struct {
	name      string
	daemonSet string // its usual namespace and name
	inPlace   bool   // pods keep running
	verbs     []string
	// tool returns the container of the node tool. Its verbs are those of the table.
	tool   func(r *toolRunner, verb string) (toolPod, error)
	dump   bool   // the node tool needs a dump of etcd with the owners of addresses
	silent string // the verb whose tool is the former system's own program, which prints no report; may be empty
	// objects returns the mover of its objects; nil if it has none to move.
	objects func(m *migration) (objectMover, error)
	// values converts its settings to chart values, and returns remarks; may be nil.
	values func(env map[string]string) (chart map[string]any, remarks []string)
	// controls is the path of the objects, named after Nodes, with which its operator manages nodes; may be empty.
	controls string
	taint    string   // key of the taint of Nodes without its daemon; may be empty
	notes    []string // further output of plan
}

// objectMover moves the objects of a former system. Each step can be repeated, and returns what it changed.
type objectMover interface {
	Plan(ctx context.Context) (migrate.Plan, error)
	Begin(ctx context.Context) (changed []string, err error)                 // before the first node
	Returned(ctx context.Context, node string) (changed []string, err error) // after a node has been moved back
	Back(ctx context.Context) (changed []string, err error)                  // after all nodes have been moved back
	Finish(ctx context.Context) (changed []string, err error)                // after its state has been removed from all nodes
}

// formers are the systems that clusters can be migrated from.
var formers = []former{
	{
		name: migrate.AmazonVPCCNI, daemonSet: "kube-system/aws-node", inPlace: true, verbs: nodeVerbs, tool: (*toolRunner).berthctl, values: chartvalues.Values,
		notes: []string{
			"An update of the EKS add-on vpc-cni may undo the change of the DaemonSet: do not update it until the migration has ended.",
			"Whenever aws-node starts, as it does in a rollback, it renews the policy rules of pods on secondary ENIs: packets may be lost, and connections to Services that kube-proxy masquerades may be reset.",
		},
	},
	{name: migrate.Coil, daemonSet: "kube-system/coild", inPlace: true, verbs: nodeVerbs, tool: (*toolRunner).berthctl, objects: (*migration).coilObjects},
	{
		name: migrate.CoilV1, daemonSet: "kube-system/coil-node", inPlace: true, verbs: nodeVerbs, tool: (*toolRunner).berthctl, dump: true, objects: (*migration).coilObjects,
		notes: []string{"Create a new dump of etcd for each call: pods that were created after the dump are unknown, and are replaced."},
	},
	{
		name: migrate.Cilium, daemonSet: "kube-system/cilium", verbs: []string{string(rollout.Apply), string(rollout.Finish)}, tool: (*toolRunner).cilium, silent: string(rollout.Apply), controls: ciliumNodesPath, taint: "node.cilium.io/agent-not-ready",
		notes: []string{
			"Every pod of a node is replaced: running pods cannot keep their addresses, because their links belong to Cilium's eBPF data path.",
			"CiliumNode objects of moved nodes are deleted. On a rollback, Cilium recreates them from its configuration: save those that were edited by hand.",
			"Nodes without Cilium do not enforce CiliumNetworkPolicies, and need kube-proxy if Cilium replaced it.",
		},
	},
}

// nodeVerbs are the verbs of `berthctl migrate`; finish is apply --finish.
var nodeVerbs = []string{rollout.Survey, string(rollout.Apply), string(rollout.Rollback), string(rollout.Finish), rollout.Verify}

func formerNames() string {
	var all []string
	for _, f := range formers {
		all = append(all, f.name)
	}
	return strings.Join(all, ", ")
}

// migrateFlags are the flags of `kubectl berth migrate`.
type migrateFlags struct {
	nodes          []string
	maxUnavailable int
	noNodePods     bool
	finish         bool
	evictUnmanaged bool
	daemonSet      string
	image          string
	etcdDump       string
	out            output
}

func newMigrate(p *program) *cobra.Command {
	var f migrateFlags
	verbs := []string{"plan", "apply", "rollback", "verify"}
	cmd := &cobra.Command{
		Use:   "migrate FROM {plan|apply|rollback|verify}",
		Short: "Move a running cluster from another network to Berth, node by node",
		Long: `Move a running cluster from another network to Berth, node by node. FROM is
` + formerNames() + `.

plan shows the findings, the steps and any obstacles. It changes nothing. On each node, a pod
with Berth's image reads the node's state, unless you set --no-node-pods.

apply moves nodes, and rollback moves them back. Both can be interrupted at any time: the next
call continues. Progress is in the ConfigMap berth-migration, and in the label
berth.dev/network of Nodes. A node never runs the daemons of both networks.

apply --finish removes the former network's state from the nodes, and its DaemonSet. It cannot
be undone.

verify checks that each pod's address has exactly one owner and that each pod answers its node,
and exits with 2 otherwise.

While the API server does not answer, all commands retry for up to 5 minutes.`,
		Example: `  kubectl berth migrate amazon-vpc-cni plan
  kubectl berth migrate amazon-vpc-cni apply --nodes ip-10-0-1-7.ec2.internal
  kubectl berth migrate amazon-vpc-cni apply --max-unavailable 3`,
		Args: cobra.ExactArgs(2),
		ValidArgsFunction: func(_ *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 0 {
				return starting(strings.Split(formerNames(), ", "), typed)
			}
			return starting(slices.Clone(verbs), typed)
		},
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			m, err := newMigration(p, cmd, args[0], &f)
			if err != nil {
				return err
			}
			if m.from.dump && (args[1] == "plan" || args[1] == "verify") {
				defer func() { err = errors.Join(err, m.deleteConfig(context.WithoutCancel(cmd.Context()), dumpName)) }()
			}
			switch args[1] {
			case "plan":
				return m.plan(cmd, &f)
			case "apply", "rollback":
				return m.move(cmd, rollout.Direction(args[1]), &f)
			case "verify":
				return m.verify(cmd, &f)
			}
			return fmt.Errorf("%q is unknown: expected one of %s", args[1], strings.Join(verbs, ", "))
		},
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&f.nodes, "nodes", nil, "names of the Nodes; all if empty")
	flags.IntVar(&f.maxUnavailable, "max-unavailable", 1, "number of nodes that move at a time")
	flags.BoolVar(&f.noNodePods, "no-node-pods", false, "plan and verify: run no pods on the nodes")
	flags.BoolVar(&f.finish, "finish", false, "apply: remove the remaining state of the former network after all nodes are moved")
	flags.BoolVar(&f.evictUnmanaged, "evict-unmanaged", false, "also evict pods that no controller recreates")
	flags.StringVar(&f.daemonSet, "daemonset", "", "namespace and name of the former network's DaemonSet, if not the default")
	flags.StringVar(&f.image, "image", "", "image of the pods on the nodes, if not that of berthd")
	flags.StringVar(&f.etcdDump, "etcd-dump", "", "coil-v1: file with the output of etcdctl get PREFIX --prefix -w json")
	f.out.register(cmd)
	cmd.AddCommand(newManifests())
	return cmd
}

// migration is one run of `kubectl berth migrate`.
type migration struct {
	*program
	*toolRunner
	tell func(node, what string) // progress of a run
	// operatorAccount is the service account of berth-operator; the default one if empty.
	operatorAccount string
}

func newMigration(p *program, cmd *cobra.Command, from string, f *migrateFlags) (*migration, error) {
	i := slices.IndexFunc(formers, func(of former) bool { return of.name == from })
	if i < 0 {
		return nil, fmt.Errorf("FROM is %q: expected one of %s", from, formerNames())
	}
	if err := limits(p); err != nil {
		return nil, err
	}
	if f.maxUnavailable < 1 {
		return nil, fmt.Errorf("--max-unavailable is %d: expected at least 1", f.maxUnavailable)
	}
	m := &migration{program: p, toolRunner: &toolRunner{requests: &requests{berth: p.daemons, limit: p.timeout, clock: p.Clock}, from: formers[i], image: f.image}}
	of := m.from.daemonSet
	if f.daemonSet != "" {
		of = f.daemonSet
	}
	var ok bool
	if m.formerNamespace, m.formerName, ok = strings.Cut(of, "/"); !ok || m.formerNamespace == "" || m.formerName == "" || strings.Contains(m.formerName, "/") {
		return nil, fmt.Errorf("--daemonset is %q: expected NAMESPACE/NAME", of)
	}
	if m.from.dump != (f.etcdDump != "") {
		return nil, fmt.Errorf("--etcd-dump is %q: expected a file with %s, and none with other networks", f.etcdDump, migrate.CoilV1)
	}
	var last string
	m.retrying = func(why string) {
		if why != last {
			last = why
			fmt.Fprintln(cmd.ErrOrStderr(), view.Printable(why))
		}
	}
	var err error
	if m.api, err = p.reach(cmd.Context()); err == nil && m.from.objects != nil {
		err = m.readOperator(cmd.Context())
	}
	if err == nil && m.from.dump {
		err = m.storeDump(cmd.Context(), f.etcdDump)
	}
	return m, err
}

// move runs apply, apply --finish or rollback.
func (m *migration) move(cmd *cobra.Command, d rollout.Direction, f *migrateFlags) error {
	if f.finish {
		if d != rollout.Apply || len(f.nodes) > 0 {
			return errors.New("--finish is for apply on all nodes, without --nodes")
		}
		d = rollout.Finish
	}
	o := rollout.Options{
		Direction: d, InPlace: m.from.inPlace, Verbs: m.from.verbs, Nodes: f.nodes, MaxUnavailable: f.maxUnavailable, EvictUnmanaged: f.evictUnmanaged,
	}
	report := &Migration{From: m.from.name, Command: string(d), Log: []string{}, Nodes: []MovedNode{}}
	m.tell = func(node, what string) {
		line := what
		if node != "" {
			line = node + ": " + what
		}
		line = view.Printable(line)
		report.Log = append(report.Log, line)
		if f.out == asTable || f.out == asWide {
			fmt.Fprintln(cmd.OutOrStdout(), line)
		}
	}
	err := rollout.Run(cmd.Context(), m, m.from.name, o, m.clock, m.tell)
	if cmd.Context().Err() != nil {
		return fmt.Errorf("interrupted: %w. The next call continues", err)
	}
	s, observed := m.see(cmd.Context(), false)
	if observed != nil {
		return errors.Join(err, observed)
	}
	report.fill(&s.State)
	if shown := f.out.show(cmd, report, report.write); shown != nil {
		return errors.Join(err, shown)
	}
	return err
}

func newManifests() *cobra.Command {
	var o manifests.Options
	cmd := &cobra.Command{
		Use:   "manifests FILE...",
		Short: "Convert manifests of other networks to Berth's objects",
		Long: `Convert manifests of other networks to Berth's objects, and print these. FILE is a YAML or
JSON file, or - for standard input, with ENIConfigs, SecurityGroupPolicies and Nodes of
clusters with the Amazon VPC CNI; CiliumNodes and the ConfigMap cilium-config; Coil's pools,
blocks and Egresses, and objects with its annotations. The command does not access a cluster.

Unknown kinds and fields are errors. Comments list the preparations that a migration needs,
and the settings without a counterpart in Berth. If there are such settings, the command exits
with 2.`,
		Example: `  kubectl get eniconfigs,nodes -o yaml | kubectl berth migrate manifests --eniconfig-label topology.kubernetes.io/zone -
  kubectl berth migrate manifests ciliumnodes.yaml cilium-config.yaml > nodenetworks.yaml`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			in := manifests.Input{Options: o}
			for _, name := range args {
				objects, err := readManifests(cmd, name)
				if err != nil {
					return err
				}
				in.Objects = append(in.Objects, objects...)
			}
			out, err := manifests.Convert(in)
			if err != nil {
				return err
			}
			if err := out.Write(cmd.OutOrStdout()); err != nil || len(out.Lost) == 0 {
				return err
			}
			return errUnwell
		},
	}
	cmd.Flags().StringVar(&o.ENIConfigLabel, "eniconfig-label", manifests.ENIConfigKey, "key of the label of Nodes, the Amazon VPC CNI's ENI_CONFIG_LABEL_DEF")
	cmd.Flags().StringVar(&o.ENIConfigAnnotation, "eniconfig-annotation", manifests.ENIConfigKey, "key of the annotation of Nodes, the Amazon VPC CNI's ENI_CONFIG_ANNOTATION_DEF")
	cmd.Flags().StringVar(&o.Template, "template", "", "name of one NodeNetworkTemplate for all CiliumNodes, which must have the same settings, instead of a NodeNetwork for each")
	return cmd
}

func readManifests(cmd *cobra.Command, name string) ([]manifests.Object, error) {
	if name == "-" {
		return manifests.Read("standard input", cmd.InOrStdin())
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return manifests.Read(name, f)
}

// ciliumNodesPath is the path of the objects with which Cilium's operator manages the addresses of nodes.
const ciliumNodesPath = "/apis/cilium.io/v2/ciliumnodes"
