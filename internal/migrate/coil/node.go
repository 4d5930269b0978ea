package coil

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"github.com/vishvananda/netns"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/kernel/rtnl"
	"github.com/berthnet/berth/internal/migrate"
	"github.com/berthnet/berth/internal/migrate/coil/etcd"
	"github.com/berthnet/berth/internal/migrate/reach"
	"github.com/berthnet/berth/internal/node/adopt"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/daemon"
)

var _ = failpoint.Register("coil.rule.after", "coil.settle.after", "coil.egress.after", "coil.tunnels.after", "coil.tidy.after", "coil.addresses.after", "coil.exports.after", "coil.prepared.after", "coil.inside.after", "coil.draft.after", "coil.exchange.after")

// DefaultNetwork is the network's name in the configuration that Coil's installer writes.
const DefaultNetwork = "k8s-pod-network"

// Config says where things are on the node.
type Config struct {
	Node     attachment.Node // of records; with address pools the instance is the node's name
	StateDir string          // berthd's
	Network  string          // name of Berth's network (--cni-network), which must be Coil's
	Datapath datapath.Config // as berthd's

	Netns         string   // path of the node's network namespace; empty: the calling thread's
	NetnsFolders  []string // where the container runtime keeps namespaces
	Proc          string
	ResultFolders []string // of libcni
	ConfFolder    string   // of CNI configurations
	Plugin        string   // Coil's binary
	EndsByResult  bool     // the container runtime ends pods with the configuration of their results
	CoilAddress   net.Addr // at which coild answers
	// Known are the pods of Coil v1 on this node, from a dump of its etcd; nil: Coil v2.
	Known []etcd.Known
}

func (c Config) from() string {
	if c.Known != nil {
		return migrate.CoilV1
	}
	return migrate.Coil
}

// coildRuns reports whether Coil's daemon answers.
func (c Config) coildRuns(ctx context.Context) bool {
	conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, c.CoilAddress.Network(), c.CoilAddress.String())
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

var errCoildRuns = errors.New("coild runs on this node, and hands out addresses")

// begin is the interlock of all steps that change records: it fails while either daemon runs, and berthd cannot start until
// end is called. s is what the node has then.
func (n *Node) begin(ctx context.Context) (a *adopt.Adopter, s state, end func(), err error) {
	lock, err := daemon.AcquireLock(ctx, n.cfg.StateDir, clock.Real{}, n.log)
	if err != nil {
		return nil, s, nil, fmt.Errorf("%w: stop it first", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, lock.Release())
		}
	}()
	if n.cfg.coildRuns(ctx) {
		return nil, s, nil, fmt.Errorf("%w: stop it first", errCoildRuns)
	}
	store, bad, err := attachment.Open(n.cfg.recordDir(), n.cfg.Node, n.log)
	if err != nil {
		return nil, s, nil, err
	}
	if len(bad) > 0 {
		return nil, s, nil, fmt.Errorf("the record %s is damaged: start berthd, which reserves its addresses", bad[0].File)
	}
	if a, err = adopt.New(store, n.kernel, n.cfg.Netns, time.Now, n.log); err != nil {
		return nil, s, nil, err
	}
	if s, err = n.observe(ctx); err != nil {
		return nil, s, nil, errors.Join(err, a.Close())
	}
	return a, s, func() { _ = errors.Join(a.Close(), lock.Release()) }, nil
}

func (c Config) recordDir() string { return filepath.Join(c.StateDir, "attachments") }

func (n *Node) records() ([]attachment.Record, error) {
	list, _, err := attachment.Peek(n.cfg.recordDir(), n.cfg.Node.InstanceID)
	return list, err
}

// Node migrates one node. It implements migrate.System. It is used by one goroutine at a time.
type Node struct {
	cfg     Config
	log     *slog.Logger
	links   hostLinks
	kernel  *datapath.Node
	adopter *adopt.Adopter
}

var _ migrate.System = (*Node)(nil)

// Open opens the node's network namespace, and changes nothing. Close releases it.
func Open(cfg Config, log *slog.Logger) (_ *Node, err error) {
	n := &Node{cfg: cfg, log: log, links: hostLinks{ns: netns.None()}}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.Close())
		}
	}()
	if n.links.ns, err = rtnl.OpenNodeNetns(cfg.Netns); err != nil {
		return nil, err
	}
	if n.links.host, err = rtnl.Handle(n.links.ns); err != nil {
		return nil, fmt.Errorf("open netlink in the node's network namespace: %w", err)
	}
	if n.kernel, err = datapath.Open(cfg.Netns); err != nil {
		return nil, err
	}
	n.adopter, err = adopt.New(nil, n.kernel, cfg.Netns, time.Now, log) // without records, which only begin opens
	return n, err
}

