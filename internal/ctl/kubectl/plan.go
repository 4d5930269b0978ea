package kubectl

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ctl/diagnose"
	"github.com/berthnet/berth/internal/ctl/plancmd"
	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/internal/planner"
	webplanner "github.com/berthnet/berth/web/planner"
)

// planFlags are the flags of plan for a running cluster.
type planFlags struct {
	prometheus string
	history    time.Duration
	subnets    []string
	ec2        bool
	region     string
	within     time.Duration
}

func newPlan(p *program) *cobra.Command {
	var f planFlags
	cmd := plancmd.New(plancmd.Options{Page: webplanner.Page, Cluster: func(ctx context.Context, cmd *cobra.Command) (planner.Scenario, error) {
		return scenario(ctx, cmd, p, f)
	}})
	cmd.Long = `Simulate the cluster's workload with its settings and with others, and recommend one of them.

Without a file, the scenario is the running cluster: its nodes, settings and pods, read through
the API server, and with --prometheus its workload over time. --show prints the scenario, which
you can edit and simulate as a file.

` + cmd.Long
	cmd.Example = `  kubectl berth plan
  kubectl berth plan --prometheus http://localhost:9090 --history 48h
  kubectl berth plan --show > mine.yaml
  kubectl berth plan mine.yaml`
	fs := cmd.Flags()
	fs.StringVar(&f.prometheus, "prometheus", "", "URL of a Prometheus that scrapes Berth, for the workload over time; also reads kube-state-metrics")
	fs.DurationVar(&f.history, "history", 24*time.Hour, "how much of the past to read from Prometheus")
	fs.StringSliceVar(&f.subnets, "subnet", nil, "ID=CIDR or ID=CIDR=USED of a subnet: its CIDR, which is unknown in node mode, and the number of addresses of other users")
	fs.BoolVar(&f.ec2, "ec2", false, "read the CIDRs, tags and free addresses of subnets from EC2 (ec2:DescribeSubnets), with the credentials of the AWS command line")
	fs.StringVar(&f.region, "region", "", "AWS region of --ec2; that of the AWS configuration or the instance if empty")
	fs.DurationVar(&f.within, "timeout", 2*time.Minute, "limit for reading the cluster")
	return cmd
}

// scenario reads the cluster.
func scenario(ctx context.Context, cmd *cobra.Command, p *program, f planFlags) (planner.Scenario, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, f.within, fmt.Errorf("not done within --timeout %v", f.within))
	defer cancel()
	o, err := p.gather(ctx, cmd, false)
	if err != nil {
		return planner.Scenario{}, err
	}
	a, err := p.connect()
	if err != nil {
		return planner.Scenario{}, err
	}
	pods := list[corev1.Pod](ctx, a, "pods", podsOfAll, nil)
	if failed := slices.Concat(o.unread, a.unread); len(failed) > 0 {
		return planner.Scenario{}, fmt.Errorf("the cluster could not be read: %s", strings.Join(failed, "; "))
	}
	settings := planner.Settings{Mode: modeOfMost(o)}
	switch settings.Mode {
	case planner.ModeNode:
		if settings, err = nodeSettings(ctx, p, o); err != nil {
			return planner.Scenario{}, err
		}
	case planner.ModeOperator:
		settings.ENI = specOfMost(o)
	default:
		return planner.Scenario{}, errNothingToPlan
	}
	subnets, err := f.read(ctx, o, settings.ENI)
	if err != nil {
		return planner.Scenario{}, err
	}
	c, err := clusterOf(o, pods, settings, subnets)
	if err != nil {
		return planner.Scenario{}, err
	}
	if f.prometheus != "" {
		if c.History, err = planner.ReadHistory(ctx, http.DefaultClient, f.prometheus, f.history, p.Now()); err != nil {
			return planner.Scenario{}, fmt.Errorf("--prometheus: %w", err)
		}
	}
	return c.Scenario(), nil
}

// hostPods is 1 for a running pod of the host network, and 0 for others.
func hostPods(p corev1.Pod) int {
	if p.Spec.HostNetwork && runs(p) {
		return 1
	}
	return 0
}

