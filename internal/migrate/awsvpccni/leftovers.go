package awsvpccni

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/kernel/rtnl"
	"github.com/berthnet/berth/internal/kernel/xtables"
	"github.com/berthnet/berth/internal/migrate"
	"github.com/berthnet/berth/internal/migrate/plugins"
	"github.com/berthnet/berth/internal/node/foreign"
)

// Finish implements migrate.System. berthd may run.
func (n *Node) Finish(ctx context.Context) (migrate.Report, error) {
	p := &progress{migrate.Report{From: migrate.AmazonVPCCNI, Command: "finish"}}
	if err := n.files.formerRuns(ctx); err != nil {
		return p.Report, fmt.Errorf("%w: stop it first", err)
	}
	s, err := p.surveyFinished(ctx, n)
	if err != nil {
		return p.Report, err
	}
	taken, err := n.files.take()
	if err != nil {
		return p.Report, err
	}
	if taken { // ipamd may have written it after the survey, and cannot write it any more
		p.Changed = append(p.Changed, setCheckpointAside)
		if s, err = p.surveyFinished(ctx, n); err != nil {
			restored, failed := n.files.restore()
			if restored {
				p.Changed = append(p.Changed, putCheckpointBack)
			}
			return p.Report, errors.Join(err, failed)
		}
	}
	legacy := func(survey) ([]string, error) { return removeLegacyFilters(ctx) }
	var errs []error
	for _, step := range []func(survey) ([]string, error){n.removeRules, n.removeTables, removeVLANs, removeFilters, legacy, n.removeFiles} {
		changed, err := step(s)
		p.Changed = append(p.Changed, changed...)
		errs = append(errs, err)
	}
	removed, kept, err := plugins.Folders{Bin: n.o.Config.CNIBinDir, Conf: n.o.Config.CNIConfDir, Results: n.results()}.Remove(module, programs...)
	p.Changed, p.Kept = append(p.Changed, removed...), kept
	err = errors.Join(append(errs, err)...)
	if err != nil {
		p.Problems = append(p.Problems, err.Error())
	}
	return p.Report, err
}

// surveyFinished surveys the node, and returns an error while pods on it are the Amazon VPC CNI's.
func (p *progress) surveyFinished(ctx context.Context, n *Node) (survey, error) {
	s, err := n.survey(ctx)
	if err != nil {
		return s, err
	}
	p.Pods = s.plan().Pods
	if left := migrate.Count(p.Pods, migrate.Adopt) + migrate.Count(p.Pods, migrate.Replace); left > 0 {
		return s, fmt.Errorf("%d pods are still the Amazon VPC CNI's: apply, or delete those that must be replaced, before you finish", left)
	}
	return s, nil
}

// module is the Go module of the Amazon VPC CNI, and programs are what it installs beside the reference plugins, which other
// configurations may use.
const module = "github.com/aws/amazon-vpc-cni-k8s"

var programs = []string{"aws-cni", "egress-cni", "aws-cni-support.sh"}

// results returns the folder of libcni's results, if the container runtime uses them to end pods.
func (n *Node) results() string {
	if !plugins.EndsByResult(n.o.Config.CRISocket) {
		return ""
	}
	return filepath.Join(n.o.CNICache, "results")
}

// removeRules removes the policy rules of the Amazon VPC CNI.
func (n *Node) removeRules(s survey) (changed []string, err error) {
	all, err := n.allRules()
	if err != nil {
		return nil, err
	}
	for _, r := range all {
		if !s.isFormer(r) {
			continue
		}
		if r.Priority == localRule { // enforcing mode strict moved it behind the rules of branches
			first := r
			first.Priority = 0
			if err := n.host.RuleAdd(&first); err != nil && !errors.Is(err, unix.EEXIST) {
				return changed, fmt.Errorf("put the rule for local addresses back: %w", err)
			}
		}
		if err := n.host.RuleDel(&r); err != nil && !rtnl.IsGone(err) {
			return changed, fmt.Errorf("remove the %s: %w", rtnl.RuleOf(r), err)
		}
		changed = append(changed, "removed the "+rtnl.RuleOf(r).String())
	}
	return changed, nil
}

// localRule is the priority of the rule for local addresses where pods have branches in enforcing mode strict.
const localRule = 20