// Close releases sockets.
func (n *Node) Close() (err error) {
	if n.adopter != nil {
		err = n.adopter.Close()
	}
	if n.kernel != nil {
		err = errors.Join(err, n.kernel.Close())
	}
	if n.links.host != nil {
		n.links.host.Close()
	}
	if n.links.ns.IsOpen() {
		err = errors.Join(err, n.links.ns.Close())
	}
	return err
}

// Plan implements migrate.System.
func (n *Node) Plan(ctx context.Context) (migrate.Plan, error) {
	s, err := n.observe(ctx)
	if err != nil {
		return migrate.Plan{}, err
	}
	return s.decide(n.cfg.from(), n.cfg.Network), nil
}

// report describes the node after a step.
func (n *Node) report(ctx context.Context, command string, changed, problems []string) (migrate.Report, error) {
	s, err := n.observe(ctx)
	r := migrate.Report{From: n.cfg.from(), Command: command, Pods: s.fates(), Changed: changed, Problems: problems}
	return r.Complete(), err
}

// Apply implements migrate.System.
func (n *Node) Apply(ctx context.Context) (migrate.Report, error) {
	a, s, end, err := n.begin(ctx)
	if err != nil {
		return migrate.Report{}, err
	}
	defer end()
	if o := s.decide(n.cfg.from(), n.cfg.Network).Blocked(); len(o) > 0 {
		return migrate.Report{}, fmt.Errorf("%s: %s", o[0].What, o[0].Remedy)
	}
	if changed, err := n.unchain(s); s.chained || err != nil || len(changed) > 0 {
		r, failed := n.report(ctx, "apply", changed, nil)
		return r, errors.Join(err, failed)
	}
	if !slices.ContainsFunc(s.pods, func(p pod) bool { return !p.chained() }) {
		return n.report(ctx, "apply", nil, nil)
	}
	config := n.cfg.Datapath
	routed, _ := config.Uplinks.(datapath.Routed)
	routed.IPv6 = routed.IPv6 || slices.ContainsFunc(s.pods, func(p pod) bool { return p.lease().IPv6.IsValid() })
	config.Uplinks = routed
	if err := n.kernel.Setup(ctx, config); err != nil {
		return migrate.Report{}, fmt.Errorf("set up the node: %w", err)
	}
	var changed []string
	for _, p := range s.pods {
		if f, _ := p.fate(); p.chained() || f != migrate.Adopt && f != migrate.Adopted || len(p.Addrs) == 0 {
			continue
		}
		did, err := n.takeOver(ctx, a, p)
		if did {
			changed = append(changed, fmt.Sprintf("adopted %s/%s with %v", p.Pod.Namespace, p.Pod.Name, p.Addrs))
		}
		if err != nil {
			r, _ := n.report(ctx, "apply", changed, nil)
			return r, err
		}
	}
	return n.report(ctx, "apply", changed, nil)
}

func (n *Node) takeOver(ctx context.Context, a *adopt.Adopter, p pod) (changed bool, err error) {
	key, netns, former, lease := n.cfg.key(p), p.Netns, p.Link.Name, p.lease()
	if r := p.Recorded; r != nil {
		if r.Adopted == nil {
			return false, nil
		}
		netns, former, lease = r.Netns, r.Adopted.HostLink, r.Lease
	}
	taken := adopt.Pod{
		Key: key, Pod: p.Pod, Lease: lease, Netns: netns, Keep: true,
		Former: attachment.Adopted{From: n.cfg.from(), HostLink: former},
	}
	if p.Egress.client {
		taken.Inside = func(hostMAC net.HardwareAddr) error {
			var gateways []netip.Addr
			for _, addr := range lease.Addrs() {
				gateways = append(gateways, datapath.PodGateway(addr))
			}
			return answerBy(netns, key.IfName, gateways, hostMAC)
		}
	}
	return a.TakeOver(ctx, taken)
}

// Finish implements migrate.System. Unlike Apply it may run beside berthd, and should: berthd announces the node's
// blocks, and a block is never without a route in the export table.
func (n *Node) Finish(ctx context.Context) (migrate.Report, error) {
	s, err := n.observe(ctx)
	if err != nil {
		return migrate.Report{}, err
	}
	if s.daemon {
		return migrate.Report{}, fmt.Errorf("%w: stop it first, or it treats the addresses of all pods as free", errCoildRuns)
	}
	for _, p := range s.pods {
		if f, why := p.fate(); !p.chained() && (f == migrate.Adopt || f == migrate.Replace) {
			return migrate.Report{}, fmt.Errorf("pod %s/%s of link %s still belongs to Coil: %s", p.Pod.Namespace, p.Pod.Name, p.Link.Name, reason(f, why))
		}
	}
	for _, p := range s.pods {
		if p.Egress.inForce {
			return migrate.Report{}, fmt.Errorf("pod %s/%s of link %s still sends through Coil's gateways: %s", p.Pod.Namespace, p.Pod.Name, p.Link.Name, p.egressRemedy())
		}
	}
	berth, err := n.announced(ctx)
	if err != nil {
		return migrate.Report{}, err
	}
	if list := s.unannounced(berth); len(list) > 0 {
		return migrate.Report{}, fmt.Errorf("pods have addresses of the blocks %v, which only Coil announces: start berthd and repeat the command once its condition BlocksRouted is True", list)
	}
	changed, err := n.finish(ctx, s)
	r, failed := n.report(ctx, "finish", changed, nil)
	if err == nil {
		err = n.cfg.removePlugin(&r)
	}
	return r, errors.Join(err, failed)
}