// errNothingToPlan is the error for clusters whose pods have no addresses of ENIs.
var errNothingToPlan = errors.New("no node gets its addresses from ENIs: there is nothing to plan")

// modeOfMost returns the mode of the cluster: operator mode if any node has it.
func modeOfMost(o objects) (mode string) {
	for _, d := range o.daemons {
		switch d.mode {
		case diagnose.OperatorMode:
			return planner.ModeOperator
		case diagnose.NodeMode:
			mode = planner.ModeNode
		}
	}
	return mode
}

// specOfMost returns the settings that most NodeNetworks have.
func specOfMost(o objects) (out v1alpha1.ENISpec) {
	specs, most := map[string]int{}, 0
	for i := range o.networks {
		e := o.networks[i].EffectiveENI()
		text, _ := json.Marshal(e)
		if specs[string(text)]++; specs[string(text)] > most {
			most, out = specs[string(text)], planned(*e)
		}
	}
	return out
}

// clusterOf makes a Cluster of objects.
func clusterOf(o objects, pods []corev1.Pod, settings planner.Settings, subnets map[string]planner.Subnet) (planner.Cluster, error) {
	c := planner.Cluster{Pods: map[string]int{}, Settings: settings}
	hosts := 0 // pods of the host network, which scenarios do not have
	for _, p := range pods {
		hosts += hostPods(p)
	}
	used := map[string]bool{}
	for _, n := range o.nodes {
		d, ok := o.daemons[n.Name]
		if !ok || d.mode != diagnose.NodeMode && d.mode != diagnose.OperatorMode {
			continue
		}
		enis := o.subnetsOfENIs(n.Name)
		if err := plannable(n, enis.primary, subnets[enis.primary]); err != nil {
			return c, err
		}
		for _, id := range append(enis.serving, enis.primary) {
			s := subnets[id]
			s.Zone = n.Labels[corev1.LabelTopologyZone]
			subnets[id] = s
		}
		used[enis.primary] = true
		if e := &c.Settings.ENI; c.Settings.Mode == planner.ModeOperator && len(e.SubnetIDs)+len(e.SubnetTags) == 0 {
			for _, id := range enis.serving { // any subnet of the zone
				used[id] = used[id] || blockKnown(id, subnets[id]) == nil
			}
		}
		c.Nodes = append(c.Nodes, planner.ClusterNode{InstanceType: n.Labels[corev1.LabelInstanceTypeStable], Subnet: enis.primary, MaxPods: max(0, int(n.Status.Allocatable.Pods().Value())-hosts/len(o.nodes))})
	}
	if len(c.Nodes) == 0 {
		return c, errNothingToPlan
	}
	if err := useConfigured(used, c.Settings.ENI, subnets); err != nil {
		return c, err
	}
	for _, id := range slices.Sorted(maps.Keys(used)) {
		if used[id] {
			c.Subnets = append(c.Subnets, subnets[id])
		}
	}
	countPods(&c, pods)
	return c, nil
}

// useConfigured marks the subnets that the settings select by IDs or tags. It fails if the block of one is not known.
func useConfigured(used map[string]bool, settings v1alpha1.ENISpec, subnets map[string]planner.Subnet) error {
	for _, id := range settings.SubnetIDs {
		if err := blockKnown(id, subnets[id]); err != nil {
			return fmt.Errorf("subnets of the settings: %w", err)
		}
		used[id] = true
	}
	if len(settings.SubnetTags) == 0 {
		return nil
	}
	for id, s := range subnets {
		if !s.HasTags(settings.SubnetTags) {
			continue
		}
		if err := blockKnown(id, s); err != nil {
			return fmt.Errorf("subnets with the tags of the settings: %w", err)
		}
		used[id] = true
	}
	return nil
}

// plannable reports what is not known of a node: its type, its subnet, or the subnet's block.
func plannable(n corev1.Node, id string, subnet planner.Subnet) error {
	switch {
	case n.Labels[corev1.LabelInstanceTypeStable] == "":
		return fmt.Errorf("node %s has no label %s", n.Name, corev1.LabelInstanceTypeStable)
	case id == "":
		return fmt.Errorf("node %s: the subnet of its instance is not known: its berthd does not answer, or has just started", n.Name)
	}
	return blockKnown(id, subnet)
}

