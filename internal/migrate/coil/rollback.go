package coil

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/migrate"
	"github.com/berthnet/berth/internal/node/adopt"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/foreign"
)

// Rollback implements migrate.System.
func (n *Node) Rollback(ctx context.Context) (migrate.Report, error) {
	a, s, end, err := n.begin(ctx)
	if err != nil {
		return migrate.Report{}, err
	}
	defer end()
	changed, err := n.rechain()
	if err != nil || len(changed) > 0 {
		r, failed := n.report(ctx, "rollback", changed, nil)
		return r, errors.Join(err, failed)
	}
	form, err := n.form(s)
	if err != nil {
		return migrate.Report{}, err
	}
	if n.cfg.Known == nil && len(s.rules) == 0 {
		return migrate.Report{}, fmt.Errorf("rule %d of table %d is gone, so finish has begun: Coil treats pods' addresses as free", foreign.CoilRulePriority, foreign.CoilPodTable)
	}
	records, err := n.records()
	if err != nil {
		return migrate.Report{}, err
	}
	if err := n.links.removeUnreachable(); err != nil {
		return migrate.Report{}, err
	}
	var problems []string
	for _, rec := range records {
		former, why := n.former(rec, form, s.exports)
		if why != "" {
			problems = append(problems, fmt.Sprintf("%s/%s stays Berth's: %s", rec.Pod.Namespace, rec.Pod.Name, why))
			continue
		}
		if err := n.giveBack(ctx, a, rec, former, form); err != nil {
			r, _ := n.report(ctx, "rollback", changed, problems)
			return r, err
		}
		changed = append(changed, fmt.Sprintf("gave back %s/%s with %v", rec.Pod.Namespace, rec.Pod.Name, rec.Lease.Addrs()))
	}
	r, err := n.report(ctx, "rollback", changed, problems)
	return r, err
}

// former returns the state that Coil expects of a pod, or why it cannot have the pod.
func (n *Node) former(rec attachment.Record, form form, blocks []netip.Prefix) (a attachment.Adopted, why string) {
	if rec.Adopted != nil {
		return *rec.Adopted, ""
	}
	for _, addr := range rec.Lease.Addrs() {
		if !slices.ContainsFunc(blocks, func(p netip.Prefix) bool { return p.Contains(addr) }) {
			return a, fmt.Sprintf("%s is in none of the node's blocks of Coil; delete the pod", addr)
		}
	}
	switch {
	case rec.Egress != nil && len(rec.Egress.Egresses) > 0:
		return a, "it uses an Egress of Berth, and Coil makes tunnels only when a pod starts; delete the pod"
	case n.cfg.Known != nil:
		return a, "Coil v1 finds pods in its etcd alone; delete the pod"
	case !form.known():
		return a, "no pod of Coil is left that shows which gateway pods have; delete the pod"
	case rec.Lease.NodeLocal.IsValid() || len(rec.NICs) > 0:
		return a, "it has addresses that Coil does not know; delete the pod"
	}
	a = attachment.Adopted{
		From: n.cfg.from(), HostLink: "veth" + strings.TrimPrefix(rec.HostLink, datapath.LinkPrefix)[:8],
		Alias: foreign.CoilAlias{Pool: rec.Lease.Pool, Container: rec.Key.ContainerID, IfName: rec.Key.IfName}.String(),
	}
	for _, addr := range rec.Lease.Addrs() {
		a.Routes = append(a.Routes, form.route(addr))
	}
	return a, ""
}

// giveBack gives one pod back. The pod's gateway becomes Coil's after its link on the node is Coil's, and before Berth's routes
// to it go: both systems' routes lead to it then, and the node answers its ARP requests for the gateway, which it does not do on
// a link of Berth. A process that is killed at any step leaves a pod that sends and receives.
func (n *Node) giveBack(ctx context.Context, a *adopt.Adopter, rec attachment.Record, former attachment.Adopted, form form) error {
	if rec.Adopted == nil || n.cfg.Known != nil {
		if err := n.links.addAddresses(rec, form); err != nil {
			return err
		}
	}
	if rec.Adopted != nil {
		if err := restoreEgress(ctx, rec); err != nil {
			return err
		}
	}
	if err := failpoint.Hit("coil.tunnels.after"); err != nil {
		return err
	}
	if _, err := insideOf(rec, func(in *inside) (bool, error) { return true, in.prepare(form) }); err != nil {
		return err
	}
	if err := failpoint.Hit("coil.prepared.after"); err != nil {
		return err
	}
	return a.GiveBack(ctx, rec, former, func() error {
		if err := answerBy(rec.Netns, rec.Key.IfName, form.gatewaysOf(rec), nil); err != nil {
			return err
		}
		if _, err := insideOf(rec, func(in *inside) (bool, error) { return true, in.restore(form) }); err != nil {
			return err
		}
		return failpoint.Hit("coil.inside.after")
	})
}