// announced lists the prefixes that Berth announces.
func (n *Node) announced(ctx context.Context) (list []netip.Prefix, err error) {
	inv, err := n.kernel.Inventory(ctx)
	for _, b := range inv.Blocks {
		if len(b.Tables) > 0 {
			list = append(list, b.Prefix)
		}
	}
	return list, err
}

// finish removes what Coil created. It removes the rule first: without the rule, a rollback is refused.
func (n *Node) finish(ctx context.Context, s state) (changed []string, err error) {
	for _, r := range s.rules {
		if err := n.links.host.RuleDel(&r); err != nil && !rtnl.IsGone(err) {
			return changed, fmt.Errorf("remove the rule %d of table %d: %w", r.Priority, r.Table, err)
		}
		changed = append(changed, fmt.Sprintf("removed rule %d of table %d", r.Priority, r.Table))
	}
	if err := failpoint.Hit("coil.rule.after"); err != nil {
		return changed, err
	}
	records, err := n.records()
	if err != nil {
		return changed, err
	}
	for _, rec := range records {
		if err := ctx.Err(); err != nil {
			return changed, err
		}
		if rec.Adopted == nil {
			continue
		}
		did, err := n.settle(rec)
		if did {
			changed = append(changed, fmt.Sprintf("removed what Coil made for %s/%s (%s)", rec.Pod.Namespace, rec.Pod.Name, rec.HostLink))
		}
		if err != nil {
			return changed, err
		}
	}
	did, err := n.links.removeTables()
	changed = append(changed, did...)
	if err == nil {
		err = failpoint.Hit("coil.exports.after")
	}
	if err != nil {
		return changed, err
	}
	did, err = n.removeFiles(s)
	return append(changed, did...), errors.Join(err, n.forgetChained())
}

// settle removes what Coil made for one pod.
func (n *Node) settle(rec attachment.Record) (changed bool, err error) {
	if changed, err = n.adopter.Settle(rec); err != nil {
		return changed, err
	}
	if err := failpoint.Hit("coil.settle.after"); err != nil {
		return changed, err
	}
	did, err := removeEgress(rec)
	if changed = changed || did; err != nil {
		return changed, err
	}
	if err := failpoint.Hit("coil.egress.after"); err != nil {
		return changed, err
	}
	gateways, err := n.links.gatewaysOf(rec)
	if err != nil {
		return changed, err
	}
	did, err = insideOf(rec, func(in *inside) (bool, error) { return in.tidy(gateways) })
	if changed = changed || did; err != nil {
		return changed, err
	}
	if err := failpoint.Hit("coil.tidy.after"); err != nil {
		return changed, err
	}
	did, err = n.links.removeAddresses(rec)
	if changed = changed || did; err != nil {
		return changed, fmt.Errorf("remove the addresses of %s: %w", rec.HostLink, err)
	}
	return changed, failpoint.Hit("coil.addresses.after")
}

// Verify implements migrate.System.
func (n *Node) Verify(ctx context.Context) (migrate.Report, error) {
	return migrate.Lasting(func() (migrate.Report, error) { return n.verify(ctx) })
}

func (n *Node) verify(ctx context.Context) (migrate.Report, error) {
	s, err := n.observe(ctx)
	if err != nil {
		return migrate.Report{}, err
	}
	var problems []string
	for _, o := range s.obstacles(n.cfg.Network) {
		if o.Blocks {
			problems = append(problems, o.What)
		}
	}
	records, err := n.records()
	if err != nil {
		return migrate.Report{}, err
	}
	for _, rec := range records {
		if rec.Lease.Empty() {
			continue
		}
		if err := n.kernel.CheckPod(ctx, daemon.PodOf(rec)); err != nil {
			problems = append(problems, fmt.Sprintf("%s/%s: %v", rec.Pod.Namespace, rec.Pod.Name, err))
		}
	}
	r, err := n.report(ctx, "verify", nil, problems)
	if err != nil {
		return r, err
	}
	silent, err := reach.Pods(ctx, n.cfg.Netns, r.Pods)
	r.Problems = append(r.Problems, silent...)
	return r, err
}