func runs(p corev1.Pod) bool {
	return p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed
}

// countPods counts the pods with an address of their own, by controller.
func countPods(c *planner.Cluster, pods []corev1.Pod) {
	daemons := 0
	for _, p := range pods {
		if p.Spec.HostNetwork || !runs(p) {
			continue
		}
		name := "single pods"
		for _, r := range p.OwnerReferences {
			if r.Controller != nil && *r.Controller {
				name = r.Name
				if hash := p.Labels["pod-template-hash"]; r.Kind == "ReplicaSet" {
					name = strings.TrimSuffix(name, "-"+hash)
				}
				if r.Kind == "DaemonSet" {
					name = ""
				}
			}
		}
		if name == "" {
			daemons++
			continue
		}
		c.Pods[p.Namespace+"/"+name]++
	}
	c.DaemonPods = (daemons + len(c.Nodes)/2) / max(1, len(c.Nodes))
}

// nodeSettings returns the settings of the first berthd that answers, in node mode.
func nodeSettings(ctx context.Context, p *program, o objects) (planner.Settings, error) {
	nodes, err := p.nodeClient()
	if err != nil {
		return planner.Settings{}, err
	}
	err = errors.New("no berthd runs")
	for _, d := range sortedDaemons(o.daemons) {
		var s introspect.Settings
		if err = nodes.get(ctx, d, introspect.SettingsPath, &s); err == nil {
			return plannedSettings(s)
		}
	}
	return planner.Settings{}, fmt.Errorf("settings of berthd: %w", err)
}

func sortedDaemons(m map[string]daemon) (out []daemon) {
	for _, d := range m {
		out = append(out, d)
	}
	slices.SortFunc(out, func(a, b daemon) int { return cmp.Compare(a.node, b.node) })
	return out
}

// plannedSettings translates berthd's settings. -1 and an empty value mean that a setting is not set.
func plannedSettings(s introspect.Settings) (planner.Settings, error) {
	out := planner.Settings{Mode: planner.ModeNode}
	e := &out.ENI
	for name, to := range map[string]**int32{
		"warm-eni-target": &e.WarmENITarget, "warm-ip-target": &e.WarmIPTarget, "minimum-ip-target": &e.MinimumIPTarget, "warm-prefix-target": &e.WarmPrefixTarget,
		"min-allocate": &e.MinAllocate, "pre-allocate": &e.PreAllocate, "max-above-watermark": &e.MaxAboveWatermark, "max-allocate": &e.MaxAllocate,
		"max-eni": &e.MaxENIs, "max-pods": &e.MaxPods, "first-interface-index": &e.FirstInterfaceIndex,
	} {
		text, _ := s.Get(name)
		n, err := strconv.ParseInt(cmp.Or(text, "-1"), 10, 32)
		if err != nil {
			return out, fmt.Errorf("setting %s of berthd: %q is not a number", name, text)
		}
		if v := int32(n); v >= 0 {
			*to = &v
		}
	}
	for name, to := range map[string]*planner.Duration{"shrink-delay": &out.ShrinkDelay, "listing-interval": &out.ListingInterval} {
		text, _ := s.Get(name)
		if d, err := time.ParseDuration(text); err == nil {
			*to = planner.Duration(d)
		}
	}
	if text, _ := s.Get("cooling-period"); text != "" {
		if d, err := time.ParseDuration(text); err == nil {
			cooling := planner.Duration(d)
			out.Cooling = &cooling
		}
	}
	if text, _ := s.Get("enable-prefix-delegation"); text == "true" {
		yes := true
		e.PrefixDelegation = &yes
	}
	e.IPFamilies, _ = s.Get("ip-families")
	if text, _ := s.Get("subnets"); text != "" {
		e.SubnetIDs = strings.Split(text, ",")
	}
	if text, _ := s.Get("subnet-tags"); text != "" {
		e.SubnetTags = map[string]string{}
		for pair := range strings.SplitSeq(text, ",") {
			key, value, _ := strings.Cut(pair, "=")
			e.SubnetTags[strings.TrimSpace(key)] = strings.TrimSpace(value)
		}
	}
	return out, nil
}