// isFormer reports whether a rule is one of the Amazon VPC CNI. Its rules have no protocol number.
func (s survey) isFormer(r netlink.Rule) bool {
	id := rtnl.RuleOf(r)
	if r.Protocol != unix.RTPROT_UNSPEC && r.Protocol != unix.RTPROT_BOOT || id.Invert || id.Out != "" || id.Goto != 0 {
		return false
	}
	if id.In != "" {
		return isFormerBranch(id, s.prefix)
	}
	if id.From.IsValid() {
		return s.isFormerFrom(id)
	}
	switch id.Priority {
	case ruleToPod:
		return id.To.IsSingleIP() && s.inVPC(id.To.Addr()) && id.Table == mainTable
	case ruleMark:
		return id.Mark != 0 && id.Mark == id.Mask && !id.To.IsValid() && id.Table == mainTable
	case ruleExternal:
		return id.To.IsValid() && id.Table == mainTable
	case localRule:
		return id.Table == unix.RT_TABLE_LOCAL && !id.To.IsValid()
	}
	return false
}

// isFormerBranch is isFormer for rules of packets that come in by a link: a branch's VLAN, or its pod.
func isFormerBranch(id rtnl.Rule, prefix string) bool {
	return id.Priority == ruleBranch && !id.From.IsValid() && !id.To.IsValid() && id.Mask == 0 && id.Table > branchTables && id.Table <= branchTables+lastVLAN && id.Table != mainTable &&
		(id.In == vlanLink(id.Table-branchTables) || (link{name: id.In}).isFormer(prefix))
}

// removeVLANs removes the VLANs of branch interfaces, whose pods are gone, and their routes with them.
func removeVLANs(survey) (changed []string, err error) {
	all, err := rtnl.Whole(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	for _, l := range all {
		v, ok := l.(*netlink.Vlan)
		if !ok || v.Name != vlanLink(v.VlanId) {
			continue
		}
		if err := netlink.LinkDel(l); err != nil && !rtnl.IsNoLink(err) {
			return changed, fmt.Errorf("remove %s: %w", v.Name, err)
		}
		changed = append(changed, "removed the link "+v.Name)
	}
	return changed, nil
}

// isFormerFrom is isFormer for rules with a source.
func (s survey) isFormerFrom(id rtnl.Rule) bool {
	if !id.From.IsSingleIP() {
		return false
	}
	source := id.From.Addr()
	switch id.Priority {
	case ruleFromPod:
		return s.inVPC(source) && !id.To.IsValid()
	case ruleFromENI:
		_, held := s.eniOf(source)
		return id.Table != mainTable && (held || slices.ContainsFunc(s.enis, func(e cloud.AttachedENI) bool { return e.Primary == source }))
	}
	return false
}

// removeTables removes the routes of secondary ENIs.
func (n *Node) removeTables(s survey) (changed []string, err error) {
	for _, e := range s.enis {
		if e.DeviceIndex == 0 {
			continue
		}
		link, err := n.eniLink(e)
		if errors.Is(err, datapath.ErrNoLink) {
			continue
		}
		if err != nil {
			return changed, err
		}
		for _, family := range families {
			routes, err := rtnl.Whole(func() ([]netlink.Route, error) {
				return n.host.RouteListFiltered(family, &netlink.Route{LinkIndex: link.Attrs().Index, Table: tableOf(e.DeviceIndex)}, netlink.RT_FILTER_OIF|netlink.RT_FILTER_TABLE)
			})
			if err != nil {
				return changed, fmt.Errorf("list the routes of table %d: %w", tableOf(e.DeviceIndex), err)
			}
			for _, r := range routes {
				if r.Protocol == datapath.Protocol {
					continue
				}
				if err := n.host.RouteDel(&r); err != nil && !rtnl.IsGone(err) {
					return changed, fmt.Errorf("remove the route %s of table %d: %w", rtnl.RouteDst(r), r.Table, err)
				}
				changed = append(changed, fmt.Sprintf("removed the route %s of table %d", rtnl.RouteDst(r), r.Table))
			}
		}
	}
	return changed, nil
}

// removeFiles removes the files of ipamd and its CNI configuration. ipamd still refuses to start, if somebody applies its DaemonSet
// again.
func (n *Node) removeFiles(survey) (changed []string, err error) {
	for _, path := range n.files.all() {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return changed, fmt.Errorf("remove %s: %w", path, err)
		}
		changed = append(changed, "removed "+path)
	}
	_, err = foreign.Fence(n.files.run)
	return changed, err
}

// Names and comments of the Amazon VPC CNI's chains and rules of iptables, in both of its forms.
var (
	chainPrefixes = []string{"AWS-SNAT-CHAIN-", "AWS-CONNMARK-CHAIN-"}
	comments      = []string{"AWS, primary ENI", "AWS SNAT CHAIN", "AWS, outbound connections", "AWS, CONNMARK", "Block Node Local Pod access via IP"}
)

const ownTable = "aws-cni" // of nftables, family ip

func isFormerChain(name string) bool {
	return slices.ContainsFunc(chainPrefixes, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}

func isFormerComment(text string) bool {
	return slices.ContainsFunc(comments, func(c string) bool { return strings.HasPrefix(text, c) })
}

// filterTables have chains and rules of the Amazon VPC CNI.
var filterTables = []string{"nat", "mangle", "filter"}

// removeLegacyFilters removes chains and rules of the Amazon VPC CNI from iptables-legacy.
func removeLegacyFilters(ctx context.Context) (changed []string, err error) {
	for _, family := range families {
		for _, table := range filterTables {
			removed, err := xtables.Remove(ctx, family, table, xtables.Select{Chain: isFormerChain, Comment: isFormerComment})
			if err != nil {
				return changed, err
			}
			for _, what := range removed {
				changed = append(changed, fmt.Sprintf("removed %s in table %s of iptables-legacy", what, table))
			}
		}
	}
	return changed, nil
}

// removeFilters removes chains and rules of the Amazon VPC CNI from nftables, where iptables-nft has them too.
func removeFilters(survey) (changed []string, err error) {
	conn, err := nftables.New()
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	tables, err := conn.ListTables()
	if err != nil {
		return nil, fmt.Errorf("list nftables tables: %w", err)
	}
	var mine []*nftables.Chain
	for _, t := range tables {
		if t.Family == nftables.TableFamilyIPv4 && t.Name == ownTable {
			conn.DelTable(t)
			changed = append(changed, "removed the nftables table ip "+t.Name)
		}
	}
	chains, err := conn.ListChains()
	if err != nil {
		return nil, fmt.Errorf("list nftables chains: %w", err)
	}
	for _, c := range chains {
		if c.Table.Family != nftables.TableFamilyIPv4 && c.Table.Family != nftables.TableFamilyIPv6 || !slices.Contains(filterTables, c.Table.Name) {
			continue
		}
		rules, err := conn.GetRules(c.Table, c)
		if err != nil {
			return nil, fmt.Errorf("list the rules of nftables chain %s: %w", c.Name, err)
		}
		own := isFormerChain(c.Name)
		if own {
			mine = append(mine, c)
		}
		for _, r := range rules {
			if !own && !isFormerFilter(r) {
				continue
			}
			if err := conn.DelRule(r); err != nil {
				return nil, fmt.Errorf("remove a rule of nftables chain %s: %w", c.Name, err)
			}
			if !own {
				changed = append(changed, fmt.Sprintf("removed a rule of chain %s in table %s", c.Name, c.Table.Name))
			}
		}
	}
	for _, c := range mine {
		conn.DelChain(c)
		changed = append(changed, "removed chain "+c.Name)
	}
	if err := conn.Flush(); err != nil {
		return nil, fmt.Errorf("remove chains and rules of the Amazon VPC CNI: %w", err)
	}
	return changed, nil
}

// isFormerFilter reports whether a rule has one of the comments, or jumps to one of the chains.
func isFormerFilter(r *nftables.Rule) bool {
	for _, e := range r.Exprs {
		var text string
		switch e := e.(type) {
		case *expr.Match:
			if info, ok := e.Info.(*xt.Unknown); ok && e.Name == "comment" {
				text = string(*info)
			} else if info, ok := e.Info.(*xt.Comment); ok {
				text = string(*info)
			}
		case *expr.Verdict:
			if isFormerChain(e.Chain) {
				return true
			}
		}
		if isFormerComment(text) {
			return true
		}
	}
	return false
}
